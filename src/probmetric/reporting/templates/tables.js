"use strict";
// Tables marked `data` sort by the heads of their columns; a section with one that is long gets a filter of its rows.
// Without this script they are plain tables. On narrow screens rows are cards, sorted by a list (page.css).
(() => {
  const LONG = 6;
  const collator = new Intl.Collator("en", { numeric: true });

  /** A number, the cell's words, or null where nothing was measured. */
  const valueOf = (cell) => {
    if (cell.classList.contains("empty")) return null;
    return cell.dataset.sort === undefined ? cell.textContent.trim() : Number(cell.dataset.sort);
  };

  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b));

  /** Sort the rows by a column: 1 ascending, -1 descending, 0 as written; what has no value comes last. */
  const sort = (table, column, order) => {
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => ({ row, value: valueOf(row.cells[column]), place: Number(row.dataset.place) }));
    keyed.sort((a, b) => {
      if (order === 0 || (a.value === null && b.value === null)) return a.place - b.place;
      if (a.value === null || b.value === null) return a.value === null ? 1 : -1;
      return order * compare(a.value, b.value) || a.place - b.place;
    });
    body.append(...keyed.map((item) => item.row));
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    if (order) heads[column].setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
  };

  /** Best first, then worst first, then as written. */
  const next = (head) => {
    const first = head.dataset.first === "descending" ? -1 : 1;
    const now = { ascending: 1, descending: -1 }[head.getAttribute("aria-sort")] ?? 0;
    return now === 0 ? first : now === first ? -first : 0;
  };

  const sortable = (table) => {
    [...table.tBodies[0].rows].forEach((row, place) => {
      row.dataset.place = place;
    });
    const picker = document.createElement("select");
    picker.append(new Option("Sort by …", ""));
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const name = head.textContent.trim();
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, column, next(head)));
      head.append(button);
      picker.append(new Option(`Sort by ${name}`, column));
      [...table.tBodies[0].rows].forEach((row) => {
        row.cells[column].dataset.label = name;
      });
    });
    picker.setAttribute("aria-label", `Sort ${table.caption?.textContent ?? "the table"}`);
    picker.className = "narrow";
    picker.addEventListener("change", () => {
      const head = table.tHead.rows[0].cells[Number(picker.value)];
      sort(table, Number(picker.value), picker.value && head.dataset.first === "descending" ? -1 : picker.value ? 1 : 0);
    });
    table.classList.add("stacks");
    table.parentElement.before(picker);
  };

  /** On narrow screens a long table shows its first rows, as they are sorted, until all are asked for. */
  const shorten = (table) => {
    const rows = table.tBodies[0].rows.length;
    if (rows <= LONG + 2) return;
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "narrow", textContent: `Show all ${rows} rows` });
    button.addEventListener("click", () => {
      table.classList.remove("short");
      button.remove();
    });
    table.classList.add("short");
    table.parentElement.after(button);
  };

  /** Rows hold all the words typed; several tables of a section are filtered at once. */
  const filter = (section) => {
    const tables = [...section.querySelectorAll("table.data")];
    if (!tables.some((table) => table.tBodies[0].rows.length > LONG)) return;
    const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
    const input = document.createElement("input");
    Object.assign(input, { type: "search", placeholder: "Filter rows, for example: laplace" });
    input.setAttribute("aria-label", "Filter the rows of these tables");
    const count = document.createElement("span");
    count.className = "soft";
    count.setAttribute("role", "status");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach((row) => {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      });
      section.classList.toggle("filtered", words.length > 0);
      const shown = rows.filter((row) => !row.hidden).length;
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    });
    const bar = document.createElement("p");
    bar.className = "bar";
    bar.append(input, " ", count);
    section.querySelector("h2").after(bar);
  };

  document.querySelectorAll("table.data").forEach(sortable);
  document.querySelectorAll("table.data").forEach(shorten);
  document.querySelectorAll("section").forEach(filter);
})();
