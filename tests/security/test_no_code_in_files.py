"""No file a user may have received can run code: the source is searched for what could, and real attacks are tried."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import pickle
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from probmetric.data import DataError, prepare_dataset
from probmetric.data.archives import extract
from probmetric.io import FileError, read_json, read_tensors, read_yaml
from probmetric.models._base import read_state
from probmetric.reporting.words import templates
from probmetric.training.checkpoint import _MAGIC, Checkpoints, DamagedCheckpointError, read_checkpoint

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("benchmarks/*.py")])

# Calls that run what a file says, or write where an archive says.
FORBIDDEN = {
    *("pickle.load", "pickle.loads", "dill.load", "dill.loads", "cloudpickle.load", "cloudpickle.loads", "joblib.load"),
    *("marshal.load", "marshal.loads", "shelve.open", "pd.read_pickle", "pandas.read_pickle"),
    *("yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "os.system", "os.popen", "eval", "exec", "compile"),
    *("torch.hub.load", "torch.jit.load", "runpy.run_path", "shutil.unpack_archive", "np.fromregex"),
}
METHODS = {"extractall", "read_pickle", "unpack_archive"}
PICKLE_READER = "src/probmetric/data/sources/cifar.py"  # `_ArraysOnly`, which knows NumPy arrays and nothing else


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def problems(tree: ast.AST) -> list[str]:
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, options = dotted(call.func), {word.arg: word.value for word in call.keywords}
        if name in FORBIDDEN or name.rpartition(".")[2] in METHODS:
            found.append(name)
        if name == "torch.load" and not is_true(options.get("weights_only")):
            found.append("torch.load without weights_only=True")
        if name == "yaml.load" and dotted(options.get("Loader", ast.Constant(0))) != "loader":
            found.append("yaml.load without the safe loader")
        if is_true(options.get("shell")) or is_true(options.get("allow_pickle")):
            found.append(f"{name} with shell or allow_pickle")
        if name.endswith("Environment") and "loader" in options and not escapes(options.get("autoescape")):
            found.append("templates without autoescape")
    return found


def is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def escapes(node: ast.AST | None) -> bool:
    """By the templates' names, or all of them."""
    return is_true(node) or (isinstance(node, ast.Call) and dotted(node.func) == "select_autoescape")


