"""Files are written whole or not at all; problems name the file and the fix."""

import errno
import os
import re
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file

from probmetric.data.manifest import TYPES as COLUMNS
from probmetric.data.manifest import read_digest, read_table
from probmetric.io import (
    FileError,
    atomic_path,
    check_readable,
    digest_of,
    present,
    read_csv,
    read_json,
    read_tensors,
    read_text,
    read_yaml,
    remembered_json,
    sha256_file,
    write_json,
    write_tensors,
    write_text,
    write_yaml,
)
from probmetric.reporting.results import read_results
from probmetric.runs.folder import RunFolder


def test_a_failure_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "value.txt"
    write_text(path, "old")

    def interrupted():
        with atomic_path(path) as temporary:
            temporary.write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "value.txt"
    write_text(path, "old")
    code = (
        "import os, signal, sys; from probmetric.io import atomic_path\n"
        "with atomic_path(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('new'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode < 0
    assert path.read_text() == "old"


def test_permissions_follow_the_umask(tmp_path, monkeypatch):
    """It is not touched: for a moment all threads would write files that anybody may change."""
    set_umask = os.umask
    before = set_umask(0o027)
    monkeypatch.delattr(os, "umask")
    try:
        with atomic_path(tmp_path / "value.txt") as temporary:
            temporary.unlink()
            temporary.touch(0o600)  # as libraries that write a file of their own
    finally:
        set_umask(before)
    assert stat.S_IMODE((tmp_path / "value.txt").stat().st_mode) == 0o640


def test_a_path_below_a_file_cannot_be_written(tmp_path):
    write_text(tmp_path / "file", "x")
    with pytest.raises(FileError, match=r"cannot write .*file/below"):
        write_text(tmp_path / "file" / "below", "x")


@pytest.mark.parametrize("make", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_tensors_round_trip(tmp_path, make):
    values = make([[1.0, 2.0], [3.0, 4.0]])
    write_tensors(tmp_path / "x.safetensors", {"value": values}, {"who": "me"})
    tensors, metadata = read_tensors(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(tensors["value"], np.asarray(values))
    assert metadata == {"who": "me"}
    assert read_tensors(tmp_path / "x.safetensors", framework="torch")[0]["value"].shape == (2, 2)


TYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("shapes", [[(3, 5), (0, 4), (), (7,)]], ids=str)
def test_tensors_of_every_type_and_shape_are_what_safetensors_reads(tmp_path, shapes):
    """Against the format's own reader and writer: values, types, shapes and every byte after the header."""
    from safetensors.torch import load_file, save

    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{kind}{number}": torch.randint(0, 2, shape, generator=generator).to(getattr(torch, kind))
        for kind in TYPES
        for number, shape in enumerate(shapes)
    }
    write_tensors(tmp_path / "x.safetensors", tensors, {"who": "mé"})
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name], tensor), name
    content, theirs = (tmp_path / "x.safetensors").read_bytes(), save(tensors)
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0, "data are aligned"
    assert len(content) - length == len(theirs) - int.from_bytes(theirs[:8], "little")


def test_arrays_are_written_as_they_look(tmp_path):
    """Transposed, strided and of every type NumPy shares with the format."""
    values = np.arange(24).reshape(4, 6)
    for kind in set(TYPES) - {"bfloat16"}:
        for view in (values.T, values[::2, ::-1], values[:0]):
            write_tensors(tmp_path / "x", {"value": view.astype(kind)})
            np.testing.assert_array_equal(read_tensors(tmp_path / "x")[0]["value"], view.astype(kind))


def test_a_type_the_format_does_not_know_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"x cannot hold these tensors: .*complex128"):
        write_tensors(tmp_path / "x", {"z": np.zeros(2, dtype=np.complex128)})
    assert not list(tmp_path.iterdir())


