// Questions of a dataset (questions.html.j2): filtered by class, sorted by doubt, a page at a time; a click on a picture
// shows it beside the question. Without this script the first pictures of the page stand there, and no more.
(() => {
  const PAGE = 24;
  const COLUMNS = 24;

  /** Element with classes, text and children. */
  const element = (tag, name = "", text = "", ...children) => {
    const made = document.createElement(tag);
    made.className = name;
    made.append(text, ...children);
    return made;
  };

  /** One picture of a sheet. */
  const tile = (sheet, place, name, kind) => {
    const made = element("button", `tile sheet${sheet} ${kind}`);
    made.type = "button";
    made.title = name;
    made.setAttribute("aria-label", name);
    made.style.setProperty("--x", place % COLUMNS);
    made.style.setProperty("--y", Math.floor(place / COLUMNS));
    return made;
  };

  const dialog = element("dialog", "pair");
  document.body.append(dialog);
  dialog.addEventListener("click", () => dialog.close());

  /** Question and one of its nearest, large, side by side. */
  const show = (sheet, question, other, words) => {
    const pictures = element("div", "tiles", "", question.cloneNode(), other.cloneNode());
    dialog.replaceChildren(pictures, element("p", "", words), element("p", "soft", "Click or Esc closes."));
    dialog.showModal();
  };

  /** Rows of `Browser.rows` as objects. */
  const parsed = (rows) =>
    rows.map(([place, label, stated, sure, right, ...rest]) => {
      const nearest = [];
      for (let at = 0; at < rest.length; at += 3) {
        nearest.push({ place: rest[at], label: rest[at + 1], cosine: rest[at + 2] });
      }
      return { place, label, stated, sure, right, nearest };
    });

  const ORDERS = {
    wrong: (a, b) => a.right - b.right || b.sure - a.sure,
    doubt: (a, b) => a.sure - b.sure,
    sure: (a, b) => b.sure - a.sure,
  };

  const browse = (browser) => {
    const [classes, order] = browser.querySelectorAll("select");
    const names = [...classes.options].slice(1).map((option) => option.text);
    const sheet = browser.dataset.sheet;
    const questions = parsed(JSON.parse(browser.dataset.rows));
    const asking = new Set(questions.map((question) => question.label));
    [...classes.options].slice(1).forEach((option, label) => {
      option.hidden = option.disabled = !asking.has(label); // some browsers show hidden options, none lets them be chosen
    });
    const list = browser.querySelector("ul.questions");
    const status = browser.querySelector("[role=status]");
    const all = status.textContent;
    const more = element("button", "more", "Show more");
    more.type = "button";
    list.after(more);
    let shown = PAGE;

    const line = (question) => {
      const asked = tile(sheet, question.place, names[question.label], "query");
      const tiles = element("span", "tiles", "", asked);
      question.nearest.forEach((other) => {
        const kind = other.label === question.label ? "same" : "other";
        const picture = tile(sheet, other.place, names[other.label], kind);
        const words = `${names[question.label]} and ${names[other.label]}, cosine ${other.cosine.toFixed(3)}`;
        picture.addEventListener("click", () => show(sheet, asked, picture, words));
        tiles.append(picture);
      });
      const answer = question.right ? "" : `, answered ${names[question.nearest[0].label]}`;
      const stated = question.stated && ` ·\u00a0P(right)\u00a0${question.stated}`;
      return element("li", "", "", tiles, element("span", "soft", names[question.label] + answer + stated));
    };

    const draw = () => {
      const chosen = classes.selectedIndex - 1;
      const rows = questions.filter((question) => chosen < 0 || question.label === chosen).sort(ORDERS[order.value]);
      list.replaceChildren(...rows.slice(0, shown).map(line));
      more.hidden = rows.length <= shown;
      status.textContent = chosen < 0 ? all : `${rows.length} questions of this class`;
      browser.querySelectorAll(".map .tile").forEach((picture) => {
        picture.classList.toggle("dim", chosen >= 0 && Number(picture.dataset.class) !== chosen);
      });
    };

    const restart = () => {
      shown = PAGE;
      draw();
    };
    classes.addEventListener("change", restart);
    order.addEventListener("change", restart);
    more.addEventListener("click", () => {
      shown += PAGE;
      draw();
    });
    browser.querySelectorAll("[data-class]").forEach((button) => {
      button.disabled = !asking.has(Number(button.dataset.class));
      button.addEventListener("click", () => {
        const same = classes.selectedIndex - 1 === Number(button.dataset.class);
        classes.selectedIndex = same ? 0 : Number(button.dataset.class) + 1;
        restart();
      });
    });
    draw();
  };

  document.querySelectorAll(".browser").forEach(browse);

  /** A link into something folded opens it. */
  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let part = target || null; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
})();
