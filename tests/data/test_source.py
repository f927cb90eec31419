import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from dumlp_pin.data import DataError
from dumlp_pin.data.source import open_source


def write_zip(path: Path, *names: str, mode: int = 0o100644) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, "content")
    return path


def write_tar(path: Path, name: str, kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        archive.addfile(entry, io.BytesIO())
    return path


@pytest.mark.parametrize(
    "name", ["../secret", "a/../../secret", "/etc/passwd", "..\\secret", "C:\\secret"]
)
@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_entries_that_climb_out_are_refused(name: str, write, tmp_path: Path) -> None:
    path = write(tmp_path / "archive", name)
    with pytest.raises(DataError, match="refused, its entry"), open_source(path):
        pass


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "archive", "link", mode=0o120777)
    with pytest.raises(DataError, match="refused, its entry 'link' is a link"), open_source(path):
        pass


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_pipes_in_a_tar_are_refused(kind: bytes, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "archive", "link", kind)
    with pytest.raises(DataError, match="refused, its entry 'link' is a link"), open_source(path):
        pass


def test_finds_a_file_in_whatever_folder(tmp_path: Path) -> None:
    with open_source(write_zip(tmp_path / "archive", "one/a.txt", "one/two/b.txt")) as source:
        assert source.find("b.txt") == "one/two/b.txt"
        assert source.find("c.txt") is None
        assert source.read("one/a.txt") == b"content"
        with pytest.raises(DataError, match=r"archive/c.txt: no such file"):
            source.read("c.txt")


def test_a_file_that_is_there_twice(tmp_path: Path) -> None:
    with (
        open_source(write_zip(tmp_path / "archive", "one/a.txt", "two/a.txt")) as source,
        pytest.raises(DataError, match=r"holds a.txt 2 times, expected one"),
    ):
        source.find("a.txt")


def test_copies_made_by_a_mac_are_ignored(tmp_path: Path) -> None:
    path = write_zip(
        tmp_path / "archive", "one/a.txt", "__MACOSX/one/a.txt", "__MACOSX/one/._a.txt"
    )
    with open_source(path) as source:
        assert source.names == ("one/a.txt",)


def test_reads_a_tar_forwards(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive.tar.xz", "w:xz") as archive:
        for name in "cab":
            entry = tarfile.TarInfo(name)
            entry.size = 1
            archive.addfile(entry, io.BytesIO(name.encode()))
    with open_source(tmp_path / "archive.tar.xz") as source:
        assert list(source.read_each("abc", "")) == [("c", b"c"), ("a", b"a"), ("b", b"b")]


def test_a_folder_with_one_archive_stands_for_it(tmp_path: Path) -> None:
    write_zip(tmp_path / "archive.zip", "a.txt")
    with open_source(tmp_path) as source:
        assert source.read("a.txt") == b"content"


def test_opens_an_archive_within(tmp_path: Path) -> None:
    write_zip(tmp_path / "inner.zip", "a.txt")
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.write(tmp_path / "inner.zip", "inner.zip")
    with open_source(tmp_path / "outer.zip") as outer, outer.inner("inner.zip") as inner:
        assert inner.read("a.txt") == b"content"
        assert inner.locate("a.txt") == f"{tmp_path}/outer.zip/inner.zip/a.txt"


@pytest.mark.parametrize("raw", [b"", b"PK", b"\x1f\x8b", b"neither"])
def test_not_an_archive(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(raw)
    with (
        pytest.raises(DataError, match="file: neither a folder nor"),
        open_source(tmp_path / "file"),
    ):
        pass


def test_nothing_there(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="nowhere: no such folder or archive"),
        open_source(tmp_path / "nowhere"),
    ):
        pass


def test_a_locked_zip(tmp_path: Path) -> None:
    raw = bytearray(write_zip(tmp_path / "archive", "a.txt").read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(signature) + offset] |= 1  # encrypted
    (tmp_path / "archive").write_bytes(raw)
    with (
        open_source(tmp_path / "archive") as source,
        pytest.raises(DataError, match=r"archive/a.txt: cannot be read: .*password"),
    ):
        source.read("a.txt")


def test_binary_where_text_should_be(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"\xff\xfe\x00")
    with open_source(tmp_path) as source, pytest.raises(DataError, match=r"list.txt: is not text"):
        source.read_lines("list.txt")