def test_arrays_give_the_bytes_that_safetensors_gives(tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import save

    kinds = [kind for kind in TYPES if kind != "bfloat16"] + ["uint16", "uint32", "uint64"]
    shapes = enumerate([(3, 5), (0, 4), (), (7,)])
    arrays = {f"{kind}é{n}": np.ones(shape, dtype=kind) for n, shape in shapes for kind in kinds}
    write_tensors(tmp_path / "x.safetensors", arrays, {"who": "mé"})
    with safe_open(tmp_path / "x.safetensors", "numpy") as file:
        assert (tmp_path / "x.safetensors").read_bytes() == save(arrays, file.metadata())


def test_a_truncated_tensor_file_is_named(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"value": np.zeros(100)})
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileError, match=r"x\.safetensors is damaged or truncated .*delete it and run again"):
        read_tensors(path)
    with pytest.raises(FileError, match="is missing"):
        read_tensors(tmp_path / "none.safetensors")


def test_json_refuses_what_is_no_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"value": float("nan")})
    assert not (tmp_path / "x.json").exists()
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(FileError, match=r"x\.json is damaged .*delete it"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("value", [[], 3, None, {"a": 1}, {"a": {"b": "1"}}, {"a": {"b": [1]}}])
def test_json_of_another_kind_is_damaged(tmp_path, value):
    kind = dict[str, dict[str, float]]
    write_json(tmp_path / "x.json", {"a": {"b": 1, "c": 0.5}})
    assert read_json(tmp_path / "x.json", kind=kind) == {"a": {"b": 1, "c": 0.5}}
    write_json(tmp_path / "x.json", value)
    with pytest.raises(FileError, match=r"x\.json is damaged \((a|top level) should be .*; draw it again\.$"):
        read_json(tmp_path / "x.json", "draw it again", kind)


def test_yaml_is_loaded_safely(tmp_path):
    write_yaml(tmp_path / "x.yaml", {"b": 1, "a": [1, 2]})
    assert list(read_yaml(tmp_path / "x.yaml")) == ["b", "a"]
    (tmp_path / "x.yaml").write_text("!!python/object/apply:os.getcwd []")
    with pytest.raises(FileError, match="not valid YAML"):
        read_yaml(tmp_path / "x.yaml")


def test_a_key_that_stands_twice_in_yaml_is_named(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("methods:\n  arcface: {loss: arcface}\n  cosine: {loss: cosine}\n  arcface: {dim: 8}\n")
    with pytest.raises(
        FileError, match=r"not valid YAML: 'arcface' stands here again\s+in params\.yaml, line 4, column 3"
    ):
        read_yaml(path)
    path.write_text("deep: {one: &one {<<: &base {a: 1, b: 1}, a: 2}}\nother: {<<: *one, b: 3}\n1: x\n'1': y\n")
    assert read_yaml(path) == {"deep": {"one": {"a": 2, "b": 1}}, "other": {"a": 2, "b": 3}, 1: "x", "1": "y"}


def test_digests(tmp_path):
    write_text(tmp_path / "x", "abc")
    assert sha256_file(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 2, "b": 1})


def test_equal_tensors_and_metadata_are_equal_bytes(tmp_path) -> None:
    metadata = {"epoch": "3", "classes": '["ä", "\\n"]', "split": "test", "sources": "[]"}
    for number in range(8):
        write_tensors(tmp_path / f"{number}.safetensors", {"b": np.ones(3), "a": np.zeros((2, 2))}, metadata)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert read_tensors(tmp_path / "0.safetensors")[1] == metadata


READERS = {
    "text": read_text,
    "json": read_json,
    "yaml": read_yaml,
    "csv": read_csv,
    "tensors": read_tensors,
    "sha256": sha256_file,
    "digest": lambda path: read_digest(path.parent),
    "manifest": lambda path: read_table(path.parent),
    "history": lambda path: RunFolder(path.parent).history,
    "metrics": lambda path: RunFolder(path.parent).metrics,
    "embeddings": lambda path: RunFolder(path.parent.parent).tensors("test", "mean"),
    "finished": lambda path: RunFolder(path.parent).finished,
    "runs": lambda path: read_results(path.parent),
}
NAMES = {
    "digest": "digest",
    "manifest": "manifest.parquet",
    "history": "history.csv",
    "metrics": "metrics.json",
    "embeddings": "embeddings/test.safetensors",
    "finished": "metrics.json",
    "runs": "runs.parquet",
}
EVERY = pytest.mark.parametrize("reader", READERS)


def place(tmp_path, reader):
    path = tmp_path / NAMES.get(reader, "file.txt")
    path.parent.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize("reader", [name for name in READERS if name not in ("finished", "embeddings")])
def test_a_folder_in_place_of_a_file_is_named(tmp_path, reader):
    path = place(tmp_path, reader)
    path.mkdir()
    with pytest.raises(
        FileError, match=rf"{path} cannot be read: Is a directory; a folder stands where a file belongs"
    ):
        READERS[reader](path)


def test_a_device_is_no_file(tmp_path):
    """A link to it in somebody's model folder would be read until memory is full."""
    (tmp_path / "model.json").symlink_to("/dev/zero")
    with pytest.raises(FileError, match=r"model\.json cannot be read: it is a pipe, a socket or a device"):
        check_readable(tmp_path / "model.json")


@pytest.mark.parametrize("read", [read_json, read_yaml, read_tensors, sha256_file, read_csv])
def test_a_pipe_is_no_file(read, tmp_path):
    """Nobody may ever write to it: reading would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="pipe cannot be read: it is a pipe, a socket or a device; something else"):
        read(tmp_path / "pipe")


@EVERY
def test_a_link_to_nothing_is_named_and_never_taken_for_a_missing_file(tmp_path, reader):
    path = place(tmp_path, reader)
    path.symlink_to(tmp_path / "gone")
    with pytest.raises(
        FileError, match=rf"{path} is a link to {tmp_path / 'gone'}, which is missing; restore that file"
    ):
        READERS[reader](path)


@EVERY
def test_links_in_a_circle_are_named(tmp_path, reader):
    path = place(tmp_path, reader)
    path.symlink_to(path)
    with pytest.raises(FileError, match=rf"{path} .*(its links lead in a circle|is a link to)"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", [name for name in READERS if name not in ("finished", "embeddings")])
def test_a_file_without_permission_is_named_with_the_command(tmp_path, reader, monkeypatch):
    path = place(tmp_path, reader)
    path.write_text("x")
    really = open

    def refusing(file, *arguments, **options):
        if str(file) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return really(file, *arguments, **options)

    monkeypatch.setattr("builtins.open", refusing)
    with pytest.raises(FileError, match=rf"{path} cannot be read: Permission denied; make it readable \(chmod u\+r"):
        READERS[reader](path)


def test_what_may_be_missing_is_missing(tmp_path):
    (tmp_path / "file").write_text("")
    assert present(tmp_path / "file")
    assert not present(tmp_path / "none")
    assert not present(tmp_path / "file" / "below")
    assert RunFolder(tmp_path).history == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1\n", "a line has not 2 columns"),
        ("a,b\n1,2,3\n", "a line has not 2 columns"),
        ('a\n"x\n', "end of data"),
    ],
)
def test_a_damaged_table_is_named(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FileError, match=rf"t.csv is damaged \(.*{message}.*\); run x again\."):
        read_csv(tmp_path / "t.csv", "run x again")


def test_a_command_names_the_file_that_it_could_not_read(tmp_path, monkeypatch, capsys):
    from probmetric import cli

    def unreadable(options):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "x"))

    monkeypatch.setattr("probmetric.cli.runs.experiments", unreadable)
    assert cli.main(["experiments"]) == 2
    assert f"{tmp_path / 'x'} cannot be read: Permission denied; make it readable" in capsys.readouterr().err


def test_a_file_is_replaced_not_written_over(tmp_path):
    """Who has the old file open, or linked, keeps the old bytes: a copy onto it would change them under the reader."""
    path, linked = tmp_path / "value.txt", tmp_path / "linked.txt"
    write_text(path, "the old bytes")
    os.link(path, linked)
    with path.open() as reader:
        write_text(path, "new")
        assert reader.read() == "the old bytes"
    assert linked.read_text() == "the old bytes"
    assert path.read_text() == "new"


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    """After a power cut a name must not stand for a file whose content never arrived."""
    flushed, named = [], []
    fsync, replace = os.fsync, os.replace

    def flushing(handle):
        fsync(handle)
        state = os.fstat(handle)
        flushed.append((state.st_ino, state.st_size))

    def naming(source, target, **options):
        state = Path(source).stat()
        named.append(((state.st_ino, state.st_size) in flushed, os.fspath(target)))
        replace(source, target, **options)

    monkeypatch.setattr("os.fsync", flushing)
    monkeypatch.setattr("os.replace", naming)
    write_text(tmp_path / "a.txt", "content")
    write_json(tmp_path / "b.json", {"x": 1})
    write_tensors(tmp_path / "c.safetensors", {"x": np.arange(3)})
    assert named == [(True, str(tmp_path / name)) for name in ("a.txt", "b.json", "c.safetensors")]


def test_the_record_of_a_training_stands_only_where_its_weights_do(tmp_path, monkeypatch):
    run = RunFolder(tmp_path)
    weights, record = {"encoder.x": torch.zeros(2)}, {"training": {"epochs": 1, "selected_epoch": 0}}
    run.write_training(weights, weights, [{"epoch": 0}], record, ["epoch"])
    assert run.trained
    written, replace = [], os.replace

    def naming(source, target, **options):
        written.append(Path(target).name)
        assert not run.trained, f"the record stands while {written} are written"
        replace(source, target, **options)

    monkeypatch.setattr("os.replace", naming)
    run.write_training(weights, weights, [{"epoch": 0}], record, ["epoch"])
    assert written[-1] == "encoder.yaml"
    assert sorted(written[:-1]) == ["history.csv", "model.safetensors", "model_last.safetensors"]


@pytest.mark.parametrize("content", [None, b"", b'{"a": 1', b"\xff\xfe", b"[" * 100_000, b"1" * 10_000], ids=range(6))
def test_what_only_saves_work_is_nothing_when_damaged(tmp_path, content):
    path = tmp_path / "memory.json"
    if content is None:
        path.symlink_to("nowhere")
    else:
        path.write_bytes(content)
    assert remembered_json(path) is None
    assert remembered_json(tmp_path) is None
    write_json(tmp_path / "sound.json", {"a": 1})
    assert remembered_json(tmp_path / "sound.json") == {"a": 1}


@pytest.mark.parametrize("number", ["9" * 5000, "[" * 100_000], ids=["digits", "brackets"])
def test_what_json_cannot_hold_is_damage_wherever_it_stands(tmp_path, number):
    (tmp_path / "file.json").write_text(number)
    with pytest.raises(FileError, match=r"file\.json"):
        read_json(tmp_path / "file.json")
    (tmp_path / "file.yaml").write_text(number)
    with pytest.raises(FileError, match=r"file\.yaml"):
        read_yaml(tmp_path / "file.yaml")
    table = pa.table({name: pa.array([], pa.string()) for name in COLUMNS})
    pq.write_table(table.replace_schema_metadata({"probmetric": number}), tmp_path / "manifest.parquet")
    with pytest.raises(FileError, match=r"manifest\.parquet is damaged"):
        read_table(tmp_path)
    save_file({"x": np.zeros(1)}, tmp_path / "x.safetensors", {"probmetric": number})
    with pytest.raises(FileError, match=r"x\.safetensors is damaged: its header was altered"):
        read_tensors(tmp_path / "x.safetensors")


def test_tensors_that_do_not_fit_on_the_disk_are_a_sentence(tmp_path):
    """Nothing of them is left."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        with pytest.raises(FileError, match=re.escape("File too large")):
            write_tensors(tmp_path / "large.safetensors", {"a": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert not list(tmp_path.iterdir())
