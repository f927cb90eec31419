"""The application that the commands join, and how one ends that cannot go on."""

from __future__ import annotations

import sys
from typing import NoReturn

import tyro

app = tyro.extras.SubcommandApp()


def fail(message: str, status: int) -> NoReturn:
    print(f"dumlp-pin: {message}", file=sys.stderr)
    sys.exit(status)
