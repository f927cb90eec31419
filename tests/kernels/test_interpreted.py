"""The tests for a GPU, on a machine without: Triton's interpreter runs the kernels on the CPU.

It has to be asked for before Triton is imported, so the tests run in a process of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def has_an_interpreter() -> bool:
    """That of Triton before 3.7 needs what NumPy has taken away since."""
    try:
        major, minor = version("triton").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (3, 7)


@pytest.mark.skipif(not has_an_interpreter(), reason="needs Triton 3.7 or newer")
@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("test_triton_*.py")))
def test_kernels_in_the_interpreter(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-m", "gpu", str(HERE / name)]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed[^\n]*$", done.stdout, re.MULTILINE), done.stdout
    assert "skipped" not in done.stdout
