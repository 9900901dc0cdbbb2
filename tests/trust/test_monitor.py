import dataclasses

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.stats import beta, kstest

from probmetric.cli import main
from probmetric.data import load_columns, open_images
from probmetric.data.views._base import stacked
from probmetric.io import FileError, cell_text
from probmetric.trust.answers import asked_in
from probmetric.trust.certificates import CertificateError, certify
from probmetric.trust.deployed import calibration_answers
from probmetric.trust.drift import BETS, Monitor, logged_checks, logged_doubts, monitor
from probmetric.trust.p_right import fit_p_right
from probmetric.trust.spot_check import spot_checks


def deployed_p_right(gallery, labels):
    """P(right) from each image of a gallery, asked among the others."""
    answers = calibration_answers(gallery, labels)
    return fit_p_right(answers.free, answers.right)


def test_p_values_of_clean_queries_are_uniform_also_with_ties():
    generator = np.random.default_rng(0)
    values = generator.integers(0, 4, 6000) / 10
    monitor = Monitor(values[:1000])
    found = [monitor._p_value(value) for value in values[1000:]]
    assert kstest(found, "uniform").pvalue > 1e-3


def test_the_evidence_is_the_recurrence():
    monitor = Monitor(np.random.default_rng(1).random(100), patience=1000, seed=3)
    twin = Monitor(np.random.default_rng(1).random(100), patience=1000, seed=3)
    sums = np.zeros(len(BETS))
    for doubt in (0.2, 0.9, 0.95, 0.5):
        p = twin._p_value(doubt)
        sums = (sums + 1) * beta.pdf(p, *np.array(BETS).T)
        assert monitor.update(doubt) == pytest.approx(sums.mean() / 1000)


def test_false_alarms_are_as_rare_as_promised():
    generator = np.random.default_rng(2)
    alarms = 0
    for run in range(60):
        monitor = Monitor(generator.exponential(size=300), patience=2000, seed=run)
        alarms += monitor.watch(generator.exponential(size=500)) is not None
    assert alarms / 60 <= 0.25 + 3.1 * np.sqrt(0.25 * 0.75 / 60)  # N / A = 500 / 2000


def test_comparing_with_calibration_alone_would_be_fooled_by_its_error():
    # the reference happens to lie too low: in time every fixed comparison notices, the growing one does not
    generator = np.random.default_rng(3)
    monitor = Monitor(np.sort(generator.random(1000))[:700], patience=100_000)
    assert monitor.watch(generator.random(400)) is not None  # a real difference is found
    clean = Monitor(generator.random(200), patience=100_000)
    assert clean.watch(generator.random(10_000)) is None


@pytest.mark.parametrize(("shift", "way"), [(1.0, "rose"), (-1.0, "fell")])
def test_a_change_is_found_soon_after_a_long_clean_time(shift, way):
    generator = np.random.default_rng(4)
    monitor = Monitor(generator.normal(size=1000))
    assert monitor.watch(generator.normal(size=2000)) is None
    alarm = monitor.watch(generator.normal(size=200) + shift)
    assert alarm is not None
    assert 2000 < alarm.query <= 2200
    assert alarm.doubts == way


def test_doubts_that_gather_in_the_middle_are_a_change_too():
    generator = np.random.default_rng(8)
    monitor = Monitor(generator.random(1000))
    alarm = monitor.watch(0.3 + 0.4 * generator.random(300))
    assert alarm is not None
    assert alarm.doubts == "changed"


def doubt_of(fitted, queries, gallery):
    """1 - P(right) of the answers to queries (Q, M) of unknown classes."""
    return 1 - fitted.probability(asked_in(queries, np.full(len(queries["mean"]), -1), *gallery).doubts)


def pixels(images):
    """The record of images (N, 32, 32): unit rows of pixels."""
    rows = np.asarray(images, dtype=np.float32).reshape(len(images), -1)
    mean = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return {"mean": mean, "uncertainty": np.zeros(len(rows), dtype=np.float32)}


def test_blur_is_found_within_200_queries(prepared_dataset):
    columns = load_columns(prepared_dataset("glyphs"), ["split"])
    store, generator = open_images(prepared_dataset("glyphs")), np.random.default_rng(9)
    test = generator.permuted(np.flatnonzero(columns["split"] == "test").reshape(-1, 48), axis=1)[:, :24]
    gallery, fresh = test[:, :8].ravel(), generator.permutation(test[:, 8:].ravel())
    images = stacked(store.load(fresh)).numpy().reshape(len(fresh), 32, 32)
    blurred = np.stack([gaussian_filter(image.astype(float), 2.0) for image in images[:300]])
    found, labels = pixels(stacked(store.load(gallery)).numpy()), np.repeat(np.arange(112), 8)
    fitted = deployed_p_right(found, labels)
    clean, changed = (doubt_of(fitted, pixels(queries), (found, labels)) for queries in (images, blurred))
    monitor = Monitor(clean[:600])
    assert monitor.watch(clean[600:]) is None
    alarm = monitor.watch(changed)
    assert alarm is not None
    assert alarm.query <= len(clean) - 600 + 200


