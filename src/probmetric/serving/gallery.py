"""Make, search, store and change galleries of embedded images. This module does not import torch.

    gallery = Gallery.create(model, "photos/")                    embeds the images
    gallery = Gallery.from_vectors(vectors, labels, paths)        vectors (N, M) of any model
    gallery.save("shop-gallery");  gallery = Gallery.open("shop-gallery")
    gallery.certify(model, "labelled/", risk=0.05)

A stored gallery is three files (`gallery_files`); facts about its answers are stored beside them (`gallery_trust`). A
process that changes a gallery holds its lock: `save` while it writes, `changing` from reading to writing.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from probmetric.data.loose import LooseImages, loose_images
from probmetric.errors import ServingError, harmless
from probmetric.io import alone, present
from probmetric.io.folders import claim_folder
from probmetric.metrics.arrays import check_mapping, class_names_of, row_norms, to_numpy
from probmetric.retrieval.match import Match, find_match
from probmetric.serving import gallery_files, gallery_trust, lists
from probmetric.serving.canary import warn_if_moved
from probmetric.serving.content import TRAINED, Content, digest_of_content, place_of, stacked_looks
from probmetric.serving.frames import is_frame, vectors_and_names
from probmetric.serving.gallery_files import GALLERY, INDEX
from probmetric.serving.gallery_trust import VOTES, Calibration, Trust, fitting_certificate
from probmetric.serving.looks import World
from probmetric.serving.search import Answer, Queries, Rules, answers, withheld
from probmetric.trust.answers import Answers
from probmetric.trust.certificates import Certificate, CertificateError, class_importance
from probmetric.trust.copies import distinct
from probmetric.trust.deployed import (
    ASKED,
    P_RIGHT,
    calibration_answers,
    certified_doubt,
    certify_record,
    check_held_out,
    records_digest,
    shows_some,
)
from probmetric.trust.p_right import PRight, fit_p_right
from probmetric.trust.scores import doubts

if TYPE_CHECKING:
    import pyarrow as pa

OnError = Literal["raise", "skip"]
Classes: TypeAlias = "Sequence[Any] | np.ndarray | None"
ELSEWHERE = "searched elsewhere, lists of "
SEEN = 200  # images of a run whose looks are measured
STRANGERS = "strangers"  # key of `shares` for all classes that the gallery does not have

log = logging.getLogger(__name__)


class Embedder(Protocol):
    """The interface of a model that a gallery needs: that of `Model`, whose module imports this one.

    Attributes:
        digest: SHA-256 of everything that decides its embeddings.
        name: its name, for messages.
    """

    digest: str
    name: str

    @property
    def canary(self) -> np.ndarray | None:
        """Embeddings of the images of `canary`; None if the model cannot embed them."""

    @property
    def checked_canary(self) -> np.ndarray | None:
        """Embeddings of the first images of `canary`."""

    def embedded(self, images: Sequence[Any], *, on_error: OnError = "raise") -> Any:
        """Return embeddings, as `Model.embedded` does."""

    def looks(self, images: Sequence[Any]) -> np.ndarray:
        """Return pixel statistics, as from `Model.looks`."""

    def trained_on(self, looks: np.ndarray) -> np.ndarray:
        """Say which images the model was trained on, see `Model.trained_on`."""


class Labelled(NamedTuple):
    """Q calibration queries: their record, class numbers (Q,) as in the gallery, and names of these classes."""

    record: dict[str, np.ndarray]
    labels: np.ndarray
    names: list[str]

    @property
    def rows(self) -> np.ndarray:
        """Vectors (Q, M), or the results of an index for each query (Q, ...)."""
        return self.record["hits" if "hits" in self.record else "mean"]


class Gallery:
    """Embedded images that can be searched.

    Attributes:
        elsewhere: whether your own index searches the images, see `IndexedGallery`.
        folder: where the gallery is stored; None if it is in memory only.
        certificates: the certificates of its answers.
        tried: which scores were tried on which calibration sets, see `gallery_trust.tries_to_pay`.
        problems: (name, reason) of images that were left out of the latest addition.
        canary: embeddings of the images of `canary`, made with the gallery; may be None.
    """

    elsewhere = False

    def __init__(self, content: Content | None = None) -> None:
        """Make a gallery of `content`, by default empty."""
        self.folder: Path | None = None
        self.certificates: list[Certificate] = []
        self.tried: dict[str, dict[str, int]] = {}
        self.problems: list[tuple[str, str]] = []
        self.canary: np.ndarray | None = None
        self._moved: float | None = None  # by how much embeddings have moved since; None before a comparison
        self._stored = ""  # digest of the content that was read from or written to `folder`
        self._trust: Trust | None = None
        self._set(Content.empty() if content is None else content)

    def _set(self, content: Content) -> None:
        """Replace the content and forget all facts about the old one; its certificates stay, but will be refused."""
        self._content, self._trust = content, None
        for fact in ("labels", "digest", "left_out", "_world"):
            vars(self).pop(fact, None)

    @classmethod
    def create(cls, model: Embedder, images: Any, *, on_error: OnError = "raise", **names: Sequence[str]) -> Gallery:
        """Return a gallery of images; arguments as for `add`."""
        gallery = cls(Content.empty(model.digest))
        gallery.add(model, images, on_error=on_error, **names)
        return gallery

    @classmethod
    def from_vectors(cls, vectors: Any, labels: Classes = None, paths: Sequence[str] | None = None) -> Gallery:
        """Return a gallery of embeddings of any model, scaled to unit length.

        Args:
            vectors: (N, M) numbers, no row of zeros; or a frame of pandas, Arrow or DuckDB with the columns `vector`,
                `label` and, where there is one, `path`.
            labels: classes of the images (N,); None if they are unknown.
            paths: names of the images (N,), by default `image 0` and so on.

        Raises:
            ServingError: the number of labels or paths is not N, or a row has no direction (it is zero or not finite).
        """
        if is_frame(vectors):
            vectors, in_frame, named = vectors_and_names(vectors)
            labels, paths = in_frame if labels is None else labels, named if paths is None else paths
        rows = directions(vectors)
        gallery, count = cls(), len(rows)
        gallery.take(rows, _numbered(paths, count), [""] * count if labels is None else class_names_of(labels))
        return gallery

    @classmethod
    def from_labels(
        cls, labels: Sequence[Any] | np.ndarray, paths: Sequence[str] | None = None, *, depth: int = 0
    ) -> Gallery:
        """Return a gallery of images that your own index searches; queries are the results of the index (`lists`).

        Args:
            labels: classes of the images (N,).
            paths: their names (N,), by default `image 0` and so on.
            depth: 0: queries come as similarities (Q, N); k: as pairs of scores and indices (Q, k), the best first.

        Raises:
            ServingError: `depth` is 1, or the number of paths is not N.
        """
        if depth and not 2 <= depth <= len(labels):
            raise ServingError(f"depth is {depth}: expected 0 for similarities, or 2 to {len(labels)} for lists.")
        if 0 < depth < min(VOTES, len(labels)):
            log.warning("lists of %d: disagreement and entropy count so few votes; %d are usual", depth, VOTES)
        gallery, count = IndexedGallery(Content.empty(f"{ELSEWHERE}{depth}")), len(labels)
        gallery.take(np.zeros((count, 0), dtype=np.float32), _numbered(paths, count), class_names_of(labels))
        return gallery

    @classmethod
    def open(cls, folder: str | Path) -> Gallery:
        """Return a stored gallery; its vectors stay on disk and are read when they are searched.

        Raises:
            FileError: a file is missing or damaged, or its content cannot be a gallery.
        """
        folder = Path(folder)
        content, index = gallery_files.read(folder)
        gallery = IndexedGallery(content) if re.fullmatch(rf"{ELSEWHERE}\d{{1,9}}", content.model) else cls(content)
        gallery.folder, gallery.digest, gallery._stored = folder, index.content, index.content
        gallery._trust = Trust.parse(index.trust, folder)
        gallery.certificates = gallery_trust.read_certificates(folder)
        gallery.tried = gallery_trust.read_tries(folder)
        gallery.canary = gallery_files.read_canary(folder)
        return gallery

    @classmethod
    @contextlib.contextmanager
    def changing(cls, folder: str | Path, *, new: bool = True) -> Iterator[Gallery]:
        """Yield the gallery in `folder`, and store it after the block; other writers wait.

        If there is no gallery, an empty one is yielded; with `new=False` this is a `FileError`.
        """
        folder = Path(folder)
        if not (new or present(folder / INDEX)):
            cls.open(folder)  # raises the error for a missing gallery before a lock is made
        with alone(folder):
            gallery = cls() if new and not present(folder / INDEX) else cls.open(folder)
            yield gallery
            gallery._write(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<Gallery of {len(self)} images, {self.dim} dimensions, model {self.model[:12] or 'unknown'}>"

    @property
    def model(self) -> str:
        """Digest of the model that embedded the images; "" if it is unknown."""
        return self._content.model

    @property
    def dim(self) -> int:
        """Dimensions M of the embeddings."""
        return int(self._content.mean.shape[1])

    @property
    def paths(self) -> list[str]:
        """Name of every image (N)."""
        return self._content.paths

    @property
    def class_names(self) -> list[str]:
        """Class of every image (N), "" where none is known."""
        return self._content.class_names

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """Number of every image's class (N,), in the order of class names; -1 if unknown."""
        return gallery_trust.labels_of(self.class_names)

    @property
    def labelled(self) -> bool:
        """Whether every image has a class."""
        return bool(self.class_names) and "" not in self.class_names

    @property
    def record(self) -> dict[str, np.ndarray]:
        """Unit embeddings `mean` (N, M), for a stored gallery a memory map of its file, and `uncertainty` (N,)."""
        return {"mean": self._content.mean, "uncertainty": self._content.uncertainty}

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of model, embeddings and names, by which certificates name this gallery."""
        return digest_of_content(self._content)

    @property
    def valid(self) -> list[Certificate]:
        """Those of `certificates` that are of this gallery as it is now."""
        return [each for each in self.certificates if (each.gallery, each.weights) == (self.digest, self.model)]

    @property
    def p_right(self) -> PRight | None:
        """The map to P(right), if one is known: the one that the certificates share, else that of `trust`."""
        certified = next((each.p_right for each in self.valid if each.p_right), None)
        learnt = None if self._trust is None else self._trust.p_right
        return PRight.of(certified) if certified else learnt

    @property
    def trust(self) -> Trust:
        """Facts about the gallery's answers, learnt from each image asked among the others; computed once."""
        if self._trust is None:
            p_right: PRight | None = None
            with contextlib.suppress(CertificateError, ValueError):  # no classes, one class, or only right answers
                p_right = fit_p_right(self.left_out.free, self.left_out.right)
            self._trust = Trust(p_right, gallery_trust.distances_apart(self.record["mean"]))
        return self._trust

    @functools.cached_property
    def left_out(self) -> Answers:
        """The answers to the gallery's own images, each asked among the others; computed once.

        Raises:
            CertificateError: images lack a class, there is one class only, or no image can calibrate.
        """
        trained = np.array([use == TRAINED for use in self._content.uses], dtype=bool)
        trained_on = self.record["mean"][trained] if trained.any() else None
        return calibration_answers(self.record, self.labels, trained_on=trained_on)

    def asked(self, model: Embedder | None, images: Any, class_names: Classes = None) -> Answers:
        """Return the answers to labelled images or vectors from outside the gallery; arguments as for `certify`."""
        return self._calibration(self._labelled(model, images, class_names), None, fitted=False).answers

    def check_model(self, model: Embedder) -> None:
        """Raise `ServingError` unless `model` embedded this gallery."""
        if model.digest != self.model:
            raise ServingError(
                f"this gallery was made by another model (digest {self.model[:12] or 'unknown'}, {model.name} has "
                f"{model.digest[:12]}); make one with this model, or search with that one."
            )
        if self.canary is not None and self._moved is None:
            self._moved = warn_if_moved(self.canary, model.checked_canary, "this gallery")

    # ---- content -------------------------------------------------------------------------------------------------

    def add(
        self,
        model: Embedder,
        images: Any,
        *,
        paths: Sequence[str] | None = None,
        class_names: Classes = None,
        on_error: OnError = "raise",
    ) -> int:
        """Embed images and add them; a file that is there already, however its path is spelled, is replaced.

        Two different files with the same name both stay. With names that you give (`paths`), an image replaces one of
        its name.

        Args:
            model: the gallery's model.
            images: a folder (with or without one folder per class), a prepared dataset's folder, `LooseImages`, or
                any input of `Model.embed`. The labels of a `torch.utils.data.Dataset` become class names.
            paths: names of the images, by default their paths.
            class_names: their classes, by default the names of their folders.
            on_error: "skip" leaves out images that cannot be read and lists them in `problems`.

        Returns:
            How many were added.

        Raises:
            ServingError: the gallery is of another model, or names do not fit.
            DataError: images cannot be read; all of them are named.
        """
        if len(self) or self.model:
            self.check_model(model)
        items = images if isinstance(images, LooseImages) else loose_images(images, paths, class_names)
        embedded = model.embedded(items.images, on_error=on_error)
        self.problems = embedded.problems
        places = [place_of(image) for image in items.images] if isinstance(items.images, list) else [""] * len(items)
        kept = embedded.kept.tolist()
        if not len(self):
            self.canary = model.canary
        self._set(replace(self._content, model=model.digest))
        content = Content(
            model.digest,
            embedded.batch.mean.numpy(),
            embedded.batch.uncertainty.numpy(),
            embedded.looks,
            [items.paths[number] for number in kept],
            [items.class_names[number] for number in kept],
            [places[number] for number in kept],
            [TRAINED if trained else "" for trained in model.trained_on(embedded.looks)],
        )
        if TRAINED in content.uses:
            count = content.uses.count(TRAINED)
            log.info(
                "%d of %d images are among those the model was trained on; they do not calibrate", count, len(kept)
            )
        self._set(self._content.joined(content if paths is not None else self._content.named_apart(content)))
        if self.class_names.count("") not in (0, len(self)):
            unnamed = [path for path, name in zip(self.paths, self.class_names, strict=True) if not name]
            log.warning(
                "%d of %d images have no class, such as %s: no answer has a P(right), and none can be certified. Put "
                "them in folders of classes, or remove them from the gallery",
                *(len(unnamed), len(self), harmless(unnamed[0])),
            )
        return len(kept)

    def take(
        self,
        mean: np.ndarray,
        paths: Sequence[str],
        class_names: Sequence[str],
        uncertainty: np.ndarray | None = None,
    ) -> None:
        """Add embeddings that the gallery's model made; they replace images of the same name.

        Args:
            mean: unit embeddings (n, M).
            paths: names (n).
            class_names: classes (n), "" where none is known.
            uncertainty: of each image (n,); None: the same for all.

        Raises:
            ServingError: numbers of images or dimensions differ, or a name occurs twice.
        """
        counts = {"embeddings": len(mean), "paths": len(paths), "classes": len(class_names)}
        if len(set(counts.values())) > 1:
            raise ServingError(f"{counts}; give one of each for every image.")
        uncertainty = np.zeros(len(mean), dtype=np.float32) if uncertainty is None else uncertainty
        seen = np.empty((len(mean), 0), dtype=np.float32)
        unknown = [""] * len(mean)
        new = Content(self.model, mean, uncertainty, seen, list(paths), list(class_names), unknown, unknown)
        self._set(self._content.joined(new))

    def see(self, model: Embedder, images: Sequence[Any]) -> None:
        """Measure the looks of some of the newest images, which `take` added, to recognise strangers to them."""
        rows = np.sort(np.random.default_rng(0).permutation(len(images))[:SEEN])
        self.canary = model.canary if self.canary is None else self.canary
        statistics = model.looks([images[int(row)] for row in rows])
        looks = np.full((len(images), statistics.shape[1]), np.nan, dtype=np.float32)
        if len(statistics) == len(rows):
            looks[rows] = statistics
            before = self._content.looks[: len(self) - len(images)]
            trust = self._trust
            self._set(replace(self._content, looks=stacked_looks(before, looks)))
            self._trust = trust

    def remove(self, names: Iterable[str]) -> int:
        """Remove images by name; return how many.

        Raises:
            ServingError: a name is not in the gallery.
        """
        left = self._content.without([names] if isinstance(names, str) else map(str, names))
        removed = len(self) - len(left.paths)
        if removed:
            self._set(left)
        return removed

    # ---- what it answers -----------------------------------------------------------------------------------------

    def match(self, queries: Mapping[str, np.ndarray], k: int) -> Match:
        """Return the match record of queries: the max(k, `VOTES`) nearest images, fewer where there are fewer.

        Args:
            queries: unit rows `mean` (Q, M) and `uncertainty` (Q,).
            k: number of nearest images to show.
        """
        tensors, labels = self.record, self.labels if self.labelled else np.zeros(len(self), dtype=np.int64)
        record = {**tensors, "mean": [tensors["mean"]]}  # in parts: rows are checked as they are found
        return find_match(queries, record, labels, k=max(k, VOTES))

    def search(
        self,
        vectors: Any,
        *,
        k: int = 5,
        risk: float | Certificate | None = None,
        names: Sequence[str] | None = None,
        **rules: Any,
    ) -> list[Answer]:
        """Return the nearest images of each vector, and how far the answer can be trusted.

        Args:
            vectors: (Q, M) embeddings by the gallery's model; for a gallery `from_labels`, the results of its index.
            k: matches per vector.
            risk: largest share of wrong answers among those given; a certificate of this gallery then decides which
                answers are given. Or the certificate itself.
            names: names of the queries (Q,), by default `query 0` and so on.
            rules: confidence and strangers, see `search.Rules`.

        Raises:
            ServingError: the number of dimensions or names differs, a vector has no direction, or a rule is of images.
            CertificateError: there is no certificate for this risk and gallery.
        """
        chosen, record = Rules(risk, **rules), self._queries(vectors)
        if chosen.withhold < 1:
            raise ServingError("vectors come without validation images to compare with; leave out `withhold`.")
        count = len(record["uncertainty"])
        called = [f"query {number}" for number in range(count)] if names is None else list(names)
        if len(called) != count:
            raise ServingError(f"{len(called)} names for {count} vectors; give one each.")
        looks = np.empty((count, 0), dtype=np.float32)
        return self.answers(Queries(called, record, looks), k, chosen)

    def _queries(self, vectors: Any) -> dict[str, np.ndarray]:
        """Return the record of queries that come as vectors (Q, M)."""
        rows = directions(vectors)
        if len(self) and rows.shape[1] != self.dim:
            raise ServingError(f"vectors of {rows.shape[1]} dimensions; the gallery has {self.dim}.")
        return {"mean": rows, "uncertainty": np.zeros(len(rows), dtype=np.float32)}

    def answers(self, queries: Queries, k: int, rules: Rules) -> list[Answer]:
        """Return, from one search, the k nearest images of each query and whether the answer may be used.

        Raises:
            ServingError: the gallery is empty, or k or a rule cannot be followed.
            CertificateError: no certificate fits the risk and confidence asked for.
        """
        if not isinstance(k, int | np.integer) or k < 1:
            raise ServingError(f"k is {k}; ask for at least 1 match, a whole number.")
        if not len(self):
            raise ServingError("the gallery is empty; add images first.")
        certificate = self.certificate_for(rules)
        if not queries.names:
            return []
        match = self.match(queries.record, k)
        scores, p_right = self._judged(match, certificate)
        certified = None if certificate is None else certified_doubt(certificate, scores)
        lonelier = self.trust.lonelier(match.similarity[:, 0]) if rules.strangers else None
        reasons = withheld(rules, certificate, certified, queries.doubt, lonelier)
        if not rules.any_image:
            reasons.append(self.unlike(queries.looks))
        shares = {"doubt": queries.doubt, "p_right": p_right, "certified_doubt": certified, "lonelier": lonelier}
        return answers(queries, match, k, (self.paths, self.class_names), shares, reasons)

    def certificate_for(self, rules: Rules) -> Certificate | None:
        """Return the certificate that the rules name, or one for their risk and confidence; None without a risk."""
        if rules.risk is None:
            return None
        if isinstance(rules.risk, Certificate):
            rules.risk.check(gallery=self.digest, weights=self.model)
            return rules.risk
        return fitting_certificate(self.certificates, rules.risk, rules.confidence, self.digest, self.model)

    def _judged(self, match: Match, certificate: Certificate | None) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Return the answers' scores, score -> (Q,), and P(right) (Q,); both empty if they are not needed."""
        if certificate is not None and certificate.p_right:
            p_right: PRight | None = PRight.of(certificate.p_right)
        else:
            p_right = self.p_right or (None if certificate is None else self.trust.p_right)
        if p_right is None and certificate is None:
            return {}, None
        votes = {name: getattr(match, name)[:, :VOTES] for name in ("similarity", "indices", "classes")}
        scores = {"own": match.query["uncertainty"].astype(np.float64), **doubts(replace(match, **votes))}
        return scores, None if p_right is None else p_right.probability(scores)

    def unlike(self, looks: np.ndarray) -> list[str]:
        """Say why each image with these `looks` (Q, L) is a stranger to the gallery, "" if it is not; [] if unknown."""
        if self._world is None or looks.shape[1] != self._content.looks.shape[1]:
            return []
        unlike = self._world.unlike(looks)
        return [name and f"a stranger: it looks like no image of the gallery ({name})" for name in unlike]

    @functools.cached_property
    def _world(self) -> World | None:
        """The looks of the gallery; None where there are too few, or none."""
        return World.of(self._content.looks)

    def certify(
        self,
        model: Embedder | None = None,
        images: Any = None,
        class_names: Classes = None,
        *,
        risk: float,
        groups: Classes = None,
        **options: Any,
    ) -> Certificate:
        """Certify that at most `risk` of the answers given is wrong; the certificate stays until the gallery changes.

        Args:
            model: the gallery's model; None without images, and for a gallery of vectors.
            images: labelled images that are not in the gallery and are like later queries; as for `add`. For a gallery
                of vectors, vectors (Q, M). Without images, each gallery image is asked among the others; this is valid
                for queries from the same source as the gallery's.
            class_names: their classes, by default the names of their folders.
            risk: share of wrong answers allowed among those given.
            groups: group of each image (Q,), such as a person or a walk: groups are then drawn, not images. Copies
                within a calibration set always count once.
            options: `confidence`, the chance that the promise holds (0.9); `score`, what decides (default P(right);
                without `images` it is fitted to a fifth of the answers and certified with the others; of several,
                joined by commas, the pilot chooses one); `tries`, how many scores you will try on these images one
                after the other; `shares`, class -> how often deployment asks about it, where calibration differs
                ("strangers" are all classes that the gallery does not have).

        Raises:
            CertificateError: no labels, too few images, or copies of gallery images; the message says what is needed.
        """
        certificate = self.promises(model, images, class_names, groups=groups, **options)(risk)
        self.keep(certificate)
        if self.folder is not None:
            gallery_trust.write_tries(self.folder, self.tried)
        return certificate

    def keep(self, certificate: Certificate) -> None:
        """Keep a certificate with the gallery, in place of one of the same risk and confidence.

        All certificates of a gallery share the newest calibration queries and one map to P(right), so that an answer
        has one P(right). Certificates of other queries, or by another map, are removed.
        """
        same = (certificate.risk, certificate.confidence)
        others = [each for each in self.certificates if (each.risk, each.confidence) != same]
        kept = [each for each in others if gallery_trust.together(each, certificate)]
        gone = [f"{each.risk:g}" for each in others if each not in kept and each.gallery == self.digest]
        if gone:
            log.warning(
                "certificate(s) for a risk of %s were made with other calibration queries, or state another P(right), "
                "and are removed; certify these risks again",
                ", ".join(gone),
            )
        self.certificates = [*kept, certificate]

    def promises(
        self,
        model: Embedder | None = None,
        images: Any = None,
        class_names: Classes = None,
        *,
        groups: Classes = None,
        **options: Any,
    ) -> Callable[[float], Certificate]:
        """Return a function that certifies any risk, from one search of the calibration images, and stores none.

        Arguments and errors as for `certify`. For the score None, a score that was already tried on these queries is
        used, if there is one. Each try is noted in `tried` and stored with the gallery.
        """
        if model is not None:
            self.check_model(model)
        score, confidence = options.pop("score", ""), options.pop("confidence", 0.9)
        tries, shares = options.pop("tries", None), options.pop("shares", None)
        if options:
            raise ServingError(
                f"certify takes risk, groups, confidence, score, tries and shares; not {', '.join(options)}."
            )
        queries = None if images is None else self._labelled(model, images, class_names)
        rows, names = (self.record["mean"], self.class_names) if queries is None else (queries.rows, queries.names)
        digest = records_digest(rows, names)
        if score is None:
            before = self.tried.get(digest, {})
            score = "" if P_RIGHT in before else next(iter(before), "")
        calibration = self._calibration(queries, groups, fitted=score in ("", P_RIGHT))
        by = calibration.p_right or score or calibration.fallback
        facts: dict[str, Any] = {"confidence": confidence, "gallery": self.digest, "weights": self.model}
        facts["calibration"] = digest
        record, classes = calibration.answers.tensors(), self.labels
        if calibration.groups is not None:
            facts["groups"] = calibration.groups
        if shares is not None:
            check_mapping(shares, "shares")
            by_name = dict(zip(class_names_of(shares), shares.values(), strict=True))
            facts["importance"] = class_importance(self._names_of(record["label"]), by_name)
        mark = f"; embeddings had moved from the gallery's by {self._moved:.2g} in cosine" if self._moved else ""

        def certified(risk: float) -> Certificate:
            called = P_RIGHT if isinstance(by, PRight) else by
            tried = {calibration: dict(scores) for calibration, scores in self.tried.items()}
            paid = gallery_trust.tries_to_pay(tried, digest, called, tries)
            certificate = certify_record(
                record, classes, risk=risk, score=by, unit=calibration.unit, tries=paid, **facts
            )
            certificate = replace(certificate, valid_for=certificate.valid_for + mark)
            self.tried = tried  # not after a refusal
            return certificate

        return certified

    def _calibration(self, queries: Labelled | None, groups: Classes, *, fitted: bool) -> Calibration:
        """Return the answers to be certified, with P(right) if it is to be `fitted`; `groups` as for `certify`."""
        if queries is not None:
            groups = None if groups is None else _as_many(groups, len(queries.names))[distinct(queries.rows)]
            answers = calibration_answers(self.record, self.labels, queries.record, queries.labels)
            p_right = self.trust.p_right if fitted else None
            if p_right is not None:  # fitted to gallery images, which may be easier (such as training images)
                p_right = p_right.corrected(answers.free, answers.right)
            calibration = Calibration(answers, p_right, groups)
            if not fitted or calibration.p_right is not None:
                return calibration
            return self._fitted(calibration)  # no image of the gallery can be asked among the others
        if groups is not None:
            raise CertificateError("groups are of calibration images; hand those over, too.")
        unit: Literal["auto", "query"]
        unit = "query" if len(self) > ASKED else "auto"  # a draw from all images draws classes, too
        calibration = Calibration(self.left_out, unit=unit)
        return calibration.with_p_right() if fitted else calibration

    def _fitted(self, calibration: Calibration) -> Calibration:
        """Return the calibration with P(right) fitted to a fifth of its queries, or of their classes or groups."""
        truth = calibration.answers.label
        by_class = calibration.groups is None and shows_some(truth, self.labels)
        return calibration.with_p_right(truth if by_class else calibration.groups)

    def _names_of(self, labels: np.ndarray) -> np.ndarray:
        """Return the names of classes by number (Q,), `STRANGERS` for those that the gallery does not have."""
        names = dict(zip(self.labels.tolist(), class_names_of(self.class_names), strict=True))
        return np.array([names.get(label, STRANGERS) for label in labels.tolist()])

    def _truth(self, class_names: Iterable[Any]) -> tuple[np.ndarray, list[str]]:
        """Number the classes of calibration queries (Q,) as in the gallery (others -1, -2, ...), and name them.

        Raises:
            CertificateError: queries have no class.
        """
        labels = self.labels.tolist()
        numbers = dict(zip(class_names_of(self.class_names), labels, strict=True))
        numbers |= zip(self.class_names, labels, strict=True)  # first with their own spelling
        queries = list(class_names)
        read = zip(queries, class_names_of(queries), strict=True)
        classes = [name if isinstance(name, str) and name in numbers else text for name, text in read]
        if "" in classes:
            raise CertificateError(
                f"{classes.count('')} of {len(classes)} calibration queries have no class: nobody can say whether "
                "their answers are right. Name their classes (images: one folder per class), or leave them out."
            )
        strangers = Counter(name for name in classes if name not in numbers)
        if strangers:
            log.warning(
                "%d of %d calibration queries are of %d classes that the gallery lacks, such as %s: each answer to "
                "them counts as wrong. If nobody will ask about such classes, check the spelling of their names",
                *(strangers.total(), len(classes), len(strangers), harmless(repr(next(iter(strangers))))),
            )
        numbers |= {name: -1 - number for number, name in enumerate(strangers)}
        return np.array([numbers[name] for name in classes]), classes

    def _labelled(self, model: Embedder | None, images: Any, class_names: Classes) -> Labelled:
        """Return calibration images, or vectors, and their classes."""
        if model is None and self.model and not self.elsewhere:
            raise ServingError("name the gallery's model to certify with images: certify(model, images, risk=...).")
        if model is None:
            record, count = self._queries(images), 0 if class_names is None else len(class_names)
            if count != len(record["uncertainty"]):
                raise CertificateError(
                    f"{count} class names for {len(record['uncertainty'])} calibration queries; give one each: "
                    "certify(None, queries, names, ...)."
                )
            return Labelled(record, *self._truth(() if class_names is None else class_names))
        items = loose_images(images, None, class_names)
        truth = self._truth(items.class_names)
        embedded = model.embedded(items.images)
        check_held_out(model.trained_on(embedded.looks))
        batch = embedded.batch
        return Labelled({"mean": batch.mean.numpy(), "uncertainty": batch.uncertainty.numpy()}, *truth)

    # ---- storage -------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path | None = None) -> Path:
        """Store the gallery, by default where it was opened.

        Raises:
            ServingError: no folder is known, or another process has changed the gallery since it was opened.
            FileError: a file cannot be written, or the folder holds files that do not belong to a gallery.
        """
        target = Path(folder) if folder is not None else self.folder
        if target is None:
            raise ServingError("say where to store the gallery: save(folder).")
        with alone(target):
            again = self.folder is not None and target.resolve() == self.folder.resolve()
            if again and gallery_files.content_on_disk(target) not in ("", self._stored):
                raise ServingError(
                    f"another process has changed the gallery {target} since it was opened; open it again and "
                    "repeat the change, or change it within `with Gallery.changing(folder) as gallery:`."
                )
            return self._write(target)

    def to_arrow(self) -> pa.Table:
        """Return the images as an Arrow table, for a database: `vector` (lists of M float32), `label`, `path`.

        Raises:
            ServingError: the gallery has no vectors.
        """
        import pyarrow as pa

        if not self.dim:
            raise ServingError("this gallery has no vectors that a table could hold.")
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(self._content.mean.reshape(-1)), self.dim)
        return pa.table({"vector": vectors, "label": self.class_names, "path": self.paths})

    def _write(self, target: Path) -> Path:
        """Store the gallery in `target`, whose lock is held."""
        claim_folder(target, GALLERY)
        trust = None if self._trust is None else self._trust.plain()
        content = gallery_files.write(target, self._content, self.digest, trust)
        gallery_trust.write_certificates(target, self.certificates)
        gallery_trust.write_tries(target, self.tried)
        gallery_files.write_canary(target, self.canary)
        self._content, self.folder, self._stored = content, target, self.digest
        return target


