from __future__ import annotations

import base64
import io
import itertools
import math
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from fabricated_runs import LABELS, Workspace
from PIL import Image

from probmetric.io import FileError, write_json
from probmetric.reporting import _answers
from probmetric.reporting.aggregate import aggregate
from probmetric.reporting.figures import draw
from probmetric.reporting.html import LONGEST_WEBP, _embedded, render, write_report
from probmetric.reporting.tables import build_table, write_tables

VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Collects what a reader and a browser would see; complains about tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] not in ("style", "script"):
            self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


@pytest.fixture(scope="module")
def study(built_workspace, tmp_path_factory):
    """An aggregated study with its tables and two of its figures, made once."""
    root = tmp_path_factory.mktemp("page") / "repository"
    shutil.copytree(built_workspace, root)
    space = Workspace(root)
    context = space.context()
    aggregate(space.folders, context.folder / "runs.csv", context.folder / "metrics.json")
    write_tables(context)
    for name in ("sparsification", "noise_robustness"):
        draw(name, context)
    write_report(context)
    return context


@pytest.fixture(scope="module")
def page(study) -> Page:
    return Page((study.folder / "index.html").read_text(encoding="utf-8"))


def test_the_page_is_self_contained(page):
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe")
        for name in ("src", "href", "srcset"):
            address = attributes.get(name) or ""
            assert not re.match(r"(https?:)?//", address), address
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 2
    assert all(image["src"].startswith("data:image/webp;base64,") and len(image["alt"]) > 40 for image in images)


def test_figures_lose_no_pixel_on_the_page(page, study):
    shown = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    for source, name in zip(shown, ("sparsification", "noise_robustness"), strict=True):
        packed = base64.b64decode(source.partition("base64,")[2])
        drawn = Image.open(study.folder / "figures" / f"{name}.png").convert("RGB")
        assert Image.open(io.BytesIO(packed)).convert("RGB").tobytes() == drawn.tobytes()
        assert len(packed) < (study.folder / "figures" / f"{name}.png").stat().st_size


def test_a_damaged_figure_is_named_with_the_fix(tmp_path):
    (tmp_path / "cut.png").write_bytes(b"\x89PNG")
    with pytest.raises(FileError, match=r"cut.png is damaged .*draw the figures again"):
        _embedded(tmp_path / "cut.png")


