"""Clean environments, each with the wheel of this tree and one extra (make test-doors)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
KEPT_FROM_PIP = ("PIP_", "HTTP", "SSL", "REQUESTS", "HOME", "TMPDIR", "PATH", "LANG", "LC_")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They take minutes each, and run only where they are asked for."""
    if "doors" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("doors"):
                item.add_marker(pytest.mark.skip(reason="make test-doors"))


def _call(*words: str | Path, cwd: Path, status: int = 0) -> str:
    """What a command prints; it must end with `status`."""
    # Nothing of this process may leak in: neither its packages nor the checkout.
    env = {
        name: value for name, value in os.environ.items() if name.upper().startswith(KEPT_FROM_PIP)
    }
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == status, f"{' '.join(map(str, words))}\n{said}"
    return said


@dataclass(frozen=True)
class Door:
    """A clean environment, and an empty folder to work in."""

    programs: Path
    folder: Path

    def python(self, script: str, status: int = 0) -> str:
        file = self.folder / "script.py"
        file.write_text(script)
        return _call(self.programs / "python", file, cwd=self.folder, status=status)

    def command(self, *words: object, status: int = 0) -> str:
        program = self.programs / "dumlp-pin"
        return _call(program, *map(str, words), cwd=self.folder, status=status)


Open = Callable[[str], Door]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    _call(*pip, "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def open_door(wheel: Path, tmp_path: Path) -> Iterator[Open]:
    """`open_door("[sklearn]")`; the environment takes a gigabyte and is gone after the test."""
    environment, folder = tmp_path / "environment", tmp_path / "work"

    def install(extra: str) -> Door:
        venv.create(environment, with_pip=True)
        folder.mkdir()
        programs = environment / ("Scripts" if sys.platform == "win32" else "bin")
        pip = (programs / "python", "-m", "pip", "install", "--quiet")
        _call(*pip, "--constraint", ROOT / "constraints.txt", f"{wheel}{extra}", cwd=folder)
        return Door(programs, folder)

    yield install
    shutil.rmtree(environment)