class IndexedGallery(Gallery):
    """Images that your own index searches, made by `Gallery.from_labels`.

    It has no vectors: queries come as the results of the index, see `lists`.
    """

    elsewhere = True

    @property
    def left_out(self) -> Answers:
        """Refuse to ask the gallery's own images."""
        raise CertificateError(
            "this gallery has no vectors: certify it with what its index found for labelled queries."
        )

    def match(self, queries: Mapping[str, np.ndarray], k: int) -> Match:
        """Return the match record of queries, given the results of the index, `hits`."""
        return lists.match_of(queries["hits"], self.labels, max(k, VOTES))

    def search(self, vectors: Any, **rules: Any) -> list[Answer]:
        """Return the nearest images among the results of the index; arguments as for `Gallery.search`."""
        if rules.get("strangers"):
            raise ServingError("this gallery has no vectors: how far its images lie apart is not known.")
        return super().search(vectors, **rules)

    def _queries(self, vectors: Any) -> dict[str, np.ndarray]:
        hits = lists.checked(vectors, len(self), int(self.model.removeprefix(ELSEWHERE)))
        return {"hits": hits, "uncertainty": np.zeros(len(hits), dtype=np.float32)}

    def _calibration(self, queries: Labelled | None, groups: Classes, *, fitted: bool) -> Calibration:
        if queries is None:
            return super()._calibration(queries, groups, fitted=fitted)
        answers, once = lists.calibration(queries.rows, queries.labels, self.labels)
        groups = None if groups is None else _as_many(groups, len(queries.names))[once]
        calibration = Calibration(answers, groups=groups)
        return self._fitted(calibration) if fitted else calibration