def test_a_figure_too_long_for_webp_stays_as_it_is(tmp_path):
    Image.new("RGB", (1, LONGEST_WEBP + 1)).save(tmp_path / "long.png")
    kind, _, content = _embedded(tmp_path / "long.png").partition(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(content) == (tmp_path / "long.png").read_bytes()


def test_internal_links_and_files_exist(page, study):
    identities = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    for tag, attributes in page.tags:
        if tag == "a":
            address = attributes["href"]
            target = address[1:] in identities if address.startswith("#") else (study.folder / address).exists()
            assert target, address


def test_the_page_is_accessible(page):
    assert ("html", {"lang": "en"}) in page.tags
    assert any(attributes.get("name") == "viewport" for tag, attributes in page.tags if tag == "meta")
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")


def test_the_page_opens_with_the_answer(page, study):
    words = page.words
    end = words.index("Can the uncertainty")
    glance = words[words.rindex("At a glance", 0, end) : end]
    for answer in _answers.answers(build_table(study)):
        assert answer.best in glance
        assert answer.value in glance
        assert answer.margin in glance
    assert "Not significantly better than" in glance


def test_numbers_of_the_table_stand_on_the_page(page, study):
    for group in build_table(study).groups:
        for row in group.rows:
            for column, cell in zip(build_table(study).columns, row.cells, strict=True):
                if cell:
                    assert f"{cell.mean:.{column.digits}f} ± {cell.half_width:.{column.digits}f}" in page.words


def test_what_was_not_run_is_said(page):
    assert "digits: arcface, seed 2" in page.words
    assert "glyphs, 20 % label noise: arcface, seeds 0, 1, 2" in page.words
    assert "41 of 45 runs finished" in page.words
    assert "Metrics by method Nothing to show: not drawn yet." not in page.words
    assert "not drawn yet" in page.words


def test_protocol_and_provenance_are_stated(page):
    for text in ("open set", "400 images, 20 classes", "ab" * 32, "2.15.0", "recall at 1", "x86_64"):
        assert text in page.words


def test_text_from_outside_is_escaped(workspace):
    nasty = "<script>alert('x')</script> & \"co\""
    labels, figures = {"contrastive": nasty}, ("sparsification",)
    context = workspace.context(title=nasty, description=nasty, labels=labels, figures=figures)
    aggregate(workspace.folders, context.folder / "runs.csv", context.folder / "metrics.json")
    drawing = dict.fromkeys(("title", "caption", "alt"), nasty) | {"empty": ""}
    write_json(context.folder / "figures" / "sparsification.json", drawing)
    Image.new("RGB", (2, 2)).save(context.folder / "figures" / "sparsification.png")
    text = render(context)
    assert "<script" not in text
    page = Page(text)
    assert nasty in " ".join(page.text)
    assert any(attributes.get("alt") == nasty for tag, attributes in page.tags if tag == "img")


def test_the_same_results_give_the_same_bytes(page, study):
    first = (study.folder / "index.html").read_bytes()
    write_report(study)
    assert (study.folder / "index.html").read_bytes() == first


def test_an_experiment_without_results_says_so(workspace):
    context = workspace.context("empty", runs=["digits/none/seed0"], figures=())
    aggregate([], context.folder / "runs.csv", context.folder / "metrics.json")
    words = Page(render(context)).words
    assert "No run on this dataset is finished." in words
    assert "0 of 1 runs finished" in words


def test_one_seed_is_not_tested(workspace):
    runs = [run for run in workspace.runs if run.endswith("seed0") and run.startswith("glyphs/")]
    context = workspace.context(runs=runs, figures=())
    aggregate([context.results / run for run in runs], context.folder / "runs.csv", context.folder / "metrics.json")
    (answer,) = _answers.answers(build_table(context))
    assert answer.value.endswith("(one seed)")
    assert answer.significance.startswith("Not tested")
    assert {item.verdict for item in _answers.trust(context)["glyphs"]} == {"undecided"}


@pytest.mark.parametrize("accuracy", [0.3, 0.6, 0.9])
def test_the_share_of_a_perfect_ordering_is_1_for_an_oracle_and_0_for_chance(accuracy):
    removed = np.linspace(0, 0.98, 99)
    perfect = np.minimum(1.0, accuracy / (1 - removed))
    assert _answers.ordering_share({"removed": removed, "accuracy": perfect}) == pytest.approx(1)
    assert _answers.ordering_share({"removed": removed, "accuracy": np.full(99, accuracy)}) == pytest.approx(
        0, abs=1e-12
    )
    whole = np.linspace(0, 1, 200_001)
    curve = np.minimum(1.0, accuracy / np.maximum(1 - whole, 1e-12))
    gain = np.trapezoid(curve, whole) - accuracy
    assert gain == pytest.approx(-accuracy * math.log(accuracy), rel=1e-4)


def test_nothing_to_order_gives_no_share():
    assert _answers.ordering_share(None) is None
    assert _answers.ordering_share({"removed": [0, 0.5], "accuracy": [1.0, 1.0]}) is None


def test_trust_needs_an_interval_above_chance_and_a_useful_size(study):
    judged = {item.label: item for item in _answers.trust(study)["glyphs"]}
    laplace, nca = judged[LABELS["laplace"]], judged[LABELS["proxy_nca"]]
    assert laplace.verdict == "yes"
    assert {item.grade for item in laplace.evidence.values()} == {"good"}
    assert nca.evidence["AUROC (symbols)"].grade == "weak"
    assert _answers._grade("AUROC (a)", [0.4, 0.41, 0.39]).grade == "inverted"
    assert _answers._grade("AUROC (a)", [0.2, 0.9, 0.5]).grade == "none"


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ({"best": "yes"}, "Its uncertainty can be trusted."),
        ({"best": "yes", "a": "yes"}, "Its uncertainty can be trusted. So can that of a."),
        (
            {"best": "partly", "a": "yes", "b": "yes", "c": "no"},
            "Its uncertainty can be trusted in part. The uncertainty of a and b can be trusted.",
        ),
        (
            {"best": "no", "a": "weakly"},
            "Its uncertainty cannot be trusted. No method's uncertainty is good by every measure.",
        ),
        ({"a": "partly"}, "No method's uncertainty is good by every measure."),
        ({"best": "undecided", "a": "undecided"}, "Whose uncertainty can be trusted, one seed cannot tell."),
        (
            {"best": "undecided", "a": "yes"},
            "Whether its uncertainty can be trusted, one seed cannot tell. The uncertainty of a can be trusted.",
        ),
        (dict.fromkeys("abcdef", "yes"), "The uncertainty of a, b, c, d and 2 others can be trusted."),
        (dict.fromkeys("abcde", "yes"), "The uncertainty of a, b, c, d and e can be trusted."),
    ],
)
def test_a_card_says_whether_the_best_is_sure_of_itself(verdicts, sentence):
    judged = [_answers.Trust(label, verdict, {}) for label, verdict in verdicts.items()]
    assert _answers.trust_sentence(judged, "best") == sentence
