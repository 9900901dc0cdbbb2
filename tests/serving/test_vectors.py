"""Vectors of any model: read, certified, searched, reported, without torch and within the promise."""

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import probmetric
from probmetric.cli import main
from probmetric.cli.vectors import promised
from probmetric.data.manifest import DataError
from probmetric.errors import ServingError
from probmetric.io import FileError
from probmetric.serving.gallery import Gallery
from probmetric.serving.gallery_trust import tries_to_pay
from probmetric.serving.vectors import Vectors, directions, read_vectors, warn_of_bursts
from probmetric.serving.vectors_page import write_page
from probmetric.trust.certificates import CertificateError
from probmetric.trust.deployed import certify_record

_labelled = Gallery._labelled


def blobs(images, seed=0, classes=30, dim=24, spread=1.3):
    """Vectors (N, M) and class names around centres that every seed shares."""
    centres = np.random.default_rng(99).normal(size=(classes, dim))
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    return centres[labels] + spread * rng.normal(size=(len(labels), dim)), [f"class {label}" for label in labels]


def frame(vectors, labels, **columns):
    return pd.DataFrame({"vector": list(vectors.astype(np.float32)), "label": labels} | columns)


def as_parquet(path, vectors, labels):
    frame(vectors, labels).to_parquet(path)


def as_npz(path, vectors, labels):
    np.savez(path, vector=vectors.astype(np.float16), label=np.array(labels))


def as_npy(path, vectors, labels):
    np.save(path, vectors)
    pd.DataFrame({"label": labels}).to_csv(path.with_suffix(".csv"), index=False)


@pytest.mark.parametrize(
    ("name", "write"), [("v.parquet", as_parquet), ("v.npz", as_npz), ("v.npy", as_npy)], ids=["parquet", "npz", "npy"]
)
def test_every_kind_of_file_gives_the_same_rows(tmp_path, name, write):
    vectors, labels = blobs(2)
    write(tmp_path / name, vectors, labels)
    table = read_vectors(tmp_path / name)
    np.testing.assert_allclose(table.rows.astype(float), vectors, atol=5e-3)
    assert table.labels == labels
    assert table.names[3] == "v/3"
    assert table.parts == (table, None)


def test_splits_and_wrong_files(tmp_path, caplog):
    vectors, labels = blobs(2)
    file = tmp_path / "v.parquet"
    frame(vectors, labels, split=["gallery", "query"] * 30).to_parquet(file)
    gallery, queries = read_vectors(file).parts
    assert (len(gallery), len(queries)) == (30, 30)
    frame(vectors, labels, split=["train"] * 60).to_parquet(file)
    assert len(read_vectors(file).parts[0]) == 60, "what `probmetric vectors` writes"
    assert "the splits 'train' (60) name no gallery; all rows are taken" in caplog.text
    frame(vectors, labels, split=["gallery", "Gallery", "query"] * 20).to_parquet(file)
    with pytest.raises(ServingError, match=r"the column `split` has 'Gallery' \(20\) beside its other names"):
        _ = read_vectors(file).parts
    frame(vectors, labels, split=["gallery"] * 60).to_parquet(file)
    with pytest.raises(ServingError, match="the splits are gallery; expected"):
        _ = read_vectors(file).parts
    with pytest.raises(DataError, match="no column 'species'"):
        read_vectors(file, label="species")
    with pytest.raises(DataError, match=r"none\.parquet is missing"):
        read_vectors(tmp_path / "none.parquet")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match="no file of vectors"):
        read_vectors(tmp_path / "notes.txt")


