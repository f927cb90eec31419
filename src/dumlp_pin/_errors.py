"""How this package words the errors a person makes."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an "unknown NAME" message: the nearest known name, or all of them.

    >>> nearest("softmx", ["softmax", "relu"])
    "; did you mean 'softmax'?"
    >>> nearest("tanh", ["softmax", "relu"])
    '; known: softmax, relu'
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def need(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say in one line what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{error.name} is not installed: pip install "dumlp-pin[{extra}]"', name=error.name
        ) from error
