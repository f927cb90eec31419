"""Published files, read by name from the folder, zip or tar they come in."""

import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from rich.progress import track

from dumlp_pin.data.checks import DataError, reason

_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")

# What the standard library's readers raise on broken archives. RuntimeError: a password is asked
# for; NotImplementedError: an unknown compression.
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    OverflowError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    LZMAError,
)


class Source:
    """The files of a folder; `open_source` opens archives as well."""

    def __init__(self, where: str, names: Iterable[str], progress: bool = False) -> None:
        self.where = where
        self.names = tuple(names)
        self._order = {name: index for index, name in enumerate(self.names)}
        self._progress = progress

    def stream(self, name: str) -> BinaryIO:
        return (Path(self.where) / name).open("rb")

    def locate(self, name: str) -> str:
        """How an error message names a file."""
        return f"{self.where}/{name}"

    def find(self, filename: str) -> str | None:
        """The one file of this name, in whatever folder, or None.

        A publisher's archive unpacks into a folder of its own; people pass either.
        """
        found = [name for name in self.names if PurePosixPath(name).name == filename]
        if len(found) > 1:
            raise DataError(f"{self.where}: holds {filename} {len(found)} times, expected one")
        return found[0] if found else None

    def read(self, name: str) -> bytes:
        if name not in self._order:
            raise DataError(f"{self.locate(name)}: no such file")
        try:
            with self.stream(name) as file:
                return file.read()
        except _BROKEN as error:
            raise DataError(f"{self.locate(name)}: cannot be read: {reason(error)}") from error

    def read_each(self, names: Iterable[str], doing: str) -> Iterator[tuple[str, bytes]]:
        """Name and content of many files, in the order of the archive: a tar only goes forward."""
        ordered = sorted(names, key=lambda name: self._order.get(name, -1))
        for name in track(ordered, doing, disable=not self._progress):
            yield name, self.read(name)

    def read_lines(self, name: str) -> list[str]:
        """The lines of a text file, blank ones left out."""
        try:
            text = self.read(name).decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{self.locate(name)}: is not text") from error
        return [line.strip() for line in text.splitlines() if line.strip()]

    @contextmanager
    def inner(self, name: str) -> Iterator["Source"]:
        """The archive that lies inside this source as a file."""
        with self.stream(name) as file:
            yield _open_archive(file, self.locate(name), self._progress)


class _Zip(Source):
    def __init__(self, archive: zipfile.ZipFile, where: str, progress: bool) -> None:
        self._archive = archive
        for entry in archive.infolist():
            _refuse_climbing(where, entry.filename, stat.S_ISLNK(entry.external_attr >> 16))
        names = (entry.filename for entry in archive.infolist() if not entry.is_dir())
        # Macs add a folder with a shadow of every file.
        names = (name for name in names if not name.startswith("__MACOSX/"))
        super().__init__(where, names, progress)

    def stream(self, name: str) -> BinaryIO:
        return cast(BinaryIO, self._archive.open(name))


class _Tar(Source):
    def __init__(self, archive: tarfile.TarFile, where: str, progress: bool) -> None:
        self._archive = archive
        for member in archive:
            _refuse_climbing(where, member.name, not (member.isreg() or member.isdir()))
        self._files = {member.name: member for member in archive if member.isreg()}
        super().__init__(where, self._files, progress)

    def stream(self, name: str) -> BinaryIO:
        file = self._archive.extractfile(self._files[name])
        assert file is not None  # these are regular files
        return cast(BinaryIO, file)


@contextmanager
def open_source(path: str | os.PathLike[str], progress: bool = False) -> Iterator[Source]:
    """A folder, zip or tar (plain or compressed) of published files.

    A folder that holds one archive and nothing else stands for it.
    """
    path = Path(path).expanduser()
    inside = path.rglob("*") if path.is_dir() else ()
    files = sorted(file for file in inside if file.is_file())
    if len(files) == 1 and files[0].name.endswith(_ARCHIVES):
        path = files[0]
    if path.is_dir():
        yield Source(str(path), (file.relative_to(path).as_posix() for file in files), progress)
    elif path.is_file():
        with path.open("rb") as file:
            yield _open_archive(file, str(path), progress)
    else:
        raise FileNotFoundError(f"{path}: no such folder or archive")


def _open_archive(file: BinaryIO, where: str, progress: bool) -> Source:
    try:
        is_zip = file.read(2) == b"PK"
        file.seek(0)
        if is_zip:
            return _Zip(zipfile.ZipFile(file), where, progress)
        return _Tar(tarfile.open(fileobj=file), where, progress)
    except DataError:
        raise
    except _BROKEN as error:
        raise DataError(f"{where}: neither a folder nor a readable zip or tar archive") from error


def _refuse_climbing(where: str, name: str, is_link: bool) -> None:
    # Nothing is ever unpacked, yet an archive with such an entry is not the published one.
    path = PurePosixPath(name.replace("\\", "/"))
    leaves = path.is_absolute() or ".." in path.parts or ":" in "".join(path.parts[:1])
    if is_link or leaves:
        raise DataError(f"{where}: refused, its entry {name!r} is a link or leaves the archive")
