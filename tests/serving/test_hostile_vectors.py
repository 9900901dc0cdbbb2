"""Vectors as people have them: filtered queries, other calibration sets, missing and misspelt classes, mixed files."""

from __future__ import annotations

import importlib
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import probmetric
from probmetric import Gallery
from probmetric.cli import main
from probmetric.data.manifest import DataError
from probmetric.errors import ServingError
from probmetric.metrics.arrays import class_names_of
from probmetric.serving.frames import MODEL
from probmetric.serving.gallery_trust import Calibration
from probmetric.serving.vectors import calibrating, read_vectors
from probmetric.trust.certificates import CertificateError


def letters() -> tuple[np.ndarray, np.ndarray]:
    """Vectors (2000, 64) of unit length and their classes, in random order."""
    vectors, labels = probmetric.example_vectors()
    order = np.random.default_rng(0).permutation(len(vectors))
    return vectors[order] / np.linalg.norm(vectors[order], axis=1, keepdims=True), labels[order]


VECTORS, LABELS = letters()
SHOWN, ASKED, NEW = slice(0, 1000), slice(1000, 1600), slice(1600, 2000)
NOISE = np.random.default_rng(1).normal(size=VECTORS.shape) / VECTORS.shape[1] ** 0.5
NOISY = VECTORS + 0.9 * NOISE


def table(path: Path, rows: slice, vectors: np.ndarray = VECTORS, **columns) -> Path:
    pd.DataFrame({"vector": list(vectors[rows].astype(np.float32)), "label": LABELS[rows]}).assign(
        **columns
    ).to_parquet(path)
    return path


def answered(answers, truth) -> tuple[int, float]:
    """How many answers are given, and the share of them that is wrong."""
    wrong = [each.matches[0].class_name != name for each, name in zip(answers, truth, strict=True) if not each.withheld]
    return len(wrong), float(np.mean(wrong)) if wrong else 0.0


def test_an_answer_does_not_depend_on_what_another_query_may_find():
    """One query filtered to two images made 400 of 400 answers be given, .28 of them wrong, at a risk of .1."""
    gallery = Gallery.from_labels(LABELS[SHOWN])
    gallery.certify(None, VECTORS[ASKED] @ VECTORS[SHOWN].T, LABELS[ASKED], risk=0.1)
    cosines = VECTORS[NEW] @ VECTORS[SHOWN].T
    whole = gallery.search(cosines, risk=0.1)
    cosines[0, 2:] = -np.inf
    with pytest.raises(ServingError, match="query 0 may find 2 of 1000 images"):
        gallery.search(cosines, risk=0.1)
    cosines[0, 10:], cosines[0, :10] = -np.inf, 0.1
    again = gallery.search(cosines, k=20, risk=0.1)
    assert [each.p_right for each in again[1:]] == [each.p_right for each in whole[1:]]
    cosines[1, 2:] = -np.inf
    with pytest.raises(ServingError, match="query 1 may find 2"):
        gallery.certify(None, cosines, LABELS[NEW], risk=0.1)


def test_files_that_say_that_two_models_wrote_them_are_not_compared(tmp_path, capsys):
    """Queries by another model of as many dimensions were answered, and certified, without a word."""

    def written(name: str, rows: slice, model: str) -> Path:
        columns = {"vector": list(VECTORS[rows].astype(np.float32)), "label": LABELS[rows].tolist()}
        file = tmp_path / name
        pq.write_table(pa.table(columns).replace_schema_metadata({MODEL: model} if model else None), file)
        return file

    shop, strange = written("v.parquet", SHOWN, "a"), written("b.parquet", NEW, "b")
    written("a.parquet", NEW, "a")
    written("n.parquet", NEW, "")
    for arguments in (["search", shop, strange], ["certify", shop, strange, "--risk", "0.3"]):
        assert main([str(each) for each in arguments]) == 2
        assert "b.parquet holds vectors of another model than" in capsys.readouterr().err
        assert main([str(each).replace("b.parquet", "a.parquet") for each in arguments]) == 0
        assert main([str(each).replace("b.parquet", "n.parquet") for each in arguments]) == 0
    assert main(["certify", str(shop), "--risk", "0.3", "--trained-on", str(strange)]) == 2


