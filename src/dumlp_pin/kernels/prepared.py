"""What a kernel makes of a module's weights once, and keeps while they stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

T = TypeVar("T")


class Weights:
    """The parameters and buffers of a module and its parts, as they were when this was made.

    PyTorch counts the changes of a tensor in `_version`, except those of inference tensors, through
    `.data`, and by a CUDA graph. Where a module goes to another type or device, its tensors get
    other memory. The old memory is kept here, so what takes its place cannot lie where it lay.
    """

    def __init__(self, module: nn.Module) -> None:
        parts = list(module.modules())
        # The dictionaries of modules, read as they are: whether this holds is asked on every call.
        held: list[dict[str, Any]] = [
            vars(part)[name] for part in parts for name in ("_modules", "_parameters", "_buffers")
        ]
        self._sizes = [(names, len(names)) for names in held]
        entries = [(names, name, value) for names in held for name, value in names.items()]
        tensors = [entry for entry in entries if isinstance(entry[2], torch.Tensor)]
        self._others = [entry for entry in entries if not isinstance(entry[2], torch.Tensor)]
        self.counted = not any(tensor.is_inference() for *_, tensor in tensors)
        self._tensors = [
            (*entry, entry[2].data_ptr(), entry[2]._version if self.counted else 0)
            for entry in tensors
        ]
        self._memory = [tensor.detach() for *_, tensor in tensors]

    def hold(self) -> bool:
        """Whether nothing has changed; False where changes are not counted."""
        if not self.counted:
            return False
        for names, size in self._sizes:
            if len(names) != size:
                return False
        for names, name, value in self._others:
            if names.get(name) is not value:
                return False
        for names, name, tensor, place, version in self._tensors:
            if names.get(name) is not tensor:
                return False
            if tensor.data_ptr() != place or tensor._version != version:
                return False
        return True


_KEPT: WeakKeyDictionary[nn.Module, tuple[Any, Weights, Any]] = WeakKeyDictionary()


def prepared(module: nn.Module, how: Hashable, make: Callable[[], T]) -> T:
    """What `make` made of the weights; made anew when one has changed, or for another `how`.

    Whoever knows of changes that PyTorch does not count calls `forget`.

    >>> linear = nn.Linear(3, 2)
    >>> twice = prepared(linear, "twice", lambda: 2 * linear.weight)
    >>> prepared(linear, "twice", lambda: 2 * linear.weight) is twice
    True
    >>> _ = nn.init.ones_(linear.weight)
    >>> prepared(linear, "twice", lambda: 2 * linear.weight) is twice
    False
    """
    if (kept := _KEPT.get(module)) is not None and kept[0] == how and kept[1].hold():
        return kept[2]
    weights, result = Weights(module), _made(make)
    if weights.counted:
        _KEPT[module] = how, weights, result
    return result


def kept_of(module: nn.Module) -> list[Any]:
    """All that is kept for a module and its parts: whoever holds this holds their memory."""
    return [_KEPT[part][2] for part in module.modules() if part in _KEPT]


def forget(module: nn.Module) -> None:
    """Make it anew next time."""
    _KEPT.pop(module, None)


@torch.inference_mode(False)
@torch.no_grad()
def _made(make: Callable[[], T]) -> T:
    return make()
