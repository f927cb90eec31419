from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from dumlp_pin._files import remove_drafts, written_whole


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
