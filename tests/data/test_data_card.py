import shutil

import numpy as np
import pytest

from probmetric.data import DataError, add_noise, doctor, load_manifest, prepare_dataset
from probmetric.data.card import LICENCES, write_card
from probmetric.data.manifest import read_digest
from probmetric.data.sources import REGISTRY
from probmetric.io import FileError


def test_a_card_says_what_the_folder_holds(prepared_dataset, tmp_path):
    folder = prepared_dataset("digits")
    words = write_card(folder, tmp_path).read_text()
    frame = load_manifest(folder)
    for split, rows in frame.groupby("split"):
        assert f"| {split} | {len(rows)} | {rows.label.nunique()} |" in words
    assert all(f"| `{name}` | `{digest}` |" in words for name, digest in read_digest(folder).items())
    assert "CC BY 4.0" in words
    assert all(f"| `{name}` |" in words for name in frame.columns)


def test_the_card_of_own_data_is_titled_by_its_name_and_says_what_it_is_made_of(tmp_path):
    rows = np.random.default_rng(0).normal(size=(24, 3))
    np.savez(tmp_path / "v.npz", vector=rows, label=np.arange(24) % 4)
    options = {"raw": tmp_path / "v.npz", "progress": False, "split": "by_image"}
    words = write_card(prepare_dataset("embeddings", tmp_path / "shop", **options), tmp_path / "card").read_text()
    assert words.startswith("# shop\n\nvectors of 3 dimensions from v.npz\n\nProtocol: closed set.")


@pytest.mark.parametrize("name", REGISTRY.names())
def test_the_licence_of_every_embedded_dataset_is_known(name):
    source = REGISTRY.get(name)
    assert (name in LICENCES) == (not source.alternatives() and not source.needs_raw)


def test_another_readme_is_left_alone(prepared_dataset, tmp_path):
    (tmp_path / "README.md").write_text("ours")
    with pytest.raises(FileError, match=r"as its data card: README\.md"):
        write_card(prepared_dataset("digits"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    write_card(prepared_dataset("digits"), tmp_path / "new")
    write_card(prepared_dataset("digits"), tmp_path / "new")


@pytest.mark.parametrize("content", ["", "null", "[1]", "{}", '{"splits": 3}'])
def test_a_damaged_summary_is_named(prepared_dataset, tmp_path, content):
    folder = shutil.copytree(prepared_dataset("digits"), tmp_path / "digits")
    (folder / "summary.json").unlink()
    (folder / "summary.json").write_text(content)
    with pytest.raises(FileError, match=r"summary\.json is damaged"):
        write_card(folder, tmp_path / "card")
    assert "summary.json is damaged" in str(doctor(folder))
    with pytest.raises(FileError, match=r"summary\.json is damaged .*data ensure digits"):
        add_noise(folder, tmp_path / "digits+noise0.2", rate=0.2, kind="uniform", seed=0)


def test_every_column_of_letters_exact_is_explained(prepared_dataset, tmp_path):
    words = write_card(prepared_dataset("letters_exact"), tmp_path, licence="mine").read_text()
    assert "| `entropy` | entropy of P(class" in words
    assert "Noisy letters whose P(class | image) is known exactly" in words
    assert "Licence: mine." in words
    columns = words.partition("## Columns")[2].partition("## Files")[0]
    assert "` |  |" not in columns


def test_a_variant_with_wrong_labels_has_no_card_of_its_own(prepared_dataset, tmp_path):
    (tmp_path / "digits").symlink_to(prepared_dataset("digits"))
    add_noise(tmp_path / "digits", tmp_path / "digits+noise0.2", rate=0.2, kind="uniform", seed=0)
    with pytest.raises(DataError, match=r"shares the pixels of another dataset .*describe that one"):
        write_card(tmp_path / "digits+noise0.2", tmp_path / "card")