def test_certify_and_search_keep_the_promise(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    as_parquet(tmp_path / "v.parquet", *blobs(60))
    new, truth = blobs(40, seed=1)
    frame(new, truth, path=truth).drop(columns="label").assign(
        path=[f"{i} {t}" for i, t in enumerate(truth)]
    ).to_parquet(tmp_path / "new.parquet")
    assert main(["certify", "v.parquet", "--risk", "0.1"]) == 0
    assert "at most 0.1 of the answers given are wrong" in capsys.readouterr().out
    assert main(["search", "v.parquet", "new.parquet", "--risk", "0.1", "--csv", "-k", "1"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    given = [row for row in rows if row[3] == "0"]
    wrong = [row for row in given if row[0].split(" ", 1)[1] != row[7]]
    assert len(rows) == len(truth)
    assert 0.4 * len(rows) < len(given) < len(rows)
    assert len(wrong) / len(given) <= 0.12


def test_calibration_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    as_parquet(tmp_path / "v.parquet", *blobs(30))
    as_parquet(tmp_path / "labelled.parquet", *blobs(30, seed=2))
    assert main(["certify", "v.parquet", "labelled.parquet", "--risk", "0.2"]) == 0
    assert "of the 900 calibration queries" in capsys.readouterr().out


def test_images_that_are_no_calibration_queries_are_accounted_for(tmp_path, capsys, monkeypatch):
    """A fifth of the rows fits P(right); a copy and the only row of a class are not asked."""
    monkeypatch.chdir(tmp_path)
    rows, labels = blobs(30)
    for file in (Path("v.parquet"), Path("w.parquet")):
        as_parquet(file, np.concatenate([rows, rows[:1], -rows[:1]]), [*labels, labels[0], "alone"])
    assert main(["certify", "v.parquet", "--risk", "0.2"]) == 0
    said = capsys.readouterr().out
    queries, images, fitted, others = map(
        int,
        re.search(
            r"the (\d+) calibration queries \(of (\d+): (\d+) fitted P\(right\), (\d+) are copies", said
        ).groups(),
    )
    assert (images, others, queries + fitted) == (902, 2, 900)
    assert 0.15 * 900 < fitted < 0.25 * 900
    assert main(["certify", "w.parquet", "--risk", "0.2", "--score", "gap"]) == 0
    assert "the 900 calibration queries (of 902: 2 are copies" in capsys.readouterr().out


def test_nothing_to_certify_says_what_could_be(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    as_parquet(tmp_path / "v.parquet", *blobs(40, spread=1.8))
    assert main(["certify", "v.parquet", "--risk", "0.05"]) != 0
    assert "A risk of 0.2 could be certified" in capsys.readouterr().err
    assert [each.threshold for each in Gallery.open("v.parquet.gallery").certificates] == [None]
    assert main(["search", "v.parquet", "v.parquet", "--risk", "0.05", "--csv", "-k", "1"]) == 0
    assert {line.split(",")[3] for line in capsys.readouterr().out.splitlines()[1:]} == {"1"}, "all are withheld"
    assert list(Gallery.open("v.parquet.gallery").tried.values()) == [{"p_right": 1}]  # a try, though it gave nothing


def test_files_that_differ_in_their_kind_alone_have_a_gallery_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    as_parquet(tmp_path / "v.parquet", *blobs(40))
    rows, labels = blobs(40, seed=5)
    np.savez("v.npz", vector=rows, label=labels)
    for file in ("v.parquet", "v.npz"):
        assert main(["certify", file, "--risk", "0.3"]) == 0
    for file in ("v.parquet", "v.npz"):
        kept = Gallery.open(f"{file}.gallery")
        np.testing.assert_allclose(kept.record["mean"], directions(read_vectors(tmp_path / file).rows), atol=1e-6)
        assert len(kept.certificates) == 1


def test_a_refused_certificate_leaves_no_gallery_and_is_no_try(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    as_parquet(tmp_path / "v.parquet", *blobs(3))
    assert main(["certify", "v.parquet", "--risk", "0.001"]) != 0
    assert "needs at least" in capsys.readouterr().err
    assert not (tmp_path / "v.parquet.gallery").exists()
    gallery = Gallery.from_vectors(*blobs(3))
    with pytest.raises(CertificateError, match="needs at least"):
        gallery.certify(risk=0.001)
    assert gallery.tried == {}


def test_the_gallery_in_python():
    gallery = Gallery.from_vectors(*blobs(40))
    certificate = gallery.certify(risk=0.1)
    assert certificate.score == "p_right"
    answers = gallery.search(blobs(3, seed=3)[0], risk=certificate, k=2)
    assert len(answers) == 90
    assert all(len(answer.matches) == 2 and 0 <= answer.p_right <= 1 for answer in answers)
    assert 0 < sum(answer.withheld for answer in answers) < 90
    queries, names = blobs(20, seed=4)
    assert gallery.certify(None, queries, names, risk=0.2).queries == 600
    with pytest.raises(CertificateError, match="3 class names for 600 calibration queries"):
        gallery.certify(None, queries, names[:3], risk=0.2)
    with pytest.raises(ServingError, match="dimensions"):
        gallery.search(np.ones((1, 3)))
    with pytest.raises(ServingError, match="row 1 of the vectors is zero"):
        gallery.search(np.stack([np.ones(24), np.zeros(24)]))


def test_the_page(tmp_path):
    vectors, labels = blobs(20)
    labels[7] = "<script>"
    page = write_page(Gallery.from_vectors(vectors, labels), tmp_path / "page.html", "birds & co").read_text()
    for words in ("Of 100 questions", "birds &amp; co", "recall@1", "P(right)", "Strangers", "Labels to look at"):
        assert words in page
    assert "<script>" not in page
    assert "http" not in page
    assert page.count('role="img"') == page.count('aria-label="share ') == 2
    drawing = page[page.index('aria-label="share wrong against share answered"') :].partition("</svg>")[0]
    ticks = re.findall(r'text-anchor="(middle|end)" font-size="11">([\d.]+)<', drawing)
    assert [text for side, text in ticks if side == "middle"] == ["0", "0.5", "1"]
    assert len([text for side, text in ticks if side == "end"]) == 3


def test_a_gallery_that_is_always_right_has_a_certificate_and_a_page(tmp_path):
    labels = np.arange(300) % 6
    rows = 3 * np.eye(32)[labels] + 0.1 * np.random.default_rng(0).normal(size=(300, 32))
    gallery = Gallery.from_vectors(rows, labels.tolist())
    certificate = gallery.certify(risk=0.05)
    assert (certificate.coverage, certificate.errors, certificate.queries) == (1.0, 0, 242), (
        "a fifth was to fit P(right)"
    )
    page = write_page(gallery, tmp_path / "page.html", "always right", lambda text: None).read_text()
    assert "Of 100 questions 100 are answered, 0 of them wrongly" in page


def test_the_page_names_one_picture_under_two_labels(tmp_path):
    vectors, labels = blobs(10)
    vectors[11] = vectors[0]
    page = write_page(Gallery.from_vectors(vectors, labels), tmp_path / "page.html", "copies").read_text()
    assert "1 pair is one picture under two labels" in page
    assert "image 0 (class 0)" in page


def test_what_could_be_certified_is_found_by_one_search(tmp_path, monkeypatch):
    """The calibration photographs are embedded once, however many risks are tried."""
    calls = []
    monkeypatch.setattr(Gallery, "_labelled", lambda self, *rest: calls.append(1) or _labelled(self, *rest))
    gallery = Gallery.from_vectors(*blobs(40, spread=1.8))
    queries, names = blobs(30, seed=5, spread=1.8)
    options = argparse.Namespace(risk=0.01, confidence=0.9, score="", tries=0, shares=None)
    assert "could be certified" in promised(gallery, options, None, queries, names)[1]
    assert calls == [1]
    assert [each.threshold for each in gallery.certificates] == [None]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["search", "v.npz", "v.npz", "--withhold", "0"], "--withhold"),
        (["search", "v.npz", "v.npz", "--any-image"], "--any-image"),
        (["search", "v.npz", "v.npz", "--explain", "why"], "--explain"),
        (["search", "v.npz", "v.npz", "--splits", "train"], "--splits"),
        (["search", "model", "photos", "--label", "kind"], "--label"),
        (["certify", "model", "gallery", "--risk", "0.1", "--trained-on", "v.npz"], "--trained-on"),
        (["report", "demo", "--output", "page.html"], "--output"),
        (["report", "v.npz", "--plan", "plan.json"], "--plan"),
        (["search", "model", "gallery", "photos", "--splits", "train"], "--splits"),
        (["index", "model", "new", "photos", "--splits", "train"], "--splits"),
        (["vectors", "model", "photos", "vectors.parquet", "--splits", "train"], "--splits"),
        (["export", "model", "model.onnx", "--license", "MIT"], "--license"),
    ],
)
def test_options_that_would_say_nothing_are_refused(tmp_path, monkeypatch, capsys, arguments, option):
    """A guard that is ignored, such as --withhold on vectors, would be believed."""
    as_npz(tmp_path / "v.npz", *blobs(30))
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "a.png")
    Gallery.from_vectors(*blobs(2)).save(tmp_path / "gallery")
    images = torch.utils.data.TensorDataset(torch.rand(4, 3, 16, 16), torch.arange(4) % 2)
    probmetric.fit(images, "compact", epochs=0, device="cpu").save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert f"{option} says nothing of" in capsys.readouterr().err


def test_a_group_is_a_column_of_the_queries_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame(*blobs(30)).to_parquet("gallery.parquet")
    rows, labels = blobs(40, seed=1)
    frame(rows, labels, walk=np.arange(len(rows)) // 2).to_parquet("queries.parquet")
    assert main(["certify", "gallery.parquet", "queries.parquet", "--risk", "0.2", "--group", "walk"]) == 0
    assert "in groups like the" in capsys.readouterr().out


def test_try_answers_and_withholds(capsys):
    assert main(["try"]) == 0
    printed = capsys.readouterr().out
    assert "nearest:" in printed
    assert "answer withheld" in printed


def test_no_torch_is_imported(tmp_path):
    """Certify and search import neither torch nor pandas: they work after a plain `pip install probmetric`."""
    as_npz(tmp_path / "v.npz", *blobs(30))
    script = (
        "import json, sys; from probmetric.cli import main; "
        "codes = [main(['certify', 'v.npz', '--risk', '0.2']), main(['search', 'v.npz', 'v.npz', '-k', '1']), "
        "main(['report', 'v.npz']), main(['try'])]; "
        "print(json.dumps([codes, sorted({'torch', 'timm', 'sklearn', 'matplotlib'} & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [[0, 0, 0, 0], []]


def as_faiss(path, vectors, labels):
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors.astype(np.float32))
    faiss.write_index(index, str(path))
    pd.DataFrame({"label": labels}).to_csv(path.with_suffix(".csv"), index=False)


def test_a_faiss_index_with_a_label_file(tmp_path, caplog):
    faiss = pytest.importorskip("faiss")
    vectors, labels = blobs(2)
    as_faiss(tmp_path / "v.faiss", vectors, labels)
    table = read_vectors(tmp_path / "v.faiss")
    np.testing.assert_allclose(table.rows, vectors, rtol=1e-6)
    assert table.labels == labels
    assert not caplog.records
    coarse = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_8bit)
    coarse.train(vectors.astype(np.float32))
    coarse.add(vectors.astype(np.float32))
    faiss.write_index(coarse, str(tmp_path / "v.faiss"))
    np.testing.assert_allclose(read_vectors(tmp_path / "v.faiss").rows, vectors, atol=0.05)
    assert "compressed vectors" in caplog.text
    (tmp_path / "v.faiss").write_bytes(b"no index")
    with pytest.raises(DataError, match="no faiss index"):
        read_vectors(tmp_path / "v.faiss")
    (tmp_path / "v.csv").unlink()
    with pytest.raises(DataError, match=r"v\.csv beside it"):
        read_vectors(tmp_path / "v.faiss")


def test_a_frame_is_a_gallery():
    pa = pytest.importorskip("pyarrow")
    vectors, labels = blobs(2)
    table = frame(vectors, labels, path=[f"p{row}" for row in range(60)])
    expected = Gallery.from_vectors(vectors.astype(np.float32), labels, table["path"].tolist())
    assert Gallery.from_vectors(table).digest == expected.digest
    assert Gallery.from_vectors(pa.Table.from_pandas(table)).digest == expected.digest
    assert expected.to_arrow().column_names == ["vector", "label", "path"]
    assert Gallery.from_vectors(expected.to_arrow()).digest == expected.digest
    with pytest.raises(DataError, match="expected `vector`"):
        Gallery.from_vectors(table.drop(columns="vector"))


def bursts(seed, walks=900, frames=5, classes=20, dim=16):
    """Walks of nearly the same frames: vectors, class names, number of the walk."""
    centres = np.random.default_rng(98).normal(size=(classes, dim))
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=walks)
    seen = centres[labels] + 0.5 * rng.normal(size=(walks, dim))
    rows = np.repeat(seen, frames, axis=0) + 0.03 * rng.normal(size=(walks * frames, dim))
    return rows, [f"class {label}" for label in np.repeat(labels, frames)], np.repeat(np.arange(walks), frames)


