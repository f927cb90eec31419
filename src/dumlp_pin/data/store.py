"""The prepared copy: one safetensors file a split, written whole or not at all."""

import json
import os
import sys
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from dumlp_pin._files import save_tensors
from dumlp_pin.data.checks import DataError
from dumlp_pin.data.records import Split

FORMAT = "1"
S = TypeVar("S", bound=Split)


def data_root() -> Path:
    """`$DUMLP_PIN_DATA`, or a folder of ours in the platform's cache."""
    if chosen := os.environ.get("DUMLP_PIN_DATA"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "dumlp-pin"


def split_path(name: str, split: str) -> Path:
    return data_root() / name / f"{split}.safetensors"


def write(record: Split, source: str) -> Path:
    """Check a split and put it in its place under the data root."""
    record.check()
    path = split_path(record.name, record.split)
    metadata = {
        "format": FORMAT,
        "name": record.name,
        "split": record.split,
        "class_names": json.dumps(record.class_names),
        "sets": str(len(record)),
        "source": source,
    }
    save_tensors(path, record.tensors(), metadata)
    return path


def read_metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: broken file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise DataError(
            f"{path}: expected format {FORMAT}, got {metadata.get('format')}; prepare it again"
        )
    return metadata


def read(path: Path, record: type[S]) -> S:
    """Map a prepared split into memory and check it."""
    metadata = read_metadata(path)
    if (metadata["name"], metadata["split"]) != (path.parent.name, path.stem):
        raise DataError(f"{path}: holds {metadata['name']} {metadata['split']}")
    with safe_open(path, framework="pt") as file:
        values: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    try:
        loaded = record(
            name=metadata["name"],
            split=metadata["split"],
            class_names=tuple(json.loads(metadata["class_names"])),
            **values,
        )
        loaded.check()
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    return loaded
