"""The page of a study of 23 methods as people see it: wide, narrow, light, dark, sorted, filtered; opened from disk."""

from __future__ import annotations

import shutil

import pytest
from browsing import open_browser, save
from fabricated_runs import LABELS, Workspace, gathered, study_metrics, write_run
from PIL import Image

from probmetric.io import write_json
from probmetric.reporting.report import contents_of, write_page
from probmetric.runs.names import RunKey

pytestmark = [pytest.mark.slow, pytest.mark.browser]
METHODS = (
    *("contrastive", "triplet", "margin", "multi_similarity", "circle", "proxy_nca", "proxy_anchor", "soft_triple"),
    *("cosface", "arcface", "normface", "vmf", "nivmf", "nivmf_exact", "pfml-proxy_anchor", "nir-proxy_nca"),
    *("laplace", "laplace_online+uncertainty.apart=5", "ensemble+uncertainty.members=5", "mc_dropout", "pfe"),
    *("hib+loss.learn_scale=false", "raw_pixels"),
)
RUNS = tuple(f"{data}/{method}/seed{seed}" for data in ("digits", "glyphs") for method in METHODS for seed in (0, 1, 2))
LONG = {
    "laplace_online": "Laplace (online), arccos, fixed negatives",
    "pfml-proxy_anchor": "Potential field, ProxyAnchor",
}
NOT_RUN = "triplet"
SHOW_ALL = "document.querySelector('#tables .scroll + button').click()"
SCREENS = [(width, scheme) for width in (1400, 420) for scheme in ("light", "dark")]

CUT_OFF = """
const allowed = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")].filter((element) => {
  if (element.closest(".skip") || !element.checkVisibility()) return false;
  const box = element.getBoundingClientRect();
  const clipped = getComputedStyle(element).overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1;
  return box.width && (box.right > allowed + 1 || box.left < -1 || (clipped && !element.matches("input, select")));
}).map((element) => `${element.tagName} ${element.className}: ${element.textContent.trim().slice(0, 60)}`);
"""
FAINT = """
const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (rgb) => rgb.slice(0, 3).map((value) => value / 255)
  .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
  .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
const ground = (element) => {
  for (; element; element = element.parentElement) {
    const found = channels(getComputedStyle(element).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found;
  }
};
return [...document.querySelectorAll("p, a, td, th, .mark, .soft, button")].filter((element) => {
  if (!element.checkVisibility() || !element.textContent.trim()) return false;
  const [one, other] = [light(channels(getComputedStyle(element).color)), light(ground(element))];
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) < 4.5;
}).map((element) => `${element.className}: ${element.textContent.trim().slice(0, 40)}`);
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Address of the page of an experiment of our own, and of one that compares with published numbers."""
    root = tmp_path_factory.mktemp("browsed")
    for run in RUNS:
        key = RunKey.parse(run)
        if key.method != NOT_RUN:
            folder = write_run(root, run, study_metrics(key.dataset, key.noise, key.method, key.seed), epochs=1)
            shutil.rmtree(folder / "embeddings")
    space = Workspace(root, RUNS)
    return {name: make_page(space, name) for name in ("study", "pfml/table2")}


def make_page(space, name):
    context = space.context(name, figures=("sparsification",), labels=LABELS | LONG)
    context = gathered(context)
    figure = context.folder / "figures" / "sparsification.png"
    figure.parent.mkdir(parents=True)
    Image.new("RGB", (1224, 700), "white").save(figure)
    write_json(figure.with_suffix(".json"), {"title": "Curves", "caption": "Lines.", "alt": "Lines.", "empty": ""})
    return write_page(contents_of(context)).as_uri()


@pytest.fixture(scope="module")
def browser():
    with open_browser() as driver:
        yield driver


def show(driver, address, width=1400, scheme="light"):
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    preferred = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})
    driver.get(address)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", ["study", "pfml/table2"])
def test_nothing_is_cut_off_and_all_can_be_read(pages, browser, name, width, scheme):
    show(browser, pages[name], width, scheme)
    save(browser, f"page_{name.replace('/', '_')}_{width}_{scheme}")
    browser.execute_script("document.querySelectorAll('.scroll + button').forEach((button) => { button.click(); })")
    browser.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    cut_off = browser.execute_script(CUT_OFF)
    if width == 420 or name == "study":  # on a wide screen the widest table of published numbers scrolls in its frame
        assert cut_off == []
    assert browser.execute_script(FAINT) == []
    assert browser.get_log("browser") == []


