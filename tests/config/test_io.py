"""Files are written whole or not at all; problems name the file and the fix."""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch

from probmetric.io import (
    FileError,
    atomic_path,
    digest_of,
    read_json,
    read_tensors,
    read_yaml,
    sha256_file,
    write_json,
    write_tensors,
    write_text,
    write_yaml,
)


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


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "value.txt", "x")
    finally:
        os.umask(before)
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
    with pytest.raises(ValueError, match=r"tensor 'z' has type complex64; a safetensors file holds bool, .*float64\."):
        write_tensors(tmp_path / "x", {"z": np.zeros(2, dtype=np.complex64)})
    assert not list(tmp_path.iterdir())


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


def test_yaml_is_loaded_safely(tmp_path):
    write_yaml(tmp_path / "x.yaml", {"b": 1, "a": [1, 2]})
    assert list(read_yaml(tmp_path / "x.yaml")) == ["b", "a"]
    (tmp_path / "x.yaml").write_text("!!python/object/apply:os.getcwd []")
    with pytest.raises(FileError, match="not valid YAML"):
        read_yaml(tmp_path / "x.yaml")


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
