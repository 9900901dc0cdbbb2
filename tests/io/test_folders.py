"""Nothing that is not ours is replaced or deleted: somebody else's files, links, the current folder, sources."""

import shutil
from pathlib import Path

import pytest

from probmetric.io import FileError, alone
from probmetric.io.folders import (
    MARKER,
    check_apart,
    check_new_file,
    check_replaceable,
    claim_folder,
    foreign_files,
    mark_folder,
    new_folder,
    put_folder,
    remove_folder,
    scratch_folder,
)

KIND = "model folder"


def written(folder: Path, **files: str) -> Path:
    with new_folder(folder, KIND) as new:
        for name, text in (files or {"model": "weights"}).items():
            (new / name).write_text(text)
    return folder


def interrupted(target: Path, name: str) -> None:
    """Write a file into the scratch folder of `target`, and stop there."""
    scratch = scratch_folder(target, KIND)
    (scratch.__enter__() / name).write_text("long")
    assert scratch.__exit__(KeyError, KeyError(), None) is False


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_folder_is_written_whole_and_replaced_by_the_next(tmp_path):
    written(tmp_path / "model", model="old", readme="old")
    written(tmp_path / "model", model="new")
    assert sorted(tree(tmp_path / "model")) == [MARKER, "model"]
    assert (tmp_path / "model" / "model").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_error_leaves_the_old_folder_and_nothing_beside_it(tmp_path):
    written(tmp_path / "model", model="old")
    new = new_folder(tmp_path / "model", KIND)
    (new.__enter__() / "model").write_text("new")
    assert new.__exit__(KeyError, KeyError(), None) is False
    assert tree(tmp_path / "model")["model"] == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("place", ["notes.txt", "deep/er/notes.txt", ".hidden"])
@pytest.mark.parametrize("ours_too", [False, True])
def test_one_foreign_file_is_named_and_all_stays(tmp_path, place, ours_too):
    folder = tmp_path / "model"
    if ours_too:
        written(folder)
    note = folder / place
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text("a thesis")
    before = tree(tmp_path)
    with pytest.raises(FileError, match=rf"did not write there as its model folder: {place}\. Nothing was changed"):
        written(folder)
    with pytest.raises(FileError, match="name another folder"):
        remove_folder(folder, KIND)
    assert tree(tmp_path) == before