def test_groups_keep_the_promise_that_bursts_break(tmp_path, capsys, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    rows, labels, walks = bursts(0)
    frame(rows, labels, session=walks).to_parquet("v.parquet")
    warn_of_bursts(read_vectors(tmp_path / "v.parquet"))
    assert "the column 'session'" in caplog.text
    caplog.clear()
    frame(rows, labels).to_parquet("unnamed.parquet")
    warn_of_bursts(read_vectors(tmp_path / "unnamed.parquet"))
    assert "look like bursts" in caplog.text
    assert main(["certify", "v.parquet", "--risk", "0.2", "--group", "session"]) == 0
    assert "in groups like the 242 that calibration shows" in capsys.readouterr().out
    gallery = Gallery.open("v.parquet.gallery")
    new, truth, _ = bursts(1)
    given = [
        answer.matches[0].class_name == name
        for answer, name in zip(gallery.search(new, k=1, risk=0.2), truth, strict=True)
        if not answer.withheld
    ]
    assert len(given) > 100
    assert 1 - np.mean(given) <= 0.22


def test_independent_rows_are_no_bursts(tmp_path, caplog):
    as_parquet(tmp_path / "v.parquet", *blobs(20))
    warn_of_bursts(read_vectors(tmp_path / "v.parquet"))
    assert not caplog.records


def test_queries_that_only_ask_are_not_warned_of(tmp_path, capsys, monkeypatch):
    """Walks are bursts, but a search calibrates nothing; the option finds the held-out rows again."""
    monkeypatch.chdir(tmp_path)
    rows, labels, walks = bursts(0)
    frame(rows, labels, session=walks).to_parquet("v.parquet")
    frame(rows[:50] + 0.01, labels[:50], session=walks[:50]).to_parquet("new.parquet")
    assert main(["certify", "v.parquet", "--risk", "0.2", "--group", "session"]) == 0
    assert "bursts" not in capsys.readouterr().err
    assert main(["search", "v.parquet", "new.parquet", "--risk", "0.2", "--group", "session"]) == 0
    assert "burst" not in capsys.readouterr().err
    assert main(["search", "v.parquet", "new.parquet", "--risk", "0.2"]) == 2
    assert "was made of other vectors, or with --label, --group or --trained-on" in capsys.readouterr().err
    assert main(["report", "v.parquet", "--group", "session"]) == 0
    assert "1,500 calibration queries were asked" in (tmp_path / "v.html").read_text()


def test_copies_among_the_calibration_queries_count_once(caplog):
    gallery = Gallery.from_vectors(*blobs(30))
    queries, names = blobs(10, seed=4)
    once = gallery.certify(None, queries, names, risk=0.2)
    tenfold = gallery.certify(None, np.repeat(queries, 10, axis=0), np.repeat(names, 10).tolist(), risk=0.2)
    assert (tenfold.queries, tenfold.threshold) == (once.queries, once.threshold)
    assert "2700 of 3000 calibration images are copies" in caplog.text


def test_rows_that_were_trained_on_calibrate_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows, labels = blobs(60)
    as_parquet(tmp_path / "v.parquet", rows, labels)
    as_parquet(tmp_path / "trained.parquet", rows[::2], labels[::2])
    asked, names = blobs(30, seed=2)
    mixed = tmp_path / "labelled.parquet"
    as_parquet(mixed, np.concatenate([asked, rows[:40:2] + 0]), names + labels[:40:2])
    assert main(["certify", "v.parquet", "--risk", "0.2", "--trained-on", "trained.parquet"]) == 0
    assert "of the 600 calibration queries" in capsys.readouterr().out
    as_parquet(tmp_path / "g.parquet", *blobs(60, seed=7))
    assert main(["certify", "g.parquet", "labelled.parquet", "--risk", "0.2", "--trained-on", "trained.parquet"]) == 0
    assert "20 of 920 calibration queries are among those trained on" in capsys.readouterr().err
    assert main(["certify", "g.parquet", "trained.parquet", "--risk", "0.2", "--trained-on", "v.parquet"]) != 0
    assert "trained on all of the 900" in capsys.readouterr().err


def test_groups_need_calibration_images():
    gallery = Gallery.from_vectors(*blobs(10))
    with pytest.raises(CertificateError, match="groups are of calibration images"):
        gallery.certify(risk=0.2, groups=[1] * 300)
    queries, names = blobs(10, seed=4)
    with pytest.raises(CertificateError, match="3 groups for 300"):
        gallery.certify(None, queries, names, risk=0.2, groups=[1, 2, 3])
    with pytest.raises(ServingError, match="not rsk"):
        gallery.certify(risk=0.2, rsk=1)


EIGHT = ("cosine", "disagreement", "entropy", "gap", "knn", "own", "p_right", "cosine,gap")


def test_a_shopper_with_eight_scores_is_sent_away_or_pays(tmp_path):
    vectors, labels = blobs(20)
    queries = vectors + 0.01
    gallery = Gallery.from_vectors(vectors, labels)
    certificate = gallery.certify(None, queries, labels, risk=0.3, score="cosine")
    assert certificate.tries == 1
    assert gallery.certify(None, queries, labels, risk=0.2, score="cosine").tries == 1  # another promise, the same try
    gallery.save(tmp_path / "kept")
    again = Gallery.open(tmp_path / "kept")
    with pytest.raises(CertificateError, match="this calibration set was tried by cosine before"):
        again.certify(None, queries, labels, risk=0.3, score="gap")
    with pytest.raises(CertificateError, match="was tried by cosine before"):
        again.certify(None, queries, labels, risk=0.3, score="gap", tries=8)
    planned = Gallery.from_vectors(vectors, labels)
    assert planned.certify(None, queries, labels, risk=0.3, score="cosine", tries=8).tries == 8
    paid = [planned.certify(None, queries, labels, risk=0.3, score=name).tries for name in EIGHT[1:]]
    assert paid == [8] * 7
    with pytest.raises(CertificateError, match="was tried by cosine, disagreement"):
        planned.certify(None, queries, labels, risk=0.3, score="answer_uncertainty")
    path = tmp_path / "kept" / "tries.json"
    path.write_text(path.read_text().replace('"cosine": 1', '"cosine": 9'))
    with pytest.raises(FileError, match=r"tries\.json is damaged"):
        Gallery.open(tmp_path / "kept")


def test_the_best_of_eight_scores_keeps_the_promise():
    """Scores that say nothing, of answers wrong a little more often than allowed; whatever is certified is false."""
    broken = {1: 0, 8: 0}
    generator = np.random.default_rng(0)
    for _ in range(60):
        right = generator.random(400) >= 0.103
        doubts = {f"doubt.{number}": generator.random(400) for number in range(8)}
        record = {"right": right, "label": np.zeros(400, dtype=int), "asked": np.ones(400, dtype=bool), **doubts}
        record["own"] = generator.random(400)
        for tries in broken:
            tried: dict = {}
            made = []
            for name in map(str, range(8)):
                with contextlib.suppress(CertificateError):
                    paid = tries_to_pay(tried, "the same set", name, tries)
                    made.append(certify_record(record, [0], risk=0.1, score=name, unit="query", tries=paid))
            assert len(made) == tries
            broken[tries] += any(certificate.threshold is not None for certificate in made)
    assert max(broken.values()) / 60 <= 0.1 + 3.1 * np.sqrt(0.09 / 60)


def test_shares_of_deployment_weigh_the_calibration(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vectors, labels = blobs(40)
    np.savez("shop.npz", vector=vectors, label=labels)
    names = sorted(set(labels))
    (tmp_path / "shares.csv").write_text("class,share\n" + "".join(f"{name},{1 + n}\n" for n, name in enumerate(names)))
    assert main(["certify", "shop.npz", "--risk", "0.3"]) == 0
    assert "name their shares" in capsys.readouterr().out
    assert main(["certify", "shop.npz", "--risk", "0.3", "--shares", "shares.csv"]) == 0
    said = capsys.readouterr().out
    assert "name their shares" not in said
    assert "asked about as often as its share says" in said
    gallery = Gallery.open("shop.npz.gallery")
    assert gallery.certificates[0].weighted
    others = blobs(40, seed=1)[0], np.where(np.array(labels) == names[0], "unknown", labels)
    shares = dict.fromkeys([*names[1:], "strangers"], 1.0)
    assert gallery.certify(None, *others, risk=0.3, score="gap", shares=shares).queries == len(labels)
    with pytest.raises(ValueError, match="lack strangers"):
        gallery.certify(None, *others, risk=0.3, score="gap", shares=dict.fromkeys(names[1:], 1.0))
    nobody = "\n".join(f"{name},{n}" for n, name in enumerate(names))  # asks about the first
    (tmp_path / "shares.csv").write_text(f"class,share\n{nobody}\n")
    assert main(["certify", "shop.npz", "--risk", "0.3", "--tries", "3", "--shares", "shares.csv"]) == 0
    (tmp_path / "shares.csv").write_text("class,share\nx,none\n")
    assert main(["certify", "shop.npz", "--risk", "0.3", "--shares", "shares.csv"]) == 2
    assert "a share is a number" in capsys.readouterr().err


def test_search_writes_the_groups_that_monitor_reads(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vectors, labels = blobs(20)
    as_parquet(tmp_path / "shop.parquet", vectors, labels)
    frame(vectors[:4] + 0.01, labels[:4], walk=["a", "a", "b", "=c"]).to_parquet("new.parquet")
    assert main(["search", "shop.parquet", "new.parquet", "-k", "1", "--csv", "--group", "walk"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert [row[-1] for row in rows] == ["group", "a", "a", "b", "'=c"]
    assert main(["search", "shop.parquet", "new.parquet", "--group", "walk"]) == 2
    assert "column `group` of --csv" in capsys.readouterr().err


@pytest.mark.parametrize("score", ["p_right", "gap"])
def test_queries_like_those_of_calibration_do_not_alarm_the_monitor(tmp_path, capsys, monkeypatch, score):
    """The log has what the certificate decides by, to the last digit: sure answers differ in the eighth."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(60, 64))
    for file, count in (("shop.npz", 4000), ("new.npz", 600)):
        labels = rng.integers(60, size=count)
        rows = centres[labels] + rng.uniform(0.3, 2.2, size=(count, 1)) * rng.normal(size=(count, 64))
        np.savez(file, vector=rows, label=labels)
    assert main(["certify", "shop.npz", "--risk", "0.05", "--score", score]) == 0
    assert ("P(right)" if score == "p_right" else score) + " decides" in capsys.readouterr().out
    assert main(["search", "shop.npz", "new.npz", "--risk", "0.05", "--csv"]) == 0
    Path("log.csv").write_text(capsys.readouterr().out)
    certificate = "shop.npz.gallery/certificate-0.05-0.9.json"
    assert main(["monitor", certificate, "log.csv"]) == 0
    assert main(["monitor", certificate, "log.csv", "--column", "p_right"]) == (0 if score == "p_right" else 2)
    assert score == "p_right" or "decides by gap, not by P(right)" in capsys.readouterr().err


def test_another_gallery_of_the_file_forgets_no_try(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vectors, labels = blobs(40)
    frame(vectors, labels, person=np.arange(len(labels)) // 2).to_parquet("v.parquet")
    assert main(["certify", "v.parquet", "--risk", "0.3", "--score", "gap"]) == 0
    assert main(["certify", "v.parquet", "--risk", "0.3", "--group", "person"]) == 0
    assert main(["certify", "v.parquet", "--risk", "0.3", "--score", "cosine"]) == 2
    assert "this calibration set was tried by gap before" in capsys.readouterr().err


def test_a_new_class_in_the_gallery_forgets_no_try(tmp_path):
    vectors, labels = blobs(20)
    gallery = Gallery.from_vectors(vectors, labels)
    gallery.certify(None, vectors + 0.01, labels, risk=0.3, score="cosine")
    larger = Gallery.from_vectors(np.vstack([-vectors[:1], vectors]), ["a class", *labels])
    larger.tried = gallery.tried
    with pytest.raises(CertificateError, match="this calibration set was tried by cosine before"):
        larger.certify(None, vectors + 0.01, labels, risk=0.3, score="gap")


def test_the_page_certifies_by_the_score_that_was_tried_and_stores_nothing(tmp_path, monkeypatch):
    """It tried P(right), was refused, and said that no risk could be certified."""
    monkeypatch.chdir(tmp_path)
    frame(*blobs(40)).to_parquet("v.parquet")
    assert main(["certify", "v.parquet", "--risk", "0.1", "--score", "gap"]) == 0
    before = {path.name: path.read_bytes() for path in Path("v.parquet.gallery").iterdir()}
    assert main(["report", "v.parquet"]) == 0
    assert re.search(r"<td>10 %</td>\s*<td>44\.9 %</td>", Path("v.html").read_text()), "as `certify` has just said"
    assert {path.name: path.read_bytes() for path in Path("v.parquet.gallery").iterdir()} == before
    shutil.rmtree("v.parquet.gallery")
    Gallery.from_vectors(*blobs(40)).save("v.parquet.gallery")
    assert main(["report", "v.parquet"]) == 0
    assert not Path("v.parquet.gallery/tries.json").exists()
    assert "No risk up to" not in Path("v.html").read_text()


def test_a_page_says_why_its_queries_cannot_calibrate(tmp_path):
    vectors, labels = blobs(20)
    queries = Vectors(tmp_path / "q.npz", vectors + 0.01, ["stranger"] * len(labels), list(labels), [""] * len(labels))
    with pytest.raises(CertificateError, match="no calibration query has an image of its class"):
        write_page(Gallery.from_vectors(vectors, labels), tmp_path / "page.html", "v", queries=queries)


def test_the_page_compares_vectors_and_whitened_ones_by_the_same_questions(tmp_path):
    """Each row twice: a copy answers no question, as the vectors are or whitened."""
    vectors, labels = blobs(6, spread=2.5)
    once, twice = (
        write_page(Gallery.from_vectors(rows, names), tmp_path / f"{len(rows)}.html", "blobs").read_text()
        for rows, names in ((vectors, labels), (np.concatenate([vectors, vectors]), labels + labels))
    )
    told = [re.findall(r"<td[^>]*>(?:as they are|whitened)</td>\s*<td[^>]*>([\d.]+)", page) for page in (once, twice)]
    assert len(told[0]) == 2
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["certify", "v.npz", "--risk", "0.3", "--shares", "shares.csv"], "shares name x that calibration"),
        (["search", "v.npz", "empty.npz"], "empty.npz holds no rows"),
        (["certify", "number.npz", "--risk", "0.3"], "number.npz holds label; expected a column `vector`"),
        (["certify", "v.npz", "narrow.npz", "--risk", "0.3"], "narrow.npz has vectors of 16 dimensions, v.npz of 24"),
        (["certify", "v.npz", "narrow.npz", "--risk", "0.3", "--trained-on", "v.npz"], "narrow.npz has vectors of 16"),
        (["certify", "v.npz", "--risk", "0.3", "--trained-on", "narrow.npz"], "narrow.npz has vectors of 16"),
        (["search", "v.gallery", "v.npz", "--label", "kind"], "--label says nothing of a gallery"),
        (["certify", "shares.csv", "--risk", "0.3"], "shares.csv is no file of vectors; expected .parquet, .npz"),
        (["search", "shares.csv", "v.npz"], "shares.csv is no file of vectors; expected .parquet, .npz"),
        (["report", "shares.csv"], "shares.csv is no file of vectors; expected .parquet, .npz"),
        (["search", "v.npz", "embeddings.npz"], "embeddings.npz holds no rows"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(tmp_path, capsys, monkeypatch, command, said):
    monkeypatch.chdir(tmp_path)
    as_npz(tmp_path / "v.npz", *blobs(30))
    np.savez("empty.npz", vector=np.empty((0, 24)), label=[])
    np.savez("embeddings.npz", embeddings=np.empty((0, 24)), label=[])
    np.savez("number.npz", vector=np.float32(3), label=["a"])
    np.savez("narrow.npz", vector=np.eye(16), label=["a"] * 16)
    Path("shares.csv").write_text("class,share\nx,1\n")
    Gallery.from_vectors(*blobs(2)).save("v.gallery")
    assert main(command) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_of_any_precision_with_gradients_are_vectors(dtype):
    rows = torch.tensor([[3.0, 4.0], [-2.0, 0.0]], dtype=dtype, requires_grad=True)
    gallery = Gallery.from_vectors(rows, ["a", "b"])
    assert [answer.matches[0].class_name for answer in gallery.search(2 * rows)] == ["a", "b"]
    assert gallery.search(rows[:1])[0].matches[0].similarity == pytest.approx(1, abs=1e-6)
