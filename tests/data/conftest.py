from collections.abc import Callable
from pathlib import Path

import pytest

from dumlp_pin.data.records import Split
from dumlp_pin.data.registry import DATASETS
from dumlp_pin.data.source import open_source

from .published import LAYOUTS


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root."""
    path = tmp_path / "root"
    monkeypatch.setenv("DUMLP_PIN_DATA", str(path))
    return path


@pytest.fixture
def published(tmp_path: Path) -> Callable[[str], Path]:
    """Write one of the layouts into a fresh folder."""

    def write(layout: str) -> Path:
        folder = tmp_path / "published" / layout
        folder.mkdir(parents=True)
        LAYOUTS[layout][1](folder)
        return folder

    return write


@pytest.fixture
def read() -> Callable[[str, Path, str], Split]:
    """Read a split of a layout and check it, as `prepare` does."""

    def read(layout: str, path: Path, split: str = "train") -> Split:
        reader = DATASETS[LAYOUTS[layout][0]].read
        assert reader is not None
        with open_source(path) as source:
            record = reader(source, split)
        record.check()
        return record

    return read
