"""Kernels take an MLP's layers to be as wide as it made them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

from torch import nn


def are_as_wide(linears: Iterable[nn.Module], widths: Sequence[int]) -> bool:
    """Whether nobody has put others in their place since.

    >>> from dumlp_pin import MLP
    >>> mlp = MLP((3, 16, 8))
    >>> mlp.linears[1] = nn.Linear(16, 9)
    >>> are_as_wide(mlp.linears, mlp.widths)
    False
    """
    shapes = [tuple(cast(nn.Linear, linear).weight.shape) for linear in linears]
    return shapes == [(after, before) for before, after in pairwise(widths)]
