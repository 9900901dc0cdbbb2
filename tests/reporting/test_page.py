from __future__ import annotations

import base64
import hashlib
import io
import itertools
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import unquote

import numpy as np
import pytest
from fabricated_runs import Workspace, gathered, write_run
from PIL import Image

from probmetric.io import FileError, content_digest, write_json
from probmetric.reporting import uncertainty
from probmetric.reporting.answers import Promise, answers
from probmetric.reporting.figures import draw
from probmetric.reporting.page import LONGEST_WEBP, embedded, render
from probmetric.reporting.report import contents_of, write_page, write_tables
from probmetric.reporting.tables import result_table
from probmetric.reporting.uncertainty import score_tables
from probmetric.trust import certify

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
    """A study with its tables and two of its figures, made once."""
    root = tmp_path_factory.mktemp("page") / "repository"
    shutil.copytree(built_workspace, root)
    space = Workspace(root)
    context = space.context()
    context = gathered(context)
    write_tables(contents_of(context))
    for name in ("sparsification", "noise_robustness"):
        draw(name, context)
    write_page(contents_of(context))
    return context


@pytest.fixture(scope="module")
def page(study) -> Page:
    return Page((study.folder / "index.html").read_text(encoding="utf-8"))


def test_the_page_is_self_contained(page):
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe")
        for name in ("src", "href", "srcset"):
            address = attributes.get(name) or ""
            assert not re.match(r"(https?:)?//", address), address
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 2
    assert all(image["src"].startswith("data:image/webp;base64,") and len(image["alt"]) > 40 for image in images)


