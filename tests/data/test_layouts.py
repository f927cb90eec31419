"""Laws of every reader: folder, zip and tar read alike; broken files give one line with a name."""

import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dumlp_pin.data import DataError
from dumlp_pin.data.records import Split
from dumlp_pin.data.registry import DATASETS

from .published import LAYOUTS

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
Read = Callable[..., Split]
Publish = Callable[[str], Path]


def fails(read: Read, layout: str, path: Path, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(layout, path)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@every_layout
def test_reads_every_split(layout: str, published: Publish, read: Read) -> None:
    folder = published(layout)
    for split in DATASETS[LAYOUTS[layout][0]].published:
        record = read(layout, folder, split)
        assert record.split == split
        assert len(record) > 0


@every_layout
@pytest.mark.parametrize("kind", ["zip", "tar", "gztar", "parent"])
def test_archives_read_like_folders(
    layout: str, kind: str, published: Publish, read: Read, tmp_path: Path
) -> None:
    folder = published(layout)
    path = folder.parent
    if kind != "parent":
        path = Path(shutil.make_archive(str(tmp_path / "packed"), kind, folder.parent, layout))
    expected, found = read(layout, folder).tensors(), read(layout, path).tensors()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@every_layout
def test_truncated(layout: str, published: Publish, read: Read) -> None:
    folder, file = published(layout), LAYOUTS[layout][2]
    raw = (folder / file).read_bytes()
    for size in (1, len(raw) // 2, len(raw) * 9 // 10):
        (folder / file).write_bytes(raw[:size])
        if layout == "shapenetpart-text" and size > 1:
            continue  # any number of points is legal there, see the test of half a row
        fails(read, layout, folder, file)


@every_layout
def test_empty(layout: str, published: Publish, read: Read) -> None:
    folder, file = published(layout), LAYOUTS[layout][2]
    (folder / file).write_bytes(b"")
    fails(read, layout, folder, file)


@every_layout
def test_overwritten(layout: str, published: Publish, read: Read) -> None:
    folder, file = published(layout), LAYOUTS[layout][2]
    (folder / file).write_bytes(b"<html>404 Not Found</html>\n" * 100)
    fails(read, layout, folder, file)


@every_layout
def test_renamed(layout: str, published: Publish, read: Read) -> None:
    folder, file = published(layout), LAYOUTS[layout][2]
    path = folder / file
    path.rename(path.with_name(f"other{path.suffix}"))
    fails(read, layout, folder, path.name.removesuffix(".gz"))


@every_layout
def test_nothing_of_it(layout: str, read: Read, tmp_path: Path) -> None:
    fails(read, layout, tmp_path, str(tmp_path))


@every_layout
def test_broken_inside_a_zip(layout: str, published: Publish, read: Read, tmp_path: Path) -> None:
    folder, file = published(layout), LAYOUTS[layout][2]
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:  # stored, so that bytes show
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    raw = bytearray((tmp_path / "packed.zip").read_bytes())
    payload = (folder / file).read_bytes()
    raw[raw.index(payload) + len(payload) // 2] ^= 1
    (tmp_path / "packed.zip").write_bytes(raw)
    fails(read, layout, tmp_path / "packed.zip", "packed.zip", file)


@every_layout
def test_broken_gzipped_tar(layout: str, published: Publish, read: Read, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(published(layout), ".")
    raw = (tmp_path / "packed.tar.gz").read_bytes()
    (tmp_path / "packed.tar.gz").write_bytes(raw[: len(raw) // 2])
    fails(read, layout, tmp_path / "packed.tar.gz", "packed.tar.gz")