def test_the_newest_calibration_queries_decide(tmp_path, caplog):
    """A certificate of clean queries covered more, so that it answered noisy ones: .36 were wrong, .2 promised."""
    gallery = Gallery.from_vectors(VECTORS[SHOWN], LABELS[SHOWN])
    old = gallery.certify(None, VECTORS[ASKED], LABELS[ASKED], risk=0.1)
    new = gallery.certify(None, NOISY[ASKED], LABELS[ASKED], risk=0.3)
    assert gallery.certificates == [new]
    assert "certificate(s) for a risk of 0.1 were made with other calibration queries" in caplog.text
    assert answered(gallery.search(NOISY[NEW], risk=0.3), LABELS[NEW])[1] <= 0.36
    assert Gallery.open(gallery.save(tmp_path / "g")).certificates == [new]
    assert answered(gallery.search(NOISY[NEW], risk=old), LABELS[NEW])[0] > 0, "the certificate that is named decides"
    gallery.remove([gallery.paths[0]])
    with pytest.raises(CertificateError):
        gallery.search(NOISY[NEW], risk=old)


def test_where_nothing_can_be_certified_now_an_older_certificate_answers_no_more(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(Path("g.parquet"), SHOWN)
    table(Path("clean.parquet"), ASKED)
    table(Path("noisy.parquet"), ASKED, VECTORS + 3 * NOISE)
    new = table(Path("new.parquet"), NEW, VECTORS + 3 * NOISE)
    assert main(["certify", "g.parquet", "clean.parquet", "--risk", "0.1"]) == 0
    assert main(["certify", "g.parquet", "noisy.parquet", "--risk", "0.1"]) == 2
    assert "nothing can be certified: at no threshold is it shown" in capsys.readouterr().err
    assert main(["search", "g.parquet", str(new), "--risk", "0.1", "--csv", "-k", "1"]) == 0
    assert {line.split(",")[3] for line in capsys.readouterr().out.splitlines()[1:]} == {"1"}, "all are withheld"


def test_a_refused_certificate_leaves_the_stored_gallery_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(Path("g.parquet"), SHOWN)
    queries = str(table(Path("q.parquet"), ASKED))
    assert main(["certify", "g.parquet", queries, "--risk", "0.1"]) == 0
    before = Gallery.open("g.parquet.gallery").digest
    table(Path("g.parquet"), NEW)
    assert main(["certify", "g.parquet", queries, "--risk", "0.1", "--score", "typo"]) == 2
    assert Gallery.open("g.parquet.gallery").digest == before
    assert main(["search", "g.parquet.gallery", queries, "--risk", "0.1"]) == 0


def enrolment(noise: float) -> tuple[np.ndarray, np.ndarray]:
    """200 people with one row each in the gallery, then 1500 queries."""
    generator = np.random.default_rng(0)
    people = np.concatenate([np.arange(200), generator.integers(0, 200, 1500)])
    centres = generator.normal(size=(200, 32))
    return centres[people] + noise * generator.normal(size=(len(people), 32)), np.array([f"p{n}" for n in people])


def test_a_gallery_of_one_row_a_class_is_certified_and_reported(tmp_path, capsys, monkeypatch):
    """Ten neighbours are ten classes, so disagreement is one number; the report ended in a traceback."""
    monkeypatch.chdir(tmp_path)
    rows, people = enrolment(1.0)
    split = ["gallery"] * 200 + ["calibration"] * 1500
    pd.DataFrame({"vector": list(rows), "label": people, "split": split}).to_parquet("people.parquet")
    assert main(["certify", "people.parquet", "--risk", "0.2"]) == 0
    assert "P(right) decides" in capsys.readouterr().out
    answers = Gallery.open("people.parquet.gallery").search(rows[200:], risk=0.2)
    assert answered(answers, people[200:])[0] > 300
    assert main(["report", "people.parquet"]) == 0


def test_a_report_of_three_rows_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [[1.0, 0.0], [0.9, 0.1], [1.0, 0.0]]
    pd.DataFrame({"vector": rows, "label": ["a", "a", "b"]}).to_parquet("few.parquet")
    assert main(["report", "few.parquet"]) == 0


@pytest.mark.parametrize("index", ["IndexIDMap", "IndexIDMap2"])
def test_a_faiss_index_with_ids_is_read_in_the_order_of_its_rows(index, tmp_path):
    """`reconstruct_n` of such an index ended the process."""
    faiss = importlib.import_module("faiss")
    made = getattr(faiss, index)(faiss.IndexFlatIP(64))
    made.add_with_ids(VECTORS[:50].astype(np.float32), 7 * np.arange(50) + 3)
    faiss.write_index(made, str(tmp_path / "i.faiss"))
    pd.DataFrame({"label": LABELS[:50]}).to_csv(tmp_path / "i.csv", index=False)
    code = "import pathlib, probmetric.serving.vectors as v; print(*v.read_vectors(pathlib.Path('i.faiss')).rows[49])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.array(done.stdout.split(), dtype=float), VECTORS[49], atol=1e-6)


def test_one_reading_of_a_class_whatever_the_file_makes_of_it():
    nothing = [None, float("nan"), np.float64("nan"), pd.NA, "", "nan", "NaN", "<NA>", "None", b"nan"]
    assert class_names_of(nothing) == [""] * len(nothing)
    assert class_names_of([3, 3.0, np.float32(3), np.int64(3), "3", b"3", " 3 "]) == ["3"] * 7
    assert class_names_of([unicodedata.normalize("NFD", "é"), 2.5]) == ["é", "2.5"]


def test_labels_that_are_missing_are_no_class(tmp_path):
    """An array of objects turned into text has "nan" where there was none: it became a class of its own."""
    labels = np.where(np.arange(100) % 3, LABELS[:100].astype(object), np.nan).astype(str)
    np.savez(tmp_path / "f.npz", vector=VECTORS[:100], label=labels, walk=labels)
    read = read_vectors(tmp_path / "f.npz")
    assert read.labels == [name if row % 3 else "" for row, name in enumerate(LABELS[:100].tolist())]
    with pytest.raises(DataError, match="34 of 100 rows have no walk"):
        read_vectors(tmp_path / "f.npz", group="walk")


@pytest.mark.parametrize("kind", ["parquet", "csv", "frame"])
def test_whole_numbers_are_one_class_with_empty_cells_and_without(tmp_path, kind):
    for labels in ([3.0, 4.0, None], [3.0, 4.0, 3.0]):
        table = pd.DataFrame({"vector": list(VECTORS[:3]), "label": pd.Series(labels)})
        if kind == "frame":
            names = Gallery.from_vectors(table).class_names
        elif kind == "parquet":
            table.to_parquet(tmp_path / "v.parquet")
            names = read_vectors(tmp_path / "v.parquet").labels
        else:
            np.save(tmp_path / "v.npy", VECTORS[:3])
            table[["label"]].assign(row=range(3)).to_csv(tmp_path / "v.csv", index=False)
            names = read_vectors(tmp_path / "v.npy").labels
        assert names == ["3", "4", "3" if labels[2] else ""]


def test_queries_without_a_class_are_refused_and_unknown_classes_are_counted(caplog):
    """They counted as wrong answers without a word: nothing could be certified, and the model was blamed."""
    gallery = Gallery.from_vectors(VECTORS[SHOWN], pd.Series(LABELS[SHOWN]).astype("string"))
    names = [None if row % 2 else name for row, name in enumerate(LABELS[ASKED])]
    with pytest.raises(CertificateError, match="300 of 600 calibration queries have no class"):
        gallery.certify(None, VECTORS[ASKED], names, risk=0.1)
    names = [f"{name}?" if row % 3 == 0 else f" {name}" for row, name in enumerate(LABELS[ASKED])]
    gallery.certify(None, VECTORS[ASKED], names, risk=0.5)
    assert "200 of 600 calibration queries are of " in caplog.text
    spelled = [unicodedata.normalize("NFD", f"é {name} ") for name in LABELS]
    folders = Gallery()  # of photographs: their classes are the names of folders, as they are
    folders.take(VECTORS[SHOWN].astype(np.float32), [str(n) for n in range(1000)], spelled[SHOWN])
    caplog.clear()
    folders.certify(None, VECTORS[ASKED], spelled[ASKED], risk=0.3)
    folders.certify(None, VECTORS[ASKED], [f"é {name}" for name in LABELS[ASKED]], risk=0.3)
    assert "classes that the gallery lacks" not in caplog.text
    frame = pd.DataFrame({"vector": list(VECTORS[:4]), "label": pd.Series(["a", None, "b", "b"], dtype="string")})
    assert Gallery.from_vectors(frame).class_names == ["a", "", "b", "b"]


def test_columns_that_are_none_of_ours_do_no_harm(tmp_path, caplog):
    """Lists of several lengths, a number called `scores` and a person's `name` made a sound file unreadable."""
    tags = [["x"] * (1 + row % 3) for row in range(1000)]
    path = table(tmp_path / "g.parquet", SHOWN, tags=tags, scores=1.0, name=LABELS[SHOWN])
    vectors = read_vectors(path)
    assert vectors.rows.shape == (1000, 64)
    assert vectors.names[:2] == ["g/0", "g/1"]
    assert read_vectors(table(tmp_path / "g.parquet", SHOWN, id=np.arange(1000) + 5)).names[0] == "5"
    with pytest.raises(ServingError, match=r"'a\.jpg' is the name of 2"):
        Gallery.from_vectors(VECTORS[:3], LABELS[:3], ["a.jpg", "./a.jpg", "b.jpg"])


def test_what_a_file_lacks_is_named_with_the_option(tmp_path, caplog):
    vectors = {"vector": list(VECTORS[:100])}
    pd.DataFrame(vectors | {"person": LABELS[:100]}).to_parquet(tmp_path / "p.parquet")
    with pytest.raises(ServingError, match="no classes in label, labels, class, class_name; it has vector, person"):
        calibrating(tmp_path / "p.parquet")
    gallery, _ = calibrating(tmp_path / "p.parquet", label="person")
    assert "person" not in gallery.columns, "a class is not what queries share"
    pd.DataFrame(vectors | {"label": LABELS[:100], "walk": [None, *"a" * 99]}).to_parquet(tmp_path / "w.parquet")
    with pytest.raises(DataError, match="1 of 100 rows have no walk"):
        read_vectors(tmp_path / "w.parquet", group="walk")
    np.savez(tmp_path / "five.npz", vector=VECTORS[:9, :5], label=LABELS[:9])
    with pytest.raises(ServingError, match=r"vectors of 5 dimensions, .* of 64"):
        calibrating(tmp_path / "p.parquet", label="person", trained_on=tmp_path / "five.npz")


def test_a_damaged_gallery_names_the_way_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(Path("g.parquet"), SHOWN)
    assert main(["certify", "g.parquet", "--risk", "0.2"]) == 0
    Path("g.parquet.gallery/certificate-0.2-0.9.json").write_text("{}")
    assert main(["certify", "g.parquet", "--risk", "0.2"]) == 2
    assert "remove the folder g.parquet.gallery and certify again" in capsys.readouterr().err


def test_shares_name_classes_whichever_program_wrote_them():
    names = np.array(["e\u0301", "3"])[np.arange(600) % 2]
    gallery = Gallery.from_vectors(VECTORS[SHOWN][:600], names)
    shares = {"\u00e9": 0.2, 3.0: 0.8}
    assert gallery.certify(None, VECTORS[ASKED], names, risk=0.9, score="gap", shares=shares).weighted


def test_a_class_has_one_share(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(Path("g.parquet"), SHOWN)
    queries = str(table(Path("q.parquet"), ASKED))
    Path("shares.csv").write_text("class,share\na,1\na,50\n")
    assert main(["certify", "g.parquet", queries, "--risk", "0.2", "--shares", "shares.csv"]) == 2
    assert "names the class 'a' more than once" in capsys.readouterr().err


def test_answers_that_decide_how_to_certify_vouch_for_nothing():
    """A fifth that is all right was certified with the others by another score: 12 % of these were false."""
    gallery = Gallery.from_vectors(VECTORS[SHOWN], LABELS[SHOWN])
    answers = gallery.asked(None, VECTORS[ASKED], LABELS[ASKED])
    right = answers.rows(answers.right)
    calibration = Calibration(right, groups=np.arange(len(right.right)))
    fitted = calibration.with_p_right()
    assert fitted.p_right is None
    assert 0.7 < len(fitted.answers.right) / len(right.right) < 0.9
    assert fitted.groups is not None
    assert len(fitted.groups) == len(fitted.answers.right)


@pytest.mark.parametrize("classes", [torch.tensor([0, 1]), list(torch.tensor([0, 1])), np.array([[0], [1]])])
def test_classes_in_a_tensor_have_the_names_of_their_numbers(classes):
    """They were called `tensor(0)`, so that queries of class 0 were strangers."""
    rows = np.eye(2)
    for gallery in (Gallery.from_vectors(rows, classes), Gallery.from_labels(classes)):
        assert gallery.class_names == ["0", "1"]
    assert Gallery.from_vectors(rows, [0, 1]).asked(None, rows + 0.4, classes).right.all()


def test_a_rule_that_vectors_cannot_follow_is_refused():
    """All answers were given at `withhold=0`."""
    with pytest.raises(ServingError, match="leave out `withhold`"):
        Gallery.from_vectors(np.eye(2), "ab").search(np.eye(2), withhold=0.0)


@pytest.mark.parametrize("gallery", [Gallery(), Gallery.from_labels("ab")])
def test_a_gallery_without_vectors_is_no_table_of_vectors(gallery):
    with pytest.raises(ServingError, match="no vectors"):
        gallery.to_arrow()


@pytest.mark.parametrize("k", [0, 2.0, "2"])
def test_a_number_of_matches_is_a_whole_number(k):
    with pytest.raises(ServingError, match=f"k is {k}; ask for at least 1 match, a whole number"):
        Gallery.from_vectors(np.eye(2), "ab").search(np.eye(2), k=k)
