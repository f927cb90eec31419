"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name to write to; what stands there at the end takes the place of `path` at once.

    If anything fails on the way, a full disk for one, `path` stays what it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.touch()
        mode = draft.stat().st_mode
        yield draft
        draft.chmod(mode)  # some writers allow the owner alone; the umask decides instead
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
