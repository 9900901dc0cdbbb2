"""How far the answers of a gallery can be trusted: P(right), certificates, strangers. Kept beside the gallery.

    trust.json   gallery digest -> map from scores to P(right), how far the gallery's images lie apart
    certificate-<risk>.json

Both name the gallery by digest and are forgotten when it changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.io import FileError, present, read_json, signed, unsigned, write_json
from probmetric.trust.certificates import Certificate, CertificateError
from probmetric.trust.p_right import PRight

if TYPE_CHECKING:
    from probmetric.serving._gallery import Gallery
    from probmetric.serving._model import Model

TRUST = "trust.json"
LONELY = 1000


@dataclass(frozen=True)
class Trust:
    """What a gallery knows of its own answers.

    Attributes:
        p_right: P(right) from the scores of an answer; None where classes are unknown or all answers alike.
        apart: 1 - cosine of gallery images to their nearest other image, sorted, `LONELY` at most.
    """

    p_right: PRight | None
    apart: np.ndarray

    def lonelier(self, cosine: np.ndarray) -> np.ndarray:
        """Share (Q,) of the gallery's images as far from their nearest as a query is, by its `cosine` (Q,)."""
        below = np.searchsorted(self.apart, 1.0 - cosine, side="left")
        return np.asarray(1.0 - below / max(len(self.apart), 1))


def labels_of(class_names: Sequence[str]) -> np.ndarray:
    """Numbers (N,) of classes by name, -1 where there is no name."""
    names, labels = np.unique(np.array(class_names, dtype=str), return_inverse=True)
    return np.where(np.array(class_names, dtype=str) == "", -1, labels) if len(names) else labels


def learn(gallery: Gallery) -> Trust:
    """What each image of a gallery, asked among the others, says about its answers."""
    from probmetric.retrieval.neighbours import nearest_neighbours
    from probmetric.trust.deployed import deployed_p_right

    labels, record = labels_of(gallery.class_names), gallery.record
    found: PRight | None = None
    try:
        found = deployed_p_right(record, labels)
    except (CertificateError, ValueError):
        found = None  # no classes, one class, or answers that are all right: nothing to learn from
    chosen = np.random.default_rng(0).permutation(len(gallery))[:LONELY]
    cosines = np.empty(0)
    if len(gallery) > 1:
        nearest = nearest_neighbours(record["mean"][np.sort(chosen)], record["mean"], k=2)
        own = nearest.indices == np.sort(chosen)[:, None]
        own[~own.any(axis=1), 0] = True
        cosines = nearest.similarity[~own]
    return Trust(found, np.sort(1.0 - cosines))


def certify(
    gallery: Gallery,
    model: Model,
    images: Any = None,
    class_names: Sequence[str] | None = None,
    *,
    risk: float,
    confidence: float = 0.9,
    score: str = "",
) -> Certificate:
    """See `Gallery.certify`."""
    from probmetric.trust.deployed import calibration_answers, certify_answers, records_digest

    gallery.check_model(model)
    record, labels = gallery.record, labels_of(gallery.class_names)
    asked, known, p_right = None, None, None
    if images is not None:
        asked, known = _asked(gallery, model, images, class_names)
        p_right = gallery.trust.p_right if score in ("", "p_right") else None
    return certify_answers(
        calibration_answers(record, labels, asked, known),
        labels,
        risk=risk,
        confidence=confidence,
        score=score,
        p_right=p_right,
        gallery=gallery.digest,
        weights=model.digest,
        calibration=records_digest(
            record["mean"] if asked is None else asked["mean"], labels if known is None else known
        ),
    )


def _asked(
    gallery: Gallery, model: Model, images: Any, class_names: Sequence[str] | None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Record and classes (Q,) of calibration images, the classes numbered as the gallery's; -1 for others."""
    from probmetric.data.loose import loose_images

    items = loose_images(images, None, class_names)
    if "" in items.class_names:
        raise CertificateError(
            "calibration images without a class: nobody can say whether their answers are right. Name their classes, "
            "one folder per class."
        )
    numbers = dict(zip(gallery.class_names, labels_of(gallery.class_names), strict=True))
    found = model.embed(items.images)
    record = {"mean": found.mean.numpy(), "uncertainty": found.uncertainty.numpy()}
    return record, np.array([numbers.get(name, -1) for name in items.class_names])


def chosen(certificates: Sequence[Certificate], risk: float, gallery: Gallery, model: Model) -> Certificate:
    """Of the certificates for at most `risk`, the one that answers most.

    Raises:
        CertificateError: there is none, or none for this gallery and model, or nothing could be certified.
    """
    fitting = [each for each in certificates if each.risk <= risk]
    if not fitting:
        known = ", ".join(f"{each.risk:g}" for each in certificates) or "none"
        raise CertificateError(
            f"this gallery has no certificate for a risk of {risk:g} (there are: {known}). Make one from labelled "
            "images that are not in it: `probmetric certify`, or gallery.certify(model, images, risk=...)."
        )
    best = max(fitting, key=lambda each: each.coverage)
    best.check(gallery=gallery.digest, weights=model.digest)
    return best


def judged(
    gallery: Gallery, mean: np.ndarray, uncertainty: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Scores of the answers to queries (Q,M), and P(right) (Q,) where the gallery can say."""
    from probmetric.trust.deployed import answer_doubts

    doubts, _ = answer_doubts(
        gallery.record, labels_of(gallery.class_names), {"mean": mean, "uncertainty": uncertainty}
    )
    p_right = gallery.trust.p_right
    return doubts, None if p_right is None else p_right.probability(doubts)


def write(folder: Path, digest: str, trust: Trust | None, certificates: Sequence[Certificate]) -> None:
    """Keep beside a gallery what is known of its answers; what was kept of an earlier state is removed."""
    wanted = {f"certificate-{each.risk:g}.json": each for each in certificates}
    for path in folder.glob("certificate-*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, certificate in wanted.items():
        certificate.save(folder / name)
    (folder / TRUST).unlink(missing_ok=True)
    if trust is not None:
        p_right = None if trust.p_right is None else trust.p_right.plain()
        write_json(folder / TRUST, signed({"gallery": digest, "p_right": p_right, "apart": trust.apart.tolist()}))


def read(folder: Path, digest: str) -> tuple[Trust | None, list[Certificate]]:
    """What `write` kept; what belongs to another gallery is left out, certificates to be refused when they are asked.

    Raises:
        FileError: a file is damaged.
        CertificateError: a certificate is none.
    """
    certificates = [Certificate.load(path) for path in sorted(folder.glob("certificate-*.json"))]
    if not present(folder / TRUST):
        return None, certificates
    values = unsigned(read_json(folder / TRUST, "delete it"), folder / TRUST, "delete it")
    try:
        if values["gallery"] != digest:
            return None, certificates
        p_right = None if values["p_right"] is None else PRight.of(values["p_right"])
        return Trust(p_right, np.sort(np.array(values["apart"], dtype=np.float64))), certificates
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{folder / TRUST} is damaged ({error!r}); delete it.") from error
