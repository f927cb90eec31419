"""What a kernel makes of a module's weights once, and keeps while they stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

T = TypeVar("T")

_KEPT: WeakKeyDictionary[nn.Module, tuple[Any, Any]] = WeakKeyDictionary()


def prepared(module: nn.Module, how: Hashable, make: Callable[[], T]) -> T:
    """What `make` made of the weights; made anew when one has changed, or for another `how`.

    PyTorch counts the changes of a tensor in `_version`, except those of inference tensors, through
    `.data`, and by a CUDA graph; whoever knows of such changes calls `forget`.

    >>> linear = nn.Linear(3, 2)
    >>> twice = prepared(linear, "twice", lambda: 2 * linear.weight)
    >>> prepared(linear, "twice", lambda: 2 * linear.weight) is twice
    True
    >>> _ = nn.init.ones_(linear.weight)
    >>> prepared(linear, "twice", lambda: 2 * linear.weight) is twice
    False
    """
    state: list[Any] = [how]
    for tensor in tensors_of(module):
        if tensor.is_inference():
            return _made(make)
        state += (tensor.data_ptr(), tensor._version)
    if module in _KEPT and _KEPT[module][0] == state:
        return _KEPT[module][1]
    result = _made(make)
    _KEPT[module] = (state, result)
    return result


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers, sooner than `nn.Module` lists them: this is asked on every call."""
    waiting = [module]
    while waiting:
        part = waiting.pop()
        yield from (tensor for tensor in part._parameters.values() if tensor is not None)
        yield from (tensor for tensor in part._buffers.values() if tensor is not None)
        waiting += [child for child in part._modules.values() if child is not None]


def forget(module: nn.Module) -> None:
    """Make it anew next time."""
    _KEPT.pop(module, None)


@torch.inference_mode(False)
@torch.no_grad()
def _made(make: Callable[[], T]) -> T:
    return make()