def directions(vectors: Any, *, overwrite: bool = False) -> np.ndarray:
    """Return vectors (N, M) of any number type as unit rows in float32; `overwrite` reuses their memory if possible.

    Raises:
        ServingError: the vectors are no matrix, or a row is zero or not finite.
    """
    rows = to_numpy(vectors)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise ServingError(f"vectors are {rows.dtype} of shape {rows.shape}; expected (N, M) numbers, a row per image.")
    rows = rows.astype(np.float32, copy=not (overwrite and rows.flags.writeable))
    length = row_norms(rows)[:, None]
    sound = (np.isfinite(length) & (length > 0))[:, 0]
    if not sound.all():
        raise ServingError(f"row {int(np.argmin(sound))} of the vectors is zero or not finite; leave it out.")
    rows /= length
    return rows


def _numbered(paths: Sequence[str] | None, count: int) -> list[str]:
    """Return the names of images, by default `image 0` and so on."""
    return [f"image {number}" for number in range(count)] if paths is None else [str(path) for path in paths]


def _as_many(groups: Sequence[Any] | np.ndarray, count: int) -> np.ndarray:
    """Return the groups as an array, if there is one for each of `count` images."""
    if len(groups) != count:
        raise CertificateError(f"{len(groups)} groups for {count} calibration images; give one each.")
    return to_numpy(groups)