def test_what_others_called_like_ours_is_not_ours(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    with pytest.raises(FileError, match=r"model\.json"):
        written(tmp_path / "model")


@pytest.mark.parametrize("change", ["purpose", "files", "text", "number"])
def test_a_marker_that_was_changed_or_says_something_else_marks_nothing(tmp_path, change):
    folder = written(tmp_path / "model")
    (folder / "notes.txt").write_text("a thesis")
    text = (folder / MARKER).read_text()
    changed = {
        "purpose": text.replace(KIND, "gallery"),
        "files": text.replace('"model"', '"model",\n"notes.txt"'),
        "text": text[: len(text) // 2],
        "number": "1",
    }[change]
    assert changed != text
    (folder / MARKER).write_text(changed)
    with pytest.raises(FileError, match=r"notes\.txt"):
        check_replaceable(folder, KIND)


def test_a_folder_of_another_purpose_is_not_replaced(tmp_path):
    written(tmp_path / "model")
    with (
        pytest.raises(FileError, match="did not write there as its gallery"),
        new_folder(tmp_path / "model", "gallery"),
    ):
        pass
    with pytest.raises(FileError, match="did not write there as its gallery"):
        claim_folder(tmp_path / "model", "gallery")


def test_missing_and_empty_folders_are_free_and_what_browsers_leave_does_not_count(tmp_path):
    assert foreign_files(tmp_path / "none", KIND) == []
    (tmp_path / "model" / "empty").mkdir(parents=True)
    (tmp_path / "model" / ".DS_Store").write_text("")
    written(tmp_path / "model")
    assert sorted(tree(tmp_path / "model")) == [MARKER, "model"]


def test_fewer_files_than_were_written_are_still_ours(tmp_path):
    written(tmp_path / "model", a="1", b="2")
    (tmp_path / "model" / "a").unlink()
    remove_folder(tmp_path / "model", KIND)
    assert not (tmp_path / "model").exists()


def test_links_are_refused_and_what_they_lead_to_stays(tmp_path):
    photos = written(tmp_path / "photos")
    link = tmp_path / "link"
    link.symlink_to(photos)
    for call in (written, lambda folder: remove_folder(folder, KIND), lambda folder: claim_folder(folder, KIND)):
        with pytest.raises(FileError, match="link is a link; name the folder it leads to"):
            call(link)
    inside = written(tmp_path / "model") / "more"
    inside.symlink_to(photos)
    with pytest.raises(FileError, match="more"):
        written(tmp_path / "model")
    mark_folder(tmp_path / "model", KIND)  # the link as a file of ours: it goes, what it leads to stays
    written(tmp_path / "model")
    assert (photos / "model").read_text() == "weights"
    assert not (tmp_path / "model" / "more").exists()


def test_a_dangling_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(FileError, match="is a link"):
        written(tmp_path / "link")


def test_the_current_folder_home_their_parents_and_the_root_are_refused(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "work" / "here").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work" / "here")
    for place in (Path(), Path("../here"), Path(".."), tmp_path / "work", tmp_path, tmp_path / "home", Path("/")):
        with pytest.raises(FileError, match=r"is (the current|your home) folder or holds it; name a new folder"):
            check_replaceable(place, KIND)
        with pytest.raises(FileError, match="name a new folder"):
            claim_folder(place, KIND)


def test_the_source_is_no_destination_nor_what_lies_in_it_or_around_it(tmp_path):
    photos = tmp_path / "photos"
    (photos / "cats").mkdir(parents=True)
    (tmp_path / "way").symlink_to(photos)
    for place in (photos, photos / "cats", photos / "new", tmp_path / "way" / "cats", photos / "cats" / ".." / "cats"):
        with pytest.raises(FileError, match="overlap"):
            check_replaceable(place, KIND, [photos])
    with pytest.raises(FileError, match="overlap"):
        check_replaceable(photos, KIND, [photos / "cats"])
    check_replaceable(tmp_path / "photos2", KIND, [photos])
    with pytest.raises(FileError, match=r"data\.prepared \(.*x\) and data\.raw \(.*\) overlap"):
        check_apart({"data.raw": photos, "results": tmp_path / "results", "data.prepared": photos / "x"})


def test_siblings_of_somebody_else_with_our_temporary_names_stay(tmp_path):
    for name in (".model.old", ".model.work"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("a thesis")
        with pytest.raises(FileError, match=rf"\{name} holds what ProbMetric did not write there .*notes\.txt"):
            written(tmp_path / "model")
        assert (tmp_path / name / "notes.txt").read_text() == "a thesis"
        shutil.rmtree(tmp_path / name)
    (tmp_path / ".model.lock").write_text("a thesis")
    with pytest.raises(FileError, match="is a file with content; move it away"):
        written(tmp_path / "model")
    assert (tmp_path / ".model.lock").read_text() == "a thesis"


def test_what_a_killed_process_left_is_cleared(tmp_path):
    old = written(tmp_path / "model", model="old")
    old.rename(tmp_path / ".model.old")  # killed between two renames
    interrupted(tmp_path / "model", "half")
    (tmp_path / ".model.work" / f".{MARKER}.abc.tmp").write_text("half")
    written(tmp_path / "model", model="new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert sorted(tree(tmp_path / "model")) == [MARKER, "model"]


def test_a_scratch_folder_keeps_what_an_interrupted_call_made(tmp_path):
    interrupted(tmp_path / "model", "unpacked")
    with scratch_folder(tmp_path / "model", KIND) as work:
        assert (work / "unpacked").read_text() == "long"
    assert not list(tmp_path.iterdir())


def test_only_one_process_writes_a_folder(tmp_path):
    scratch = scratch_folder(tmp_path / "model", KIND, wait=False)
    with alone(tmp_path / "model"), pytest.raises(FileError, match=r"another process writes .*model"):
        scratch.__enter__()


def test_a_claimed_folder_keeps_the_files_of_others(tmp_path):
    claim_folder(tmp_path / "gallery", "gallery")
    (tmp_path / "gallery" / "notes.txt").write_text("a thesis")
    claim_folder(tmp_path / "gallery", "gallery")
    with pytest.raises(FileError, match=r"notes\.txt"):
        remove_folder(tmp_path / "gallery", "gallery")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "gallery.json").write_text("{}")
    with pytest.raises(FileError, match=r"as its gallery: gallery\.json"):
        claim_folder(tmp_path / "mine", "gallery")


def test_a_file_in_the_folder_s_place_is_said_and_stays(tmp_path):
    (tmp_path / "model").write_text("a thesis")
    with pytest.raises(FileError, match="model is a file where a folder is to be written"):
        written(tmp_path / "model")
    assert (tmp_path / "model").read_text() == "a thesis"


def test_single_files_are_replaced_only_where_they_are_ours(tmp_path):
    path = tmp_path / "model.onnx"
    check_new_file(path)
    path.write_text("a thesis")
    with pytest.raises(FileError, match="is there already"):
        check_new_file(path)
    check_new_file(path, lambda path: path.read_text() == "a thesis")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(FileError, match="is a link"):
        check_new_file(tmp_path / "link", lambda _: True)
    with pytest.raises(FileError, match="is a folder"):
        check_new_file(tmp_path)


def test_a_folder_made_elsewhere_takes_the_place_only_of_ours(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "notes.txt").write_text("a thesis")
    with pytest.raises(FileError, match=r"notes\.txt"):
        put_folder(tmp_path / "new", tmp_path / "target", KIND)
    assert (tmp_path / "target" / "notes.txt").exists()