def test_the_browser_is_told_to_run_the_pages_own_script_only(page, study):
    (script,) = re.findall("<script>(.*?)</script>", (study.folder / "index.html").read_text("utf-8"), re.DOTALL)
    (policy,) = (found["content"] for _, found in page.tags if found.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


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
        embedded(tmp_path / "cut.png")


def test_a_figure_too_long_for_webp_stays_as_it_is(tmp_path):
    Image.new("RGB", (1, LONGEST_WEBP + 1)).save(tmp_path / "long.png")
    kind, _, content = embedded(tmp_path / "long.png").partition(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(content) == (tmp_path / "long.png").read_bytes()


def test_internal_links_and_files_exist(page, study):
    identities = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    for tag, attributes in page.tags:
        if tag == "a":
            address = attributes["href"]
            target = (
                address[1:] in identities if address.startswith("#") else (study.folder / unquote(address)).exists()
            )
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
    end = words.index("Every method")
    glance = words[words.rindex("The answer", 0, end) : end]
    for answer in answers(result_table(study)):
        assert answer.best in glance
        assert answer.value in glance
        assert answer.margin in glance
    assert "Not significantly better than" in glance
    assert glance.count("No certificate") == 3
    assert "No frozen baseline was run" in glance
    assert "add the method frozen: {backbone:" in glance


def test_every_finished_run_is_one_click_away(page, study):
    folders = {attributes["href"] for tag, attributes in page.tags if tag == "a" and attributes.get("class") == "run"}
    assert folders == {f"../../results/{run.key.run}/" for run in study.runs}


def test_numbers_of_the_table_stand_on_the_page(page, study):
    for cell in result_table(study).itertuples():
        if cell.status == "measured":
            assert f"{cell.mean:.{cell.digits}f} ± {cell.ci95_half_width:.{cell.digits}f}" in page.words


def test_what_was_not_run_is_said(page):
    assert "digits: arcface, seed 2" in page.words
    assert "glyphs, 20 % label noise: arcface, seeds 0, 1, 2" in page.words
    assert "41 of 45 runs finished" in page.words
    assert "Metrics by method Nothing to show: not drawn yet." not in page.words
    assert "not drawn yet" in page.words


def test_protocol_and_provenance_are_stated(page):
    for text in (
        "open set",
        "400 images, 20 classes",
        "ab" * 32,
        "2.15.0",
        "recall_at_1",
        "x86_64",
        "3 left out",
    ):
        assert text in page.words


def test_text_from_outside_is_escaped(workspace):
    nasty = "<script>alert('x')</script> & \"co\""
    labels, figures = {"contrastive": nasty}, ("sparsification",)
    context = workspace.context(title=nasty, description=nasty, labels=labels, figures=figures)
    context = gathered(context)
    drawing = dict.fromkeys(("title", "caption", "alt"), nasty) | {"empty": ""}
    write_json(context.folder / "figures" / "sparsification.json", drawing)
    Image.new("RGB", (2, 2)).save(context.folder / "figures" / "sparsification.png")
    text = render(contents_of(context))
    assert text.count("<script") == 1
    page = Page(text)
    assert nasty in " ".join(page.text)
    assert any(attributes.get("alt") == nasty for tag, attributes in page.tags if tag == "img")


def test_backticks_of_the_description_are_code(workspace):
    context = workspace.context(description="As in `a < b.yaml`, not ` alone.", figures=())
    context = gathered(context)
    assert "<p>As in <code>a &lt; b.yaml</code>, not ` alone.</p>" in render(contents_of(context))


def test_the_same_results_give_the_same_bytes(page, study):
    first = (study.folder / "index.html").read_bytes()
    write_page(contents_of(study))
    assert (study.folder / "index.html").read_bytes() == first


def test_an_experiment_without_results_says_so(workspace):
    context = workspace.context("empty", runs=["digits/none/seed0"], figures=())
    context = gathered(context)
    words = Page(render(contents_of(context))).words
    assert "No run on this dataset is finished." in words
    assert "0 of 1 runs finished" in words


def test_a_floor_that_is_best_is_called_one(workspace):
    for seed in range(3):
        write_run(workspace.root, f"glyphs/raw_pixels/seed{seed}", {"retrieval/recall_at_1": 0.99 + 0.001 * seed})
    runs = [run for run in workspace.runs if run.startswith("glyphs/")]
    context = workspace.context(runs=runs, figures=())
    context = gathered(context)
    (answer,) = answers(result_table(context))
    assert (answer.best, answer.floor) == ("Raw pixels (floor)", True)
    assert "It learns nothing" in Page(render(contents_of(context))).words
    assert "It learns nothing" not in Page(render(contents_of(workspace.context(runs=runs[:6], figures=())))).words


def test_a_floor_that_validation_chose_is_no_proof_that_training_is_worth_nothing(workspace):
    runs = [run for run in workspace.runs if run.startswith("glyphs/")]
    context = gathered(workspace.context(runs=runs, figures=()))
    chosen = SimpleNamespace(method="raw_pixels", evidence="12 validation classes")
    (answer,) = answers(result_table(context), {"glyphs": chosen})
    assert (answer.method, answer.floor) == ("raw_pixels", False)
    assert "the best of those compared on the test images" in answer.margin


def test_one_seed_is_not_tested(workspace):
    runs = [run for run in workspace.runs if run.endswith("seed0") and run.startswith("glyphs/")]
    context = workspace.context(runs=runs, figures=())
    context = gathered(context)
    (answer,) = answers(result_table(context))
    assert answer.value.endswith("(one seed)")
    assert answer.significance.startswith("Not tested")
    assert {item.verdict for item in uncertainty.trust(context)["glyphs"]} == {"undecided"}


SURE = {
    "sparsification/error_auroc": 0.93,
    "sparsification/error_auroc_cosine": 0.80,
    "sparsification/error_auroc_disagreement": 0.85,
    "ood/symbols/auroc": 0.97,
    "ood/symbols/auroc_cosine": 0.90,
    "calibration/ece": 0.02,
}
UNIT_ERRORS = {"sparsification/error_auroc": 0.01, "ood/symbols/auroc": 0.01, "calibration/ece": 0.005}


def judged(workspace, *, seeds=3, unit_errors=UNIT_ERRORS, others=(), **changes):
    """The judgement of a method with the metrics `SURE`, but for what is changed (`ece=.2`), and of `others`."""
    names = {"errors": "sparsification/error_auroc", "strangers": "ood/symbols/auroc", "ece": "calibration/ece"}
    names |= {"cosine": "sparsification/error_auroc_cosine"}
    runs = {f"glyphs/own/seed{seed}": SURE | {names.get(k, k): v for k, v in changes.items()} for seed in range(seeds)}
    runs |= {f"glyphs/{method}/seed{seed}": values for method, values in others for seed in range(seeds)}
    context = context_of(workspace, runs, unit_errors)
    return {item.label: item for item in uncertainty.trust(context)["glyphs"]}


def context_of(workspace, runs, unit_errors=UNIT_ERRORS):
    """The context of runs with these metrics, a little more for every seed."""
    for run, values in runs.items():
        shift = 0.002 * int(run[-1])
        shifted = {name: None if value is None else value + shift for name, value in values.items()}
        folder = write_run(workspace.root, run, {"retrieval/recall_at_1": 0.5})
        write_json(folder / "metrics.json", shifted | {"retrieval/recall_at_1": 0.5})
        write_json(folder / "curves.json", {"unit_errors": {name: [value, 1e6] for name, value in unit_errors.items()}})
    context = workspace.context("sure", runs=list(runs), figures=())
    return gathered(context)


def answers_of(trust):
    return tuple(trust.answer(question) for question in uncertainty.QUESTIONS)


def test_trust_needs_all_three_questions_answered_well(workspace):
    own = judged(workspace)["own"]
    assert answers_of(own) == ("yes", "yes", "yes")
    assert own.verdict == "yes"


@pytest.mark.parametrize(
    ("changes", "answers", "verdict", "why"),
    [
        ({"ece": 0.245}, ("yes", "yes", "no"), "partly", "above 0.05"),  # vMF was trusted with an ECE of .245
        ({"cosine": 0.96}, ("no", "yes", "yes"), "partly", "no better than the free score"),
        ({"cosine": 0.925}, ("undecided", "yes", "yes"), "partly", "not clearly better than the free score"),
        ({"errors": 0.60}, ("no", "yes", "yes"), "partly", "below 0.75"),
        ({"strangers": 0.30}, ("yes", "no", "yes"), "partly", "below chance"),
        ({"ece": None}, ("yes", "yes", None), "partly", ""),
        ({"errors": 0.6, "strangers": 0.6, "ece": 0.3}, ("no", "no", "no"), "no", ""),
    ],
)
def test_each_question_is_answered_for_itself(workspace, changes, answers, verdict, why):
    own = judged(workspace, **changes)["own"]
    assert answers_of(own) == answers
    assert own.verdict == verdict
    assert any(why in item.why for item in own.evidence.values())


def test_few_errors_among_the_test_images_leave_an_auroc_undecided(workspace):
    """Digits have 5 to 15 wrong answers; an AUROC with a standard error of .13 was trusted over its seeds."""
    own = judged(workspace, unit_errors=UNIT_ERRORS | {"sparsification/error_auroc": 0.13})["own"]
    assert own.answer("errors") == "undecided"


def test_what_was_not_measured_cannot_be_trusted(workspace):
    own = judged(workspace, unit_errors={})["own"]
    assert set(answers_of(own)) == {"undecided"}
    assert {item.why for item in own.evidence.values()} == {"the interval leaves out the test classes"}
    unknown = judged(workspace, cosine=None)["own"].evidence["sparsification/error_auroc"]
    assert unknown.floor is not None  # disagreement is left
    assert judged(workspace, seeds=1)["own"].verdict == "undecided"


def test_what_is_free_stands_beside_what_the_methods_add(workspace):
    more = {"trust/free": 0.91, "trust/both": 0.913, "trust/added": 0.003, "trust/added_low": -0.001}
    own = SURE | more | {"trust/added_high": 0.0071}
    context = context_of(workspace, {"glyphs/own/seed0": own})
    (table,) = [found for found in score_tables(context)["glyphs"] if found.title == "Wrong answers"]
    (row,) = table.rows
    assert list(table.columns) == ["own", "free together", "with the method's", "cosine", "disagreement"]
    assert row.added == "+0.003 [-0.001, +0.007]"
    assert (row.values["free together"], row.best) == (0.91, "own")
    text = render(contents_of(context))
    assert "+0.003 [-0.001, +0.007]" in " ".join(Page(text).words.split())
    assert '<td data-sort="+0.003">' in text  # as words, -0.002 would stand before +0.003 and -0.010 between them


def test_what_a_method_adds_has_the_interval_of_the_table(workspace):
    """Over classes .05 +- .03, the values of two seeds .002 apart: hypot(.03, 12.706 * .001)."""
    ends = {"trust/free": 0.9, "trust/both": 0.95, "trust/added_low": 0.02, "trust/added_high": 0.08}
    metrics = SURE | ends | {"trust/added": 0.05}
    runs = {f"glyphs/own/seed{seed}": metrics for seed in range(2)}
    context = replace(context_of(workspace, runs), metrics=("trust/added",))
    (row,) = next(iter(score_tables(context)["glyphs"])).rows
    assert row.added == "+0.051 [+0.018, +0.084]"
    assert result_table(context)["ci95_half_width"].tolist() == [pytest.approx(0.0326, abs=1e-4)]


def test_answering_the_surest_is_judged_by_the_own_uncertainty_and_by_p_right(workspace):
    own = SURE | {"sparsification/augrc": 0.134, "p_right/augrc": 0.081, "p_right/coverage_at_risk_5": 0.417}
    context = context_of(workspace, {"glyphs/own/seed0": own})
    (table,) = [found for found in score_tables(context)["glyphs"] if found.title == "Answering only the surest"]
    assert list(table.columns) == ["AUGRC, own", "AUGRC, by P(right)", "share answered at 5 % errors, by P(right)"]
    assert list(table.rows[0].values.values()) == [0.134, 0.081, 0.417]
    assert "AUGRC, by P(right)" in Page(render(contents_of(context))).words


def test_the_strength_of_distortions_has_the_statistic_of_pixels_as_its_floor(workspace):
    own, noise = {"distortion/spearman": 0.56}, ("pixel_noise", {"distortion/spearman": 0.73})
    evidence = judged(workspace, **own, others=[noise])["own"].evidence["distortion/spearman"]
    assert evidence.floor == pytest.approx(0.73, abs=0.01)
    assert evidence.verdict == "no"
    assert judged(workspace, **own)["own"].evidence["distortion/spearman"].verdict == "yes"


def test_the_first_sentence_is_what_the_certificate_promises(workspace):
    context = context_of(workspace, {"glyphs/own/seed0": SURE})
    assert "No certificate" in Page(render(contents_of(context))).words
    (run,) = context.runs
    gallery = content_digest(run.embeddings_file("test"))
    doubt = np.arange(400.0)
    made = certify(doubt, doubt < 300, risk=0.1, gallery=gallery, score="p_right", valid_for="such queries")
    made.save(run.certificate_file)
    words = Page(render(contents_of(context))).words
    answered, wrong = 100 * made.coverage, 100 * made.errors / 400
    assert f"Of 100 questions {answered:.0f} are answered, {wrong:.0f} of them wrong." in words
    assert "at most 10 % of the answers given are wrong, with confidence 90 %" in words
    assert f"{answered:.0f} % of the queries are answered (p right decides which); valid for such queries" in words
    replace(made, gallery="0" * 64).save(run.certificate_file)
    words = Page(render(contents_of(context))).words
    assert "made for embeddings that this run no longer has" in words
    assert "No certificate" in words
    replace(made, threshold=None, answered=0, coverage=0.0, errors=0).save(run.certificate_file)
    assert "Of 100 questions none can be answered" in Page(render(contents_of(context))).words
    run.certificate_file.unlink()


def test_runs_by_split_of_the_classes_are_told_apart(workspace):
    context = context_of(workspace, {f"glyphs{split}/own/seed0": SURE for split in ("", "+split1")})
    for run in context.runs:
        gallery = content_digest(run.embeddings_file("test"))
        certify(np.arange(400.0), np.arange(400) < 300, risk=0.1, gallery=gallery).save(run.certificate_file)
    page = render(contents_of(context))
    for run in context.runs:
        run.certificate_file.unlink()
    assert "Certificate, seed 0 Certificate, split 1, seed 0" in Page(page).words
    assert 'title="folder of the run with seed 0">0<' in page
    assert 'title="folder of the run with split 1, seed 0">split 1, seed 0<' in page


@pytest.mark.parametrize(("risks", "promised"), [((0.1, 0.4), 0.4), ((0.1, 0.1, 0.4), 0.1), ((0.1, 0.1), 0.1)])
def test_certificates_of_different_risks_have_no_mean(workspace, risks, promised):
    context = context_of(workspace, {f"glyphs/own/seed{seed}": SURE for seed in range(len(risks))})
    doubt, made = np.arange(400.0), {}
    for run, risk in zip(context.runs, risks, strict=True):
        gallery = content_digest(run.embeddings_file("test"))
        made[risk] = certify(doubt, doubt < 300, risk=risk, gallery=gallery)
        made[risk].save(run.certificate_file)
    promise = Promise.of(context.runs)
    assert (promise.risk, promise.confidence) == (promised, 0.9)
    assert promise.answered == pytest.approx(100 * made[promised].coverage)


def test_networks_that_learnt_nothing_are_a_floor_too(workspace):
    found = judged(workspace, others=[("untrained", {"sparsification/error_auroc": 0.99})])
    assert found["own"].answer("errors") == "no"
    assert found["own"].evidence["sparsification/error_auroc"].floor == pytest.approx(0.992)
