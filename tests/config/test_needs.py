"""What jobs ask a cluster for follows what runs of the same kind took."""

from types import SimpleNamespace

import pytest

from probmetric.planning.needs import UNKNOWN, Need, Needs, Took, grown, kind

HEAD = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"


@pytest.fixture
def record(tmp_path):
    """Function that writes a job's record: step, run, seconds, MB and, of a training, the seconds of each epoch."""

    def write(step, run, seconds, megabytes, epochs=()):
        path = tmp_path / "jobs" / step / f"{run}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{HEAD}{seconds}\t0:00:00\t{megabytes}\tNA\tNA\tNA\t0\t0\t100\t1\n")
        if epochs:
            history = tmp_path / "results" / run / "history.csv"
            history.parent.mkdir(parents=True)
            history.write_text("epoch,seconds\n" + "".join(f"{n},{taken}\n" for n, taken in enumerate(epochs)))

    return write


@pytest.fixture
def needs(tmp_path):
    return Needs(tmp_path / "jobs", tmp_path / "results")


def run(name, epochs=10, trains=True):
    settings = SimpleNamespace(training=SimpleNamespace(epochs=epochs))
    return SimpleNamespace(name=name, settings=settings, trains=trains, fits_posterior=False)


def test_the_longest_and_largest_of_a_kind_count(record, needs):
    record("embed", "glyphs/vmf/seed0", 60, 500)
    record("embed", "glyphs+noise0.2/vmf/seed1", 120, 400)
    record("embed", "glyphs_closed/vmf/seed0", 9000, 90000)
    record("embed", "glyphs/vmf+dim=8/seed0", 9000, 90000)
    assert needs.of(run("glyphs/vmf/seed7"), "embed") == Need(10 + 6, 1000 + 1000)
    assert needs.of(run("digits/vmf/seed7"), "embed") == UNKNOWN["embed"]


def test_a_training_is_as_long_as_its_epochs(record, needs):
    # 40 s of which two epochs took 20 and 10: a start of 10 s, and 20 s for each epoch
    record("train", "glyphs/vmf+training.epochs=2/seed0", 40, 500, [20, 10])
    assert needs.of(run("glyphs/vmf/seed0", epochs=30), "train").minutes == 10 + round(3 * (10 + 30 * 20) / 60 + 0.49)


def test_further_attempts_ask_for_more_and_at_last_for_what_is_asked_without_records():
    known, unknown = Took(40, 500), Need(240, 8000)
    assert [grown(known, unknown, n).minutes for n in (1, 2, 3, 4)] == [12, 24, 240, 480]
    assert [grown(known, unknown, n).megabytes for n in (1, 2, 3, 4)] == [2000, 4000, 8000, 16000]
    assert [grown(None, unknown, n).minutes for n in (1, 2, 3)] == [240, 480, 720]


@pytest.mark.parametrize("text", ["", "s\n1\n", f"{HEAD}NA\t0:00:00\tNA\n", "no table"])
def test_a_damaged_record_is_none(tmp_path, needs, text):
    path = tmp_path / "jobs/embed/glyphs/vmf/seed0.tsv"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert needs.of(run("glyphs/vmf/seed0"), "embed") == UNKNOWN["embed"]


def test_one_job_for_many_runs_takes_as_long_as_all_of_them(record, needs):
    for seed in range(2):
        record("embed", f"glyphs/late/seed{seed}", 60, 500)
        record("evaluate", f"glyphs/late/seed{seed}", 60, 700)
    late = [run(f"glyphs/late/seed{seed}", trains=False) for seed in range(3)]
    assert needs.of_all(late) == Need(10 + 3 * 3 * 2, 1000 + 1400)
    assert needs.of_all([*late, run("glyphs/other/seed0")]) == UNKNOWN["train"]


def test_a_kind_is_a_run_without_seed_noise_and_epochs():
    assert kind("glyphs+noise0.2/vmf+training.epochs=3+dim=8/seed4") == "glyphs/vmf+dim=8"
