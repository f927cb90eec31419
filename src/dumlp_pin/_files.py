"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save
from torch import Tensor


def check_file(path: Path) -> None:
    """Whether a file can be written there: asked before work whose result it shall hold."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected the name of a file")
    check_folder(path.parent)


def check_folder(folder: Path) -> None:
    """Whether files can be written into a folder, which need not be there yet."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        raise NotADirectoryError(f"{there} is a file, expected a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"nothing can be written into the folder {there}: choose another")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name to write to; what stands there at the end takes the place of `path` at once.

    If anything fails on the way, a full disk for one, `path` stays what it was.
    """
    check_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.touch()
        mode = draft.stat().st_mode
        yield draft
        draft.chmod(mode)  # some writers allow the owner alone; the umask decides instead
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk names none
    finally:
        draft.unlink(missing_ok=True)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    content = save({name: value.contiguous() for name, value in tensors.items()}, metadata)
    with written_whole(path) as draft:
        draft.write_bytes(content)  # not `save_file`, which hides that the disk is full


def remove_drafts(folder: Path) -> None:
    """Clear away what killed processes left half-written; nobody may be writing there now."""
    for draft in folder.glob(".*.draft"):
        draft.unlink(missing_ok=True)