def test_text_put_into_html_is_escaped():
    for name in templates().list_templates(filter_func=lambda name: ".html" in name):
        assert templates().autoescape(name), name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_source_never_runs_what_a_file_says(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert problems(tree) == []
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    if "pickle" in imports and str(path.relative_to(ROOT)) != PICKLE_READER:
        uses = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert {use for use in uses if use.startswith("pickle.")} <= {"pickle.UnpicklingError"}


@pytest.mark.parametrize(
    "line",
    [
        *(
            "pickle.load(f)",
            "torch.load(p)",
            "torch.load(p, weights_only=False)",
            "np.load(p, allow_pickle=True)",
            "eval(text)",
        ),
        *("yaml.load(f, Loader=yaml.Loader)", "subprocess.run(x, shell=True)", "tar.extractall(p)", "exec(x)"),
        *("loadmat(p, allow_pickle=True)", "jinja2.Environment(loader=x)"),
    ],
)
def test_the_search_finds(line):
    assert problems(ast.parse(line))


class Evil:
    """Unpickled, it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (exec, (f"open({str(self.marker)!r}, 'w').close()",))


@pytest.fixture
def marker(tmp_path):
    """A file no attack may create."""
    path = tmp_path / "the attack worked"
    yield path
    assert not path.exists()


def torch_file(value: object, path: Path) -> Path:
    torch.save(value, path)
    return path


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".safetensors"])
@pytest.mark.parametrize("form", ["pickle", "torch", "npy"])
def test_weight_files(tmp_path, marker, suffix, form):
    path = tmp_path / f"weights{suffix}"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Evil(marker)))
    elif form == "torch":
        torch_file({"weight": torch.zeros(2), "evil": Evil(marker)}, path)
    else:
        with path.open("wb") as file:
            np.save(file, np.array([Evil(marker)], dtype=object), allow_pickle=True)
    with pytest.raises(FileError, match="weights"):
        read_state(path)


def test_a_checkpoint_with_a_sound_digest(tmp_path, marker):
    """Who can write a checkpoint can also compute its digest; nothing in it runs, and the one before is used."""
    store = Checkpoints(tmp_path / "state")
    store.save(1, {"identity": "a"})
    content = io.BytesIO()
    torch.save({"identity": "a", "evil": Evil(marker)}, content)
    header = _MAGIC + hashlib.sha256(content.getvalue()).hexdigest().encode() + b"\n"
    (tmp_path / "state/step-000000002.checkpoint").write_bytes(header + content.getvalue())
    with pytest.raises(DamagedCheckpointError):
        read_checkpoint(store.files()[-1])
    assert store.load("a") == {"identity": "a"}


@pytest.mark.parametrize("read", [read_tensors, read_json, read_yaml])
def test_other_readers(tmp_path, marker, read):
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps(Evil(marker), protocol=0))
    with contextlib.suppress(FileError):  # to YAML, this pickle is a harmless text
        read(path)


def test_cifar_batches(tmp_path, marker):
    folder = tmp_path / "raw/cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]
    for name in names:
        (folder / name).write_bytes(pickle.dumps({"data": Evil(marker), "labels": [0]}))
    with pytest.raises(DataError, match=r"exec, which would run code"):
        prepare_dataset("cifar10", tmp_path / "out", raw=tmp_path / "raw", progress=False, subset=True)


@pytest.mark.parametrize("content", ["pickle", "MATLAB 5.0 MAT-file", "junk"])
def test_mat_files(tmp_path, marker, content):
    raw = tmp_path / "raw"
    (raw / "car_ims").mkdir(parents=True)
    evil = pickle.dumps(Evil(marker))
    padded = content.encode().ljust(124) + b"\x00\x01IM" + evil if content.startswith("MATLAB") else evil
    (raw / "cars_annos.mat").write_bytes(b"junk" * 99 if content == "junk" else padded)
    with pytest.raises(DataError, match=r"cars_annos\.mat"):
        prepare_dataset("cars", tmp_path / "out", raw=raw, progress=False, subset=True)


YAML_ATTACKS = [
    "!!python/object/apply:builtins.exec [\"open('{marker}', 'w').close()\"]",
    "!!python/object/new:type {{args: [x, !!python/tuple [], {{}}], state: {{}}}}",
    "experiments: !!python/object/apply:os.system ['touch \"{marker}\"']",
]


@pytest.mark.parametrize("text", YAML_ATTACKS)
def test_yaml(tmp_path, marker, text):
    (tmp_path / "params.yaml").write_text(text.format(marker=marker))
    with pytest.raises(FileError, match="not valid YAML"):
        read_yaml(tmp_path / "params.yaml")


@pytest.mark.slow
@pytest.mark.workflow
def test_yaml_read_by_snakemake(tmp_path, marker):
    (tmp_path / "params.yaml").write_text(YAML_ATTACKS[2].format(marker=marker))
    command = [sys.executable, "-m", "snakemake", "-n", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1"]
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode != 0


def tar_of(path: Path, *members: tuple[str, bytes, str]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info, io.BytesIO(b""))
    return path


ESCAPES = {
    "a link, then a file through it": [("d", tarfile.SYMTYPE, "/tmp"), ("d/evil", tarfile.REGTYPE, "")],
    "a hard link to outside": [("evil", tarfile.LNKTYPE, "../../outside")],
    "an absolute path": [("/tmp/probmetric-evil", tarfile.REGTYPE, "")],
    "a way up": [("a/../../evil", tarfile.REGTYPE, "")],
    "a way up, written backwards": [("a\\..\\..\\evil", tarfile.REGTYPE, "")],
    "a device": [("evil", tarfile.BLKTYPE, "")],
}


@pytest.mark.parametrize("case", ESCAPES)
def test_archives_cannot_leave_their_folder(tmp_path, case):
    archive = tar_of(tmp_path / "a.tar", *ESCAPES[case])
    with pytest.raises(DataError, match=r"a\.tar: member"):
        extract(archive, tmp_path / "in/side")
    assert not (tmp_path / "in/side").exists()
    assert not list(tmp_path.rglob("evil"))
    assert not Path("/tmp/probmetric-evil").exists()


def test_a_zip_with_two_names_for_a_member(tmp_path):
    """The local header says `good`, the directory says `../evil`: what is written is decided by the checked name."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good/12", b"content")
    content = path.read_bytes()
    directory = content.rindex(b"good/12")
    path.write_bytes(content[:directory] + b"../evil" + content[directory + 7 :])
    with pytest.raises(DataError, match=r"a\.zip"):
        extract(path, tmp_path / "in/side")
    assert not list(tmp_path.rglob("evil"))
