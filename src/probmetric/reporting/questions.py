"""Questions to click through: test images as questions to a model, their answers, and labels that look wrong.

The page shows one run per dataset: the first seed of the method that the validation images recommend, or else of the
method with the best first metric. Each test image searches the others, or each query its gallery. All pictures are on
one sheet, each picture once.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.util
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from PIL import Image

from probmetric.data.manifest import read_table, values_of
from probmetric.io import present
from probmetric.metrics.arrays import Array, Bools, Doubles, Ints
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures._data import best_runs, first_runs, nearest, sides
from probmetric.reporting.figures.maps import project
from probmetric.reporting.figures.montages import TILE, Album
from probmetric.reporting.recommended import Candidate
from probmetric.reporting.words import chance_words, group_title
from probmetric.runs.folder import RunFolder
from probmetric.runs.roles import Asked
from probmetric.trust.copies import copy_groups
from probmetric.trust.labels import suspect_labels
from probmetric.trust.p_right import cross_fitted
from probmetric.trust.scores import free_scores

NEAREST, COLUMNS, QUALITY = 5, 24, 78
MOST_QUESTIONS, MOST_PICTURES, LISTED, FIRST = 200, 900, 12, 3


@dataclass(frozen=True)
class Question:
    """A test image, the images nearest to it, and how sure the answer is; images are rows of the test split.

    Attributes:
        row: the image.
        nearest: the nearest others, the answer first.
        cosines: with each of them.
        right: whether the answer's class is the image's.
        p_right: stated probability that the answer is right; NaN if it cannot be stated.
    """

    row: int
    nearest: Sequence[int]
    cosines: Sequence[float]
    right: bool
    p_right: float


@dataclass
class Sheet:
    """Pictures of a dataset on one sheet, each once, in the order in which they are first asked for."""

    album: Album
    data: str
    index: Ints
    places: dict[int, int] = field(default_factory=dict)

    def place(self, row: int) -> int:
        """Return the number of the picture of test image `row`."""
        return self.places.setdefault(int(row), len(self.places))

    @property
    def rows(self) -> int:
        """Return how many rows the sheet has, at least two."""
        return max(2, -(-len(self.places) // COLUMNS))

    def address(self) -> str:
        """Return the sheet as a data URL."""
        sheet = np.zeros((self.rows * TILE, COLUMNS * TILE, 3), dtype=np.uint8)
        for place, tile in enumerate(self.album.tiles(self.data, self.index[[*self.places]])):
            top, left = place // COLUMNS * TILE, place % COLUMNS * TILE
            sheet[top : top + TILE, left : left + TILE] = tile
        return _address(Image.fromarray(sheet))


@dataclass(frozen=True)
class Browser:
    """The questions of one dataset.

    Attributes:
        number: place among the browsers of the page.
        title: the dataset, noise included.
        label: the method that answers.
        run: the method's run.
        sheet: pictures of the test images.
        classes: name of each class that the test images show.
        codes: class (N,) of each test image, a place among `classes`.
        paths: path (N,) of each test image.
        questions: some of the images, each with its answer.
        suspects: images whose labels are most likely wrong.
        proposed: the class (N,) proposed for each image instead of its own.
        suspected: how many images are nearer to another class than to their own.
        copies: pairs of images that show one picture under one label.
        contradictions: pairs of images that show one picture under two labels.
        confusions: (class, class it is taken for, how often).
        map: (image, across, down) of the questions, in percent.
        regions: (question, picture of the regions that make its match) for the questions shown first; may be empty.
    """

    number: int
    title: str
    label: str
    run: str
    sheet: Sheet
    classes: Sequence[str]
    codes: Ints
    paths: Sequence[str]
    questions: Sequence[Question]
    suspects: Sequence[Question]
    proposed: Ints
    suspected: int
    copies: Sequence[tuple[int, int]]
    contradictions: Sequence[tuple[int, int]]
    confusions: Sequence[tuple[int, int, int]]
    map: Sequence[tuple[int, float, float]]
    regions: Sequence[tuple[Question, str]] = ()

    def name(self, row: int) -> str:
        """Return the class of a test image."""
        return self.classes[self.codes[row]]

    @property
    def wrong(self) -> list[Question]:
        """Return the surest wrong answers."""
        return [question for question in self.questions if not question.right][:FIRST]

    @property
    def right(self) -> list[Question]:
        """Return some right answers, in no order."""
        return [question for question in reversed(self.questions) if question.right][:FIRST]

    def rows(self) -> list[list[float | str]]:
        """Return the values of each question for the page's script.

        A row holds picture and class of the image, P(right) in words, how sure the answer is, whether it is right, then
        picture, class and cosine of each of the nearest.
        """
        rows: list[list[float | str]] = []
        for each in self.questions:
            unknown = np.isnan(each.p_right)
            words, sure = ("", each.cosines[0]) if unknown else (chance_words(each.p_right), each.p_right)
            row: list[float | str] = [
                self.sheet.place(each.row),
                int(self.codes[each.row]),
                words,
                round(float(sure), 3),
                int(each.right),
            ]
            for other, cosine in zip(each.nearest, each.cosines, strict=True):
                row += [self.sheet.place(other), int(self.codes[other]), round(float(cosine), 3)]
            rows.append(row)
        return rows


def browsers(context: ReportContext, recommended: Mapping[str, Candidate] | None = None) -> list[Browser]:
    """Return the questions of every dataset that has pictures and a run with a match record of its queries.

    Datasets of places are left out, because their answers have no class.
    """
    album, listed = Album(context.prepared), list[Browser]()
    first = first_runs(context, "mean", "label", "index")
    chosen = {data: (data, candidate.method) for data, candidate in (recommended or {}).items()}
    runs = best_runs(context, "mean", "label", "index")
    runs |= {data: first[place] for data, place in chosen.items() if place in first}
    for run in runs.values():
        if album.has(run.key.data) and present(run.matches_file):
            browser = _browser(context, run, album, len(listed))
            listed += [browser] if browser else []
    return listed


def _browser(context: ReportContext, run: RunFolder, album: Album, number: int) -> Browser | None:
    data, test, record = run.key.data, run.tensors("test", "mean", "label", "index"), run.matches()[0].get("test")
    protocol = sides(context, data, test)
    if record is None or len(record["right"]) != len(protocol.queries):
        return None
    table, _ = read_table(context.prepared / data, ["class_name", "path"])
    names, paths = (values_of(table, name)[test["index"]] for name in ("class_name", "path"))
    labels, codes = np.unique(test["label"], return_inverse=True)
    answers = _Answers(test["mean"], codes, record, protocol)
    labelled = np.flatnonzero(test["label"] >= 0)
    suspicion = suspect_labels(test["mean"][labelled], codes[labelled]) if len(set(codes[labelled])) > 1 else None
    proposed, suspects = codes.copy(), labelled[:0]
    if suspicion:
        proposed[labelled] = suspicion.proposed
        suspects = labelled[suspicion.order[: min(LISTED, suspicion.count)]]
    pairs = _pairs(test["mean"])
    questions = answers.questions(answers.chosen())[: MOST_PICTURES // (1 + NEAREST)]
    browser = Browser(
        number=number,
        title=group_title(run.key.group),
        label=context.label(run.key.variant),
        run=run.key.run,
        sheet=Sheet(album, data, test["index"]),
        classes=[str(names[np.argmax(codes == code)]) for code in range(len(labels))],
        codes=codes,
        paths=paths.tolist(),
        questions=questions,
        suspects=answers.questions(suspects, among_all=True),
        proposed=proposed,
        suspected=suspicion.count if suspicion else 0,
        copies=[pair for pair in pairs if codes[pair[0]] == codes[pair[1]]],
        contradictions=[pair for pair in pairs if codes[pair[0]] != codes[pair[1]]],
        confusions=answers.confusions(),
        map=_map(test["mean"], [question.row for question in questions]),
    )
    first = [*browser.wrong, *browser.right]
    drawn = drawn_matches(context, run, [(each.row, each.nearest[0]) for each in first])
    return replace(browser, regions=[*zip(first, map(_address, drawn), strict=bool(drawn))])


def _address(picture: Image.Image) -> str:
    """Return a picture as a data URL."""
    packed = io.BytesIO()
    picture.save(packed, "webp", quality=QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(packed.getvalue()).decode()}"


@dataclass(frozen=True)
class _Answers:
    """The answers of a run: unit rows (N, M) and classes (N,) of the test images, and the queries' match record."""

    mean: Array
    codes: Ints
    record: dict[str, Array]
    protocol: Asked

    @functools.cached_property
    def answerable(self) -> Bools:
        """Return which queries (Q,) have an image of their class to find."""
        return self.record["asked"].astype(bool)

    @functools.cached_property
    def right(self) -> Bools:
        """Return which test images (N,) were answered rightly."""
        return self._by_image(self.record["right"].astype(bool), otherwise=False)

    @functools.cached_property
    def p_right(self) -> Doubles:
        """Return P(right) (N,) from the free scores, cross-fitted over classes; NaN where it cannot be stated."""
        stated = np.full(len(self.answerable), np.nan)
        doubts = {score: self.record.get(f"doubt.{score}") for score in free_scores()}
        free = {score: values[self.answerable] for score, values in doubts.items() if values is not None}
        right, codes = (values[self.protocol.queries][self.answerable] for values in (self.right, self.codes))
        with contextlib.suppress(ValueError):  # some part of the classes is all right or all wrong
            stated[self.answerable] = cross_fitted(free, right, codes)
        return self._by_image(stated, otherwise=np.nan)

    def _by_image(self, values: Array, otherwise: Any) -> Array:
        """Return values (Q,) of the queries as values (N,) of the test images."""
        spread = np.full(len(self.codes), otherwise, dtype=values.dtype)
        spread[self.protocol.queries] = values
        return spread

    def chosen(self) -> Ints:
        """Return images (Q,) to show: up to half are wrong answers, the surest first; the others are random."""
        sure = np.where(np.isnan(self.p_right), self._by_image(self.record["cosine"], np.nan), self.p_right)
        asking = self.protocol.queries[self.answerable]
        wrong = asking[~self.right[asking]]
        wrong = wrong[np.argsort(-sure[wrong], kind="stable")][: MOST_QUESTIONS // 2]
        others = np.random.default_rng(0).permutation(np.setdiff1d(asking, wrong))
        return np.concatenate([wrong, others[: MOST_QUESTIONS - len(wrong)]])

    def questions(self, rows: Ints, *, among_all: bool = False) -> list[Question]:
        """Return the questions of images `rows` (Q,), asked in their gallery or among all test images."""
        every = np.arange(len(self.codes))
        protocol = Asked(every, every, np.stack([every, every], axis=1)) if among_all else self.protocol
        answers, cosines = nearest(self.mean, protocol, rows, NEAREST)
        return [
            Question(row, others, values, bool(self.right[row]), float(self.p_right[row]))
            for row, others, values in zip(rows.tolist(), answers.tolist(), cosines.tolist(), strict=True)
        ]

    def confusions(self) -> list[tuple[int, int, int]]:
        """Return (class, class it is taken for, how often), most frequent first, for pairs that occur twice or more."""
        wrong = self.answerable & ~self.right[self.protocol.queries]
        truth, answers = self.codes[self.protocol.queries[wrong]], self.codes[self.record["nearest"][wrong]]
        pairs = zip(truth.tolist(), answers.tolist(), strict=True)
        return [(*pair, count) for pair, count in Counter(pairs).most_common(LISTED) if count > 1]


def _pairs(mean: Array) -> list[tuple[int, int]]:
    """Return pairs of images that show the same picture, each image with the first one that shows it."""
    pictures = copy_groups(mean)
    first = np.unique(pictures, return_index=True)[1]
    return [(int(first[picture]), row) for row, picture in enumerate(pictures.tolist()) if first[picture] != row]


def _map(mean: Array, rows: list[int]) -> list[tuple[int, float, float]]:
    places = (100 * project(mean[rows])).round(1).tolist() if len(rows) > 1 else []
    return [(row, across, 100 - up) for row, (across, up) in zip(rows, places, strict=bool(places))]


SIDE = 112
LEAST = 64  # pixels: regions of a smaller image are not worth the seconds in which PyTorch loads


def drawn_matches(context: ReportContext, run: RunFolder, pairs: Sequence[tuple[int, int]]) -> list[Image.Image]:
    """Draw pairs of rows of the test split as the encoder of a run sees them.

    Returns:
        A picture of each pair; an empty list if images are small, the run combines several encoders, the weights are
        not here, the encoder has no feature maps, or PyTorch is not installed.
    """
    trained = context.trained_by(run)
    if run.find("members") or not trained.trained or importlib.util.find_spec("torch") is None:
        return []
    facts = trained.encoder["encoder"]
    if facts["image_size"] < LEAST:
        return []
    import torch

    from probmetric.data.images import Eye, PreparedImages
    from probmetric.models._regions import draw_match
    from probmetric.training.assemble import load_encoder
    from probmetric.training.data import training_view

    made = load_encoder(trained.path)
    view = training_view(made.settings, context.prepared / trained.key.data).evaluation()
    eye = Eye(view, (facts["in_channels"], facts["image_size"]))
    images = PreparedImages.of_split(context.prepared / run.key.data, "test")
    shown = [torch.cat([eye.load(images.load(np.array([row]))) for row in pair]) for pair in pairs]
    drawn = [draw_match(made.encoder, view.normalise(pair), SIDE) for pair in shown]
    return [picture for picture in drawn if picture is not None]
