"""What another index found: certified as the vectors that it is of; what is no similarity is refused."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from probmetric.cli import main
from probmetric.errors import ServingError
from probmetric.metrics import arrays
from probmetric.retrieval import search
from probmetric.serving.gallery import Gallery
from probmetric.serving.lists import match_of
from probmetric.trust.certificates import CertificateError


def blobs(images, seed=0, classes=20, dim=24):
    """Unit rows (N, M) float32 and class names around centres that every seed shares."""
    centres, rng = np.random.default_rng(99).normal(size=(classes, dim)), np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    rows = centres[labels] + 1.4 * rng.normal(size=(len(labels), dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), np.array([f"c{n}" for n in labels])


ROWS, LABELS = blobs(40)
QUERIES, TRUTH = blobs(30, seed=1)


def promise(certificate):
    return certificate.coverage, certificate.queries, certificate.answered, certificate.errors, certificate.groups


@pytest.mark.parametrize("score", ["gap", "disagreement", "cosine,gap"])
@pytest.mark.parametrize("depth", [0, 300])
def test_queries_are_certified_as_by_their_vectors(score, depth):
    vectors, index = Gallery.from_vectors(ROWS, LABELS), Gallery.from_labels(LABELS, depth=depth)
    found = tuple(search(QUERIES, ROWS, depth))[::-1] if depth else QUERIES @ ROWS.T
    expected = vectors.certify(None, QUERIES, TRUTH, risk=0.2, score=score)
    certificate = index.certify(None, found, TRUTH, risk=0.2, score=score)
    assert promise(certificate) == promise(expected)
    np.testing.assert_allclose(certificate.threshold, expected.threshold, atol=1e-6)
    record, by_vectors = (
        each.match.record for each in (index.asked(None, found, TRUTH), vectors.asked(None, QUERIES, TRUTH))
    )
    for name in by_vectors:
        np.testing.assert_allclose(record[name], by_vectors[name], atol=1e-6, err_msg=name)
    answers = index.search(found, risk=certificate, k=3)
    assert [(a.withheld, a.matches[2].path) for a in answers] == [
        (a.withheld, a.matches[2].path) for a in vectors.search(QUERIES, risk=expected, k=3)
    ]


@pytest.mark.parametrize("kind", ["similarities", "lists", "parquet"])
def test_the_commands_say_the_same_of_vectors_and_of_what_an_index_found(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.concatenate([ROWS, ROWS[:3]])  # copies
    labels = np.concatenate([LABELS, LABELS[:3]])
    np.savez("vectors.npz", vector=rows, label=labels)
    near, new = search(rows, rows, 200), search(QUERIES, rows, 200)
    if kind == "similarities":
        np.savez("found.npz", similarities=rows @ rows.T, labels=labels)
        np.savez("new.npz", similarities=QUERIES @ rows.T)
    else:
        np.savez("found.npz", scores=near.cosines, indices=near.rows, labels=labels)
        np.savez("new.npz", scores=new.cosines, indices=new.rows)
    if kind == "parquet":
        pd.DataFrame({"scores": list(near.cosines), "indices": list(near.rows)}).to_parquet("found.parquet")
        pd.DataFrame({"label": labels}).to_csv("found.csv")
    np.savez("queries.npz", vector=QUERIES)
    said = []
    for file, asking in (
        ("vectors.npz", "queries.npz"),
        ("found.parquet" if kind == "parquet" else "found.npz", "new.npz"),
    ):
        assert main(["certify", file, "--risk", "0.2"]) == 0
        certified = capsys.readouterr().out.split("kept in")[0]
        certified = re.sub(r" \(of 80\d: .*?\) are", " are", certified)  # copies are left out before, or by `certify`
        assert main(["search", file, asking, "--risk", "0.2"]) == 0
        shown = capsys.readouterr().out
        said.append((certified, shown.count("withheld"), shown.count("nearest:")))
        assert main(["report", file]) == 0
        page = Path(capsys.readouterr().out.strip()).read_text()
        assert "Scores that cost nothing" in page
        said[-1] += tuple(re.findall("Of 100 questions.*?</p>|Certificates</h2>.*?</table>", page))
    assert said[0] == said[1]


def test_queries_of_a_file_have_classes_groups_and_splits(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = {"similarities": QUERIES @ ROWS.T, "labels": LABELS, "query_labels": TRUTH}
    walks = np.arange(600) // 4
    np.savez("found.npz", **columns, split=np.where(np.arange(600) < 500, "query", "other"), walk=walks)
    assert main(["certify", "found.npz", "--risk", "0.3", "--group", "walk"]) == 2
    assert "the column `split` has 'other' (100) beside its other names" in capsys.readouterr().err
    np.savez("found.npz", **columns, split=np.where(np.arange(600) < 500, "query", "gallery"), walk=walks)
    assert main(["certify", "found.npz", "--risk", "0.3", "--group", "walk"]) == 0
    assert "queries in groups like the" in capsys.readouterr().out
    certificate = Gallery.open("found.npz.gallery").certificates[0]
    assert 60 < certificate.groups < 125  # of the 125 some fit P(right)
    np.savez("found.npz", **columns, person=walks)
    assert main(["certify", "found.npz", "--risk", "0.3"]) == 0
    assert "'person' says what queries share" in capsys.readouterr().err
    np.savez("vectors.npz", vector=QUERIES, label=TRUTH)
    assert main(["certify", "found.npz", "vectors.npz", "--risk", "0.3"]) == 2
    assert main(["certify", "found.npz", "--trained-on", "vectors.npz", "--risk", "0.3"]) == 2


SCORES, INDICES = (each[:, :12] for each in tuple(search(QUERIES, ROWS, 12))[::-1])
FAR = 2 - 2 * QUERIES @ ROWS.T


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((SCORES[:, ::-1], INDICES[:, ::-1]), "rise; expected similarities"),
        ((np.sqrt(2 - 2 * SCORES), INDICES), "rise; expected similarities"),
        ((SCORES, np.where(np.arange(12) != 2, INDICES, 800)), "index 800; a gallery row is"),
        ((SCORES, INDICES + 0.5), "a gallery row is a whole number"),
        ((SCORES, np.where(np.arange(12) != 2, INDICES, -1)), "index -1; the index found fewer"),
        ((SCORES, np.repeat(INDICES[:, :1], 12, axis=1)), "a gallery row twice"),
        ((np.where(np.arange(12) != 2, SCORES, np.nan), INDICES), "similarity nan"),
        ((SCORES[:, :1], INDICES[:, :1]), "k at least 2"),
        ((SCORES[:, :9], INDICES[:, :9]), "asked by lists of 10"),
        ((SCORES, INDICES[:, :9]), "expected both"),
        (QUERIES @ ROWS.T, "asked by lists of 10"),
        (FAR, "expected cosines"),
        (QUERIES @ ROWS[:9].T, "expected numbers"),
        (FAR / FAR.max() - 1e-3, "are these distances"),
        (np.full((600, 800), -np.inf), "query 0 may find 0 of 800 images"),
        (np.full((600, 800), np.nan), "similarity nan"),
    ],
)
def test_what_is_no_similarity_is_refused(found, words):
    lists = isinstance(found, tuple) or "lists of" in words
    gallery = Gallery.from_labels(LABELS, depth=10 if lists else 0)
    with pytest.raises((ServingError, CertificateError), match=words):
        gallery.certify(None, found, TRUTH, risk=0.2)


def test_queries_that_find_themselves_are_refused():
    near = search(ROWS, ROWS, 12)
    for gallery, found in (
        (Gallery.from_labels(LABELS), ROWS @ ROWS.T),
        (Gallery.from_labels(LABELS, depth=12), (near.cosines, near.rows)),
    ):
        with pytest.raises(CertificateError, match="find themselves"):
            gallery.certify(None, found, LABELS, risk=0.2)
    with pytest.raises(CertificateError, match="has no vectors"):
        gallery.certify(risk=0.2)
    with pytest.raises(ServingError, match="how far its images lie apart"):
        gallery.search((near.cosines, near.rows), strangers=0.01)


@pytest.mark.parametrize("kind", ["vectors", "similarities"])
@pytest.mark.parametrize("levels", [127, 7])
def test_queries_that_find_themselves_in_a_compressed_gallery_are_told(kind, levels, caplog):
    wide = np.random.default_rng(7).normal(size=(24, 96)) / 96**0.5
    rows, queries = (arrays.normalized((each @ wide).astype(np.float32)) for each in (ROWS, QUERIES))
    compressed = arrays.normalized(np.round(rows / np.abs(rows).max() * levels).astype(np.float32))
    shuffled = np.random.default_rng(0).permutation(len(ROWS))
    gallery = Gallery.from_vectors(compressed, LABELS) if kind == "vectors" else Gallery.from_labels(LABELS)
    honest, some = (each if kind == "vectors" else each @ compressed.T for each in (queries, rows[shuffled]))
    gallery.certify(None, honest, TRUTH, risk=0.2, score="gap")
    assert "does the gallery hold them" not in caplog.text
    if levels == 127:
        with pytest.raises(CertificateError, match=r"are in the gallery too|find themselves in the gallery"):
            gallery.certify(None, some, LABELS[shuffled], risk=0.2, score="gap")
    else:
        gallery.certify(None, some, LABELS[shuffled], risk=0.2, score="gap")
        assert "does the gallery hold them" in caplog.text


def test_close_images_of_a_class_do_not_find_themselves():
    """A model that makes its classes points: queries are as near to two images as copies are, and to both alike."""
    labels = np.arange(400) % 20
    rows = np.eye(96)[labels] + 5e-4 * np.random.default_rng(8).normal(size=(400, 96))
    gallery = Gallery.from_vectors(rows[:200], labels[:200])
    assert gallery.search(rows[200:], k=2)[0].matches[1].similarity > 0.9999
    assert gallery.asked(None, rows[200:], labels[200:]).right.all()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_what_an_index_found_may_be_tensors_with_gradients(precision):
    scores = torch.tensor([[0.75, 0.5, 0.25]], dtype=precision, requires_grad=True)
    (answer,) = Gallery.from_labels("abc").search(scores)
    assert [match.similarity for match in answer.matches] == [0.75, 0.5, 0.25]
    (answer,) = Gallery.from_labels("abc", depth=2).search((scores[:, :2], torch.tensor([[2, 0]])))
    assert [match.class_name for match in answer.matches] == ["c", "a"]


@pytest.mark.parametrize("found", [[[0.5, 0.4], [0.3]], ([[0.5]], [[0]], [[1]])])
def test_what_has_no_form_of_results_is_said_in_a_sentence(found):
    with pytest.raises(ValueError, match=r"rows have several lengths|expected numbers \(Q, 3\)"):
        Gallery.from_labels("abc").search(found)


def test_copies_of_queries_count_once():
    found, twice = QUERIES @ ROWS.T, np.r_[np.arange(600), np.arange(300)]
    gallery = Gallery.from_labels(LABELS)
    once, again = (gallery.asked(None, found[rows], TRUTH[rows]) for rows in (np.arange(600), twice))
    np.testing.assert_array_equal(once.right, again.right)


def test_of_images_exactly_as_near_the_first_is_the_answer():
    """Of 257 it was the 247th."""
    (answer,) = Gallery.from_labels(range(257)).search(np.full((1, 257), 0.5), k=3)
    assert [match.path for match in answer.matches] == ["image 0", "image 1", "image 2"]


def test_short_lists_say_what_they_cannot(caplog):
    Gallery.from_labels(LABELS, depth=4)
    assert "so few votes" in caplog.text
    with pytest.raises(ServingError, match="depth is 1"):
        Gallery.from_labels(LABELS, depth=1)
    gallery = Gallery.from_labels(LABELS, depth=10)
    gallery.certify(None, (SCORES, INDICES), TRUTH, risk=0.3)
    assert "lists of 10 show one class only" in caplog.text
    lists = np.array([[[0.9, 0], [0.8, 1], [0.5, 2]], [[0.9, 0], [0.8, 2], [0.5, 1]]])
    np.testing.assert_allclose(match_of(lists, np.array([3, 3, 3, 4]), 10).gap, [0.4, 0.4])
    np.testing.assert_allclose(match_of(lists, np.array([3, 3, 4, 4]), 10).gap, [0.4, 0.1])


def test_a_query_may_be_of_the_person_in_its_row_of_the_gallery():
    """300 people, one image each: that of row i answers query i, and is not the query."""
    similarities = np.random.default_rng(0).uniform(-0.2, 0.2, (300, 300))
    np.fill_diagonal(similarities, np.random.default_rng(1).uniform(0.6, 0.9, 300))
    people = [f"person {number}" for number in range(300)]
    assert Gallery.from_labels(people).certify(None, similarities, people, risk=0.1, score="cosine").coverage == 1.0
