"""A call of a model as one CUDA graph: for the shortest time to the answer about a few sets.

A small set costs what its launches cost. A graph launches all kernels of a call at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dumlp_pin.kernels.prepared import Weights, kept_of
from dumlp_pin.sets import SetBatch

WARM_UPS = 3


def captured(model: nn.Module, *inputs: Any, **named_inputs: Any) -> Captured:
    """A model in eval mode as a CUDA graph, for inputs of the same shapes as these.

    What comes back is called as the model is, with tensors or a `SetBatch` on the GPU. Its answer
    lies in the same memory each time: the next call overwrites it. Once the weights change, it
    raises an error, and the model has to be captured again.

        fast = captured(model, torch.zeros(1, 1024, 6, device="cuda"))
        logits = fast(points)

    >>> model = nn.Linear(3, 2).eval()
    >>> captured(model, torch.zeros(1, 3))
    Traceback (most recent call last):
    ...
    ValueError: a CUDA graph needs a GPU, the input is on cpu
    """
    with torch.inference_mode(False), torch.no_grad():
        return Captured(model, Arguments(inputs, named_inputs))


class Captured:
    """See `captured`."""

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        self._model, self._arguments, self._weights = model, arguments, Weights(model)
        if any(part.training for part in model.modules()):
            raise RuntimeError("captured() is for inference: call eval() first")
        if arguments.device.type != "cuda":
            raise ValueError(f"a CUDA graph needs a GPU, the input is on {arguments.device}")
        if not self._weights.counted:
            raise RuntimeError("weights made in inference mode change unseen: make them outside it")
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(arguments.device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    arguments.call(model)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(self._graph):
                self._answer = arguments.call(model)
        # The graph reads what kernels made of weights, too: that memory has to stay as it is.
        self._kept = kept_of(model)

    @torch.no_grad()
    def __call__(self, *inputs: Any, **named_inputs: Any) -> Any:
        self._arguments.fill(inputs, named_inputs)
        self._graph.replay()
        # The GPU is at work meanwhile.
        if self._model.training or not self._weights.hold():
            raise RuntimeError("the model has changed since it was captured: capture it again")
        return self._answer


class Arguments:
    """The places in memory that a graph reads its inputs from.

    >>> arguments = Arguments([torch.zeros(2)], {})
    >>> arguments.fill([torch.ones(2)], {})
    >>> arguments.call(torch.sum)
    tensor(2.)
    >>> arguments.fill([torch.ones(3)], {})
    Traceback (most recent call last):
    ...
    ValueError: captured for (2,), torch.float32, cpu; got (3,), torch.float32, cpu
    """

    def __init__(self, inputs: Any, named: Mapping[str, Any]) -> None:
        self._inputs = [_copy(value) for value in inputs]
        self._named = {name: _copy(value) for name, value in named.items()}
        self._places = list(self._values(self._inputs, self._named))
        devices = [place.device for place in self._places if isinstance(place, Tensor)]
        if not devices:
            raise TypeError("captured() needs an example of each input: captured(model, x)")
        self.device = devices[0]

    def fill(self, inputs: Any, named: Mapping[str, Any]) -> None:
        values = list(self._values(inputs, named))
        if len(values) != len(self._places) or named.keys() != self._named.keys():
            raise TypeError("captured with other arguments: call it as it was captured")
        for place, value in zip(self._places, values, strict=True):
            if isinstance(place, Tensor) and isinstance(value, Tensor):
                same = _like(place) == _like(value)
            else:
                same = type(place) is type(value) and place == value
            if not same:
                raise ValueError(f"captured for {_described(place)}; got {_described(value)}")
        for place, value in zip(self._places, values, strict=True):
            if isinstance(place, Tensor):
                place.copy_(value)

    def call(self, model: Any) -> Any:
        """With nothing known yet of sets, nor of weights in another type, which autocast keeps.

        The graph has to find out each time: what is known outside of it goes away with its memory.
        """
        kind = self.device.type
        cast = torch.is_autocast_enabled(kind)
        named = {name: _fresh(value) for name, value in self._named.items()}
        with torch.autocast(kind, torch.get_autocast_dtype(kind), cast, cache_enabled=False):
            return model(*map(_fresh, self._inputs), **named)

    def _values(self, inputs: Any, named: Mapping[str, Any]) -> Iterator[Any]:
        """In the order in which they were named when this was made."""
        in_order = [named[name] for name in self._named if name in named] if named else []
        for value in (*inputs, *in_order):
            if isinstance(value, SetBatch):
                yield from (value.rows, value.offsets)
            else:
                yield value


def _copy(value: Any) -> Any:
    if isinstance(value, SetBatch):
        return SetBatch._trusted(_copy(value.rows), _copy(value.offsets))
    return value.detach().clone() if isinstance(value, Tensor) else value


def _fresh(value: Any) -> Any:
    return SetBatch._trusted(value.rows, value.offsets) if isinstance(value, SetBatch) else value


def _like(value: Tensor) -> tuple[Any, ...]:
    return value.shape, value.dtype, value.device


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)}, {value.dtype}, {value.device}"
    return repr(value)
