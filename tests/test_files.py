from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from dumlp_pin._files import check_file, check_folder, remove_drafts, written_whole


def test_takes_the_place_of_the_old_file_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    for content in ("old", "new"):
        with written_whole(path) as draft:
            draft.write_text(content)
            assert not path.exists() or path.read_text() == "old"
        assert path.read_text() == content
        assert list(path.parent.iterdir()) == [path]


def test_who_reads_the_old_file_reads_on(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with path.open() as reader:
        with written_whole(path) as draft:
            draft.write_text("new")
        assert reader.read() == "old"


def test_stays_what_it_was_if_anything_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write(error: BaseException) -> None:
        with written_whole(path) as draft:
            draft.write_text("half")
            raise error

    for error in (ValueError("broken"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            write(error)
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*a\.txt'") as caught,
        written_whole(path),
        Path("/dev/full").open("w") as full,
    ):
        full.write("more than there is room for")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_an_error_with_a_name_keeps_it(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match=r"other\.txt"),
        written_whole(tmp_path / "a.txt") as draft,
    ):
        draft.write_bytes((tmp_path / "other.txt").read_bytes())


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    before = os.umask(0o022)
    try:
        with written_whole(path) as draft:
            draft.write_text("x")
            draft.chmod(0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_drafts_of_killed_processes_are_cleared_away(tmp_path: Path) -> None:
    for name in ("a.txt", ".hidden"):
        (tmp_path / name).write_text("kept")
    with written_whole(tmp_path / "a.txt") as draft:
        left = draft.with_name(draft.name.replace(str(os.getpid()), "1"))
        left.write_text("half")
    remove_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "a.txt"]


def test_a_file_where_a_folder_should_be_is_named_before_and_after_the_work(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    for check in (check_file, _write):
        with pytest.raises(NotADirectoryError, match=r"file is a file, expected a folder$"):
            check(path / "deep" / "a.txt")
        with pytest.raises(IsADirectoryError, match=r"is a folder, expected the name of a file$"):
            check(tmp_path)
    check_folder(tmp_path / "not" / "yet")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "kept"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_takes_no_files_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="nothing can be written into the folder"):
        check_file(tmp_path / "deep" / "a.txt")


def _write(path: Path) -> None:
    with written_whole(path) as draft:
        draft.write_text("new")
