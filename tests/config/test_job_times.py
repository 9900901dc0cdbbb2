import pytest

from probmetric.io import FileError
from probmetric.job_times import job_seconds


def test_a_job_has_wall_and_processor_time(tmp_path):
    (tmp_path / "a.tsv").write_text("s\th:m:s\tcpu_time\n2.5\t0:00:02\t1.25\n")
    assert (job_seconds(tmp_path / "a.tsv", "s"), job_seconds(tmp_path / "a.tsv", "cpu_time")) == (2.5, 1.25)


def test_a_job_that_snakemake_never_sampled_took_no_processor_time(tmp_path):
    (tmp_path / "a.tsv").write_text("s\tcpu_time\n0.2\tNA\n")
    assert job_seconds(tmp_path / "a.tsv", "cpu_time") == 0


@pytest.mark.parametrize("text", ["", "s\n", "h:m:s\n0:00:02\n", "s\nsoon\n"])
def test_another_file_is_named(tmp_path, text):
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(FileError, match=r"a\.tsv is not a benchmark file of Snakemake; delete it"):
        job_seconds(tmp_path / "a.tsv", "s")
