"""What is kept of weights; that ways of inference notice their changes is in `test_choose`."""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import nn

from dumlp_pin.kernels.prepared import Weights


def test_nothing_comes_to_lie_where_weights_lay() -> None:
    """As what a module has that goes to another type and back: other numbers, uncounted."""
    linear, memory = nn.Linear(3, 2), np.ones((2, 3), dtype=np.float32)
    linear.weight = nn.Parameter(torch.from_numpy(memory))
    weights, is_free = Weights(linear), weakref.ref(memory)
    del memory
    linear.bfloat16()
    assert is_free() is not None
    assert not weights.hold()
    del weights
    assert is_free() is None
