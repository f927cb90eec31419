"""How this package words the errors a person makes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
