"""What a kernel makes of a module's weights once, and keeps while they stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

T = TypeVar("T")

_KEPT: WeakKeyDictionary[nn.Module, tuple[Any, Any]] = WeakKeyDictionary()


def prepared(module: nn.Module, how: Hashable, make: Callable[[], T]) -> T:
    """What `make` made of the weights; made anew when one has changed, or for another `how`.

    PyTorch counts the changes of a tensor in `_version`, except those of inference tensors.

    >>> linear = nn.Linear(3, 2)
    >>> twice = prepared(linear, "twice", lambda: 2 * linear.weight)
    >>> prepared(linear, "twice", lambda: 2 * linear.weight) is twice
    True
    >>> _ = nn.init.ones_(linear.weight)
    >>> prepared(linear, "twice", lambda: 2 * linear.weight) is twice
    False
    """
    tensors = [*module.parameters(), *module.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        return _made(make)
    state = (how, [(tensor.data_ptr(), tensor._version) for tensor in tensors])
    if module in _KEPT and _KEPT[module][0] == state:
        return _KEPT[module][1]
    result = _made(make)
    _KEPT[module] = (state, result)
    return result


def kept(module: nn.Module) -> list[Any]:
    """What is kept of a module and all in it."""
    return [_KEPT[part][1] for part in module.modules() if part in _KEPT]


@torch.inference_mode(False)
@torch.no_grad()
def _made(make: Callable[[], T]) -> T:
    return make()
