"""The running average of a model's weights, which is often better than where they end."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Averaged:
    """Weights and batch norm statistics, each `decay` of what it was and the rest of what it is.

    It begins as the weights after the first step. What is counted, not measured, is copied.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> averaged = Averaged(model, decay=0.9)
    >>> for value in (1.0, 2.0):
    ...     _ = nn.init.constant_(model.weight, value)
    ...     averaged.update()
    >>> averaged.model.weight.data
    tensor([[1.1000]])
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model)
        self.begun = False
        self._add = get_ema_multi_avg_fn(decay)
        self._now, self._average = model.state_dict(), self.model.state_dict()

    def update(self) -> None:
        if self.begun:
            self._add(_floating(self._average), _floating(self._now), None)
        for name, value in self._now.items():
            if not (self.begun and value.is_floating_point()):
                self._average[name].copy_(value)
        self.begun = True

    def load(self, state: dict[str, Tensor]) -> None:
        self.model.load_state_dict(state)
        self.begun = True


def _floating(state: dict[str, Tensor]) -> list[Tensor]:
    return [value for value in state.values() if value.is_floating_point()]