def test_what_is_cut_off_or_faint_is_noticed(pages, browser):
    show(browser, pages["study"], 420)
    wide = "document.querySelector('.card p').outerHTML = '<p style=\"width: 600px; color: #bbb\">too wide</p>'"
    browser.execute_script(wide)
    assert browser.execute_script(CUT_OFF) == ["P : too wide"]
    assert browser.execute_script(FAINT) == [": too wide"]


def table(driver, title):
    """(method, text of the second column) of every visible row of a table of metrics."""
    return driver.execute_script(
        "const found = [...document.querySelectorAll('#tables table')]"
        ".find((table) => table.caption.textContent === arguments[0]);"
        "return [...found.tBodies[0].rows].filter((row) => row.checkVisibility())"
        ".map((row) => [row.cells[0].textContent, row.cells[1].textContent]);",
        title,
    )


def click(driver, head):
    driver.execute_script(
        "[...document.querySelectorAll('#tables thead')][0].querySelectorAll('button').forEach("
        "(button) => { if (button.textContent.startsWith(arguments[0])) button.click(); });",
        head,
    )


def test_a_click_on_a_head_sorts_by_number_and_a_third_puts_back(pages, browser):
    show(browser, pages["study"])
    written = table(browser, "digits")
    means = {name: float(text.split()[0]) for name, text in written if name != NOT_RUN}
    click(browser, "Recall@1")
    down = [name for name, _ in table(browser, "digits")]
    assert [means[name] for name in down[:-1]] == sorted(means.values(), reverse=True)
    assert down[-1] == NOT_RUN
    click(browser, "Recall@1")
    up = [name for name, _ in table(browser, "digits")]
    assert [means[name] for name in up[:-1]] == sorted(means.values())
    assert up[-1] == NOT_RUN
    click(browser, "Recall@1")
    assert table(browser, "digits") == written
    click(browser, "ECE")
    assert browser.execute_script("return document.querySelector('#tables [aria-sort]').ariaSort") == "ascending"


def test_words_filter_the_rows_of_all_tables_of_a_section(pages, browser):
    show(browser, pages["study"])
    field = browser.find_element("css selector", "#tables input[type=search]")
    field.send_keys("LAPLACE seeds")
    for title in ("digits", "glyphs"):
        assert [name for name, _ in table(browser, title)] == [
            "Laplace (online), arccos, fixed negatives, members 5 seeds apart"
        ]
    assert "2 of 46 rows" in browser.find_element("css selector", "#tables .bar").text
    field.clear()
    field.send_keys(" ")
    assert len(table(browser, "digits")) == 23


def test_narrow_screens_sort_by_a_list_and_name_every_number(pages, browser):
    show(browser, pages["study"], 420)
    lists = browser.find_elements("css selector", "#tables select")
    assert [item.is_displayed() for item in lists] == [True, True]
    lists[0].send_keys("Sort by Recall@1")
    browser.execute_script(SHOW_ALL)
    means = [float(text.split()[0]) for name, text in table(browser, "digits") if name != NOT_RUN]
    assert len(means) == 22
    assert means == sorted(means, reverse=True)
    named = "return getComputedStyle(document.querySelector('#tables td'), '::before').content"
    assert browser.execute_script(named).startswith('"Recall@1')


def test_narrow_screens_show_the_first_rows_of_long_tables_until_asked(pages, browser):
    show(browser, pages["study"])
    assert len(table(browser, "digits")) == 23
    assert not browser.find_element("css selector", "#tables .scroll + button").is_displayed()
    show(browser, pages["study"], 420)
    browser.find_element("css selector", "#tables select").send_keys("Sort by Recall@1")
    best = [name for name, _ in table(browser, "digits")]
    assert len(best) == 6
    field = browser.find_element("css selector", "#tables input[type=search]")
    field.send_keys("seeds")
    assert [name for name, _ in table(browser, "digits")] == [
        "Laplace (online), arccos, fixed negatives, members 5 seeds apart"
    ]
    field.clear()
    field.send_keys(" ")
    button = browser.find_element("css selector", "#tables .scroll + button")
    assert button.text == "Show all 23 rows"
    browser.execute_script(SHOW_ALL)  # a real click would have to wait for the page's smooth scrolling
    assert [name for name, _ in table(browser, "digits")][:6] == best
    assert len(table(browser, "digits")) == 23
    assert len(table(browser, "glyphs")) == 6


def test_no_label_is_written_as_an_option(pages, browser):
    show(browser, pages["study"])
    words = browser.execute_script("return document.querySelector('main').textContent")
    assert "members 5 seeds apart" in words
    assert "ensemble, 5 members" in words
    assert "hib, learn scale off" in words
    assert "uncertainty." not in words
