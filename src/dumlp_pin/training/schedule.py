"""The learning rate at any moment of a run."""

from __future__ import annotations

import math

from dumlp_pin.training.recipe import ScheduleRecipe


def rate_factor(schedule: ScheduleRecipe, progress: float, epochs: int) -> float:
    """What the full learning rate is multiplied by after `progress` of `epochs` epochs.

    >>> rate_factor(ScheduleRecipe(milestones=(200,)), progress=200, epochs=250)
    0.1
    >>> rate_factor(ScheduleRecipe("cosine", warmup_epochs=10), progress=5, epochs=110)
    0.5
    """
    if progress < schedule.warmup_epochs:
        start = schedule.warmup_from
        return start + (1 - start) * progress / schedule.warmup_epochs
    if schedule.name == "cosine":
        done = (progress - schedule.warmup_epochs) / (epochs - schedule.warmup_epochs)
        return (1 + math.cos(math.pi * done)) / 2
    passed = sum(progress >= milestone for milestone in schedule.milestones)
    return schedule.factor**passed
