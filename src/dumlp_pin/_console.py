"""Where tables are printed."""

from __future__ import annotations

import sys

from rich.console import Console


def table_console() -> Console:
    """As wide as the terminal; a file or a pipe has no width to keep to."""
    return Console(width=None if sys.stdout.isatty() else 160)