def test_new_classes_and_another_gallery_are_found_within_200_queries():
    generator = np.random.default_rng(10)
    centres = generator.normal(size=(80, 16))

    def drawn(classes, each):
        labels = generator.permutation(np.repeat(classes, each))
        spread = 0.6 * generator.exponential(size=(len(labels), 1))
        return pixels(centres[labels] + spread * generator.normal(size=(len(labels), 16))), labels

    gallery, swapped = (drawn(classes, 12) for classes in (np.arange(40), np.arange(40, 80)))
    fitted = deployed_p_right(*gallery)
    asked = drawn(np.arange(40), 50)[0]
    clean, new = doubt_of(fitted, asked, gallery), doubt_of(fitted, swapped[0], gallery)
    elsewhere = doubt_of(fitted, asked, swapped)
    for changed in (new, elsewhere):
        monitor = Monitor(clean[:1000])
        assert monitor.watch(clean[1000:]) is None
        alarm = monitor.watch(changed)
        assert alarm is not None
        assert alarm.query <= 1200
        assert alarm.doubts == "rose"


def logged(path, doubts, column="p_right"):
    """A log as search writes it, two matches a query."""
    rows = [f"{n}.png,{1 - d if column == 'p_right' else d},{rank}" for n, d in enumerate(doubts) for rank in (1, 2)]
    path.write_text("\n".join([f"image,{column},rank", *rows]) + "\n")
    return path


def test_a_log_says_whether_its_certificate_has_expired(tmp_path):
    generator = np.random.default_rng(5)
    reference = generator.random(500)
    fine = monitor(reference, logged_doubts(logged(tmp_path / "log.csv", generator.random(300)), "p_right"))
    assert (fine.alarm, fine.queries) == (None, 300)
    assert "300 queries, no change found" in fine.text
    blurred = logged(tmp_path / "gap.csv", np.r_[generator.random(100), 0.6 + 0.4 * generator.random(200)], "gap")
    changed = monitor(reference, logged_doubts(blurred, "gap"))
    assert 100 < changed.alarm.query < 200
    assert "the doubts rose: alarm at query" in changed.text
    with pytest.raises(FileError, match="has no column 'p_right'; it has image, gap, rank"):
        logged_doubts(blurred, "p_right")
    (tmp_path / "log.csv").write_text("p_right\n0.5\n\nmany\n")
    with pytest.raises(FileError, match="query 2 has 'many' in column 'p_right'; expected numbers from 0 to 1"):
        logged_doubts(tmp_path / "log.csv", "p_right")
    (tmp_path / "nan.csv").write_text("p_right\n0.5\nnan\n")
    with pytest.raises(FileError, match="query 2 has 'nan' in column 'p_right'; expected numbers"):
        logged_doubts(tmp_path / "nan.csv", "p_right")
    for patience in (np.nan, np.inf, 0, -1):
        with pytest.raises(CertificateError, match="patience is"):
            monitor(reference, [0.1], patience=patience)
    for too_few in ((), (0.1, 0.2)):
        with pytest.raises(CertificateError, match=f"reference has {len(too_few)} doubts"):
            monitor(too_few, [0.1])


@pytest.mark.parametrize(("mark", "encoding"), [(";", "utf-8-sig"), (";", "utf-8"), ("\t", "utf-16"), ("|", "utf-8")])
@pytest.mark.parametrize("columns", [1, 2])
def test_logs_are_read_as_spreadsheets_save_them(tmp_path, mark, encoding, columns):
    rows = [("p_right", "rank"), ("0,25", "1"), ("0,5", "2"), ("0,75", "1")]
    text = "\r\n".join(mark.join(row[:columns]) for row in rows)
    (tmp_path / "sheet.csv").write_bytes(text.encode(encoding))
    assert logged_doubts(tmp_path / "sheet.csv", "p_right").tolist() == (
        [0.75, 0.25] if columns == 2 else [0.75, 0.5, 0.25]
    )


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="reference has 3 doubts"):
        Monitor([0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="reference: entry 1 is not finite"):
        Monitor([0.1, np.nan] * 30)
    with pytest.raises(ValueError, match="patience is 0"):
        Monitor(np.arange(60.0), patience=0)
    with pytest.raises(ValueError, match="doubt of query 1 is nan"):
        Monitor(np.arange(60.0)).update(float("nan"))


def written(path, rates, *, walk=20):
    """A log of 1,000 answers in walks; every second was checked, and is wrong at these rates (1000,)."""
    generator = np.random.default_rng(6)
    doubts = np.repeat(generator.random(1000 // walk), walk)
    rows = []
    for number, (doubt, rate) in enumerate(zip(doubts, rates, strict=True)):
        truth = "" if number % 2 else "ba"[int(generator.random() >= rate)]
        rows += [f"{number},{1 - doubt:.4f},0,{rank},{'az'[rank - 1]},{truth},{number // walk}" for rank in (1, 2)]
    rows.append("withheld,0.1,1,1,a,b,none")
    path.write_text("\n".join(["image,p_right,withheld,rank,class_name,truth,walk", *rows]) + "\n")
    return path


def test_the_command_watches_errors_and_groups(tmp_path, capsys):
    doubt = np.random.default_rng(7).random(800)
    right = np.random.default_rng(8).random(800) >= 0.1 * doubt  # so that every answer is given
    certify(doubt, right, risk=0.1, reference=tuple(doubt.tolist())).save(tmp_path / "c.json")
    log = written(tmp_path / "log.csv", np.full(1000, 0.05))
    command = ["monitor", str(tmp_path / "c.json")]
    assert main([*command, str(log), "--labelled"]) == 0
    assert "of 500 checked answers are wrong; the promise may hold" in capsys.readouterr().out
    worse = written(tmp_path / "worse.csv", np.full(1000, 0.3))
    assert main([*command, str(worse), "--labelled", "truth"]) == 2
    assert "alarm at check" in capsys.readouterr().out
    assert main([*command, str(worse), "--labelled", "--group", "walk"]) == 0  # 50 walks
    assert "of 50 checked answers are wrong" in capsys.readouterr().out
    assert main([*command, str(log)]) == 2  # bursts
    assert main([*command, str(log), "--group", "walk"]) == 0
    assert main([*command, str(log), "--labelled", "p"]) == 2
    assert "has no column 'p'" in capsys.readouterr().err
    (tmp_path / "head.csv").write_text("image,p_right\n")
    assert main([*command, str(tmp_path / "head.csv")]) == 2
    assert "has no answers, only a head" in capsys.readouterr().err
    empty = tmp_path / "empty.csv"
    empty.write_text("image,class_name,truth,p_right\n1,a,,0.9\n")
    assert main([*command, str(empty), "--labelled"]) == 2
    assert "no answer given has a class in the column 'truth'" in capsys.readouterr().err


def test_a_class_that_a_spreadsheet_would_compute_is_the_class_it_was(tmp_path):
    """`search --csv` puts a quote in front of such names; who labels answers need not."""
    log = tmp_path / "log.csv"
    names = ["-1", "+", "=a", "@b", "＝c", "d"]
    log.write_text("class_name,truth\n" + "".join(f"{cell_text(name)},{name}\n" for name in names) + "'-1,d\n")
    everything = certify(np.zeros(100), np.ones(100), risk=0.1)
    checked, wrong = logged_checks(log, "truth", everything, np.zeros(len(names) + 1))
    assert checked.all()
    assert wrong.tolist() == [False] * len(names) + [True]
    assert cell_text("-1") == "'-1"
    assert cell_text(" =1+1") == "' =1+1"  # a spreadsheet may drop the space


@pytest.mark.parametrize("value", ["1.5", "-0.1", "1e9"])
@pytest.mark.parametrize(
    ("column", "shares"), [("p_right", False), ("doubt", False), ("certified_doubt", True), ("gap", True)]
)
def test_a_share_outside_0_to_1_is_refused_with_its_query(tmp_path, column, shares, value):
    log = tmp_path / "log.csv"
    log.write_text(f"{column},rank\n0,1\n5,2\n1,1\n{value},1\n")
    with pytest.raises(FileError, match=f"query 3 has '{value}' in column '{column}'; expected numbers from 0 to 1"):
        logged_doubts(log, column, shares=shares)
    assert len(logged_doubts(logged(log, [0.0, 1.0], column), column, shares=shares)) == 2


def test_a_doubt_that_is_no_share_may_be_any_number(tmp_path):
    (tmp_path / "log.csv").write_text("certified_doubt\n-3\n1.5\n")
    assert logged_doubts(tmp_path / "log.csv", "certified_doubt").tolist() == [-3, 1.5]


def test_one_class_is_one_class_whichever_program_wrote_it(tmp_path):
    """pandas writes 3.0 in a column with empty cells, macOS a letter and its accent: all were wrong answers."""
    log, everything = tmp_path / "log.csv", certify(np.zeros(100), np.ones(100), risk=0.1)
    pairs = [
        ("3", "3.0"),
        ("-3", "-3.0"),
        ("\u00e9", "e\u0301"),
        ("a", " a "),
        ("3.0", "3"),
        ("v1", "v1.0"),
        ("3", "30"),
    ]
    lines = [f"{cell_text(name)},{truth},1.0" for name, truth in [*pairs, ("a", "nan"), ("a", "")]]
    log.write_text("\n".join(["class_name,truth,rank", *lines]) + "\n")
    checked, wrong = logged_checks(log, "truth", everything, np.zeros(len(lines)))
    assert checked.tolist() == [True] * len(pairs) + [False, False]
    assert wrong.tolist() == [False] * 5 + [True, True]


def test_checked_answers_that_the_certificate_withholds_do_not_count(tmp_path, capsys):
    """A log of a search without --risk gives every answer: half of these are wrong, all beyond the certified doubt."""
    doubt = np.linspace(0, 1, 1000)
    certificate = certify(doubt, doubt < 0.5, risk=0.1)
    rows = [f"{1 - each!r},a,{'a' if each < 0.5 else 'b'}" for each in doubt[::2].tolist()]
    log, command = tmp_path / "log.csv", ["monitor", str(tmp_path / "c.json"), str(tmp_path / "log.csv"), "--labelled"]
    log.write_text("\n".join(["p_right,class_name,truth", *rows]) + "\n")
    certificate.save(tmp_path / "c.json")
    assert main(command) == 0
    given = np.count_nonzero(certificate.answers(doubt[::2]))
    assert f"of {given} checked answers are wrong; the promise may hold" in capsys.readouterr().out
    dataclasses.replace(certificate, score="gap").save(tmp_path / "c.json")
    assert main([*command, "--column", "p_right"]) == 2
    assert main(command) == 2
    assert "has no column 'certified_doubt'" in capsys.readouterr().err
    log.write_text("certified_doubt,class_name,truth\n,a,b\n")
    assert main(command) == 2
    assert "query 1 has '' in column 'certified_doubt'; expected numbers" in capsys.readouterr().err


@pytest.mark.parametrize("labelled", [[], ["--labelled"]])
@pytest.mark.parametrize("cell", ["", " ", "nan"])
def test_queries_without_a_group_are_refused(tmp_path, capsys, cell, labelled):
    """They counted as one query, and no change was ever noticed."""
    doubt = np.random.default_rng(11).random(300)
    certify(doubt, np.ones(300), risk=0.1, reference=tuple(doubt.tolist())).save(tmp_path / "c.json")
    lines = [f"{each!r},a,a,{group}" for each, group in zip(doubt[:3].tolist(), ["w", cell, cell], strict=True)]
    (tmp_path / "log.csv").write_text("\n".join(["p_right,class_name,truth,walk", *lines]) + "\n")
    assert main(["monitor", str(tmp_path / "c.json"), str(tmp_path / "log.csv"), "--group", "walk", *labelled]) == 2
    assert "query 2 has nothing in the column 'walk', 2 of 3 in all" in capsys.readouterr().err


def test_the_rank_may_be_written_with_a_point(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("p_right,rank\n0.9,1.0\n0.1,2.0\n")
    assert logged_doubts(log, "p_right") == pytest.approx([0.1])
    log.write_text("p_right,rank\n0.9,2\n")
    with pytest.raises(FileError, match="has no answer of rank 1, only of '2'"):
        logged_doubts(log, "p_right")


def test_spot_checks_of_groups_count_sources_as_a_certificate_with_one_over_their_number_does():
    """Of the answers .046 are wrong, of the sources .16: people of one image err more often than those of ten."""
    generator = np.random.default_rng(2)
    numbers = np.where(np.arange(600) % 2, 1, 10)
    sources = np.repeat(np.arange(600), numbers)
    wrong = generator.random(len(sources)) < np.where(numbers == 1, 0.3, 0.02)[sources]
    assert spot_checks(wrong, risk=0.1, groups=sources).alarm is not None
    assert spot_checks(wrong, risk=0.2, groups=sources).alarm is None
    doubt = np.zeros(len(sources))
    assert certify(doubt, ~wrong, risk=0.1, groups=sources).coverage == 1.0
    by_source = {"groups": sources, "importance": 1 / numbers[sources]}
    assert [certify(doubt, ~wrong, risk=risk, **by_source).coverage for risk in (0.1, 0.2)] == [0.0, 1.0]
