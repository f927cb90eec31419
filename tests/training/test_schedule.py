from __future__ import annotations

import pytest

from dumlp_pin.training.recipe import ScheduleRecipe
from dumlp_pin.training.schedule import rate_factor

CONSTANT = ScheduleRecipe()
STEPS = ScheduleRecipe(milestones=(200, 400), factor=0.1)
HALVES = ScheduleRecipe(milestones=(4, 2), factor=0.5)
COSINE = ScheduleRecipe("cosine")
WARM_COSINE = ScheduleRecipe("cosine", warmup_epochs=20)
WARM_STEPS = ScheduleRecipe(milestones=(10,), factor=0.5, warmup_epochs=4, warmup_from=0.2)


@pytest.mark.parametrize(
    ("schedule", "progress", "epochs", "expected"),
    [
        (CONSTANT, 0.0, 10, 1.0),
        (CONSTANT, 9.9, 10, 1.0),
        (STEPS, 199.99, 500, 1.0),
        (STEPS, 200.0, 500, 0.1),
        (STEPS, 399.99, 500, 0.1),
        (STEPS, 400.0, 500, 0.01),
        (HALVES, 3.0, 5, 0.5),  # milestones in any order
        (HALVES, 4.5, 5, 0.25),
        (COSINE, 0.0, 90, 1.0),
        (COSINE, 30.0, 90, 0.75),
        (COSINE, 45.0, 90, 0.5),
        (COSINE, 60.0, 90, 0.25),
        (COSINE, 90.0, 90, 0.0),
        (WARM_COSINE, 0.0, 110, 0.0),
        (WARM_COSINE, 5.0, 110, 0.25),
        (WARM_COSINE, 20.0, 110, 1.0),
        (WARM_COSINE, 65.0, 110, 0.5),
        (WARM_STEPS, 0.0, 20, 0.2),
        (WARM_STEPS, 1.0, 20, 0.4),
        (WARM_STEPS, 3.5, 20, 0.9),
        (WARM_STEPS, 4.0, 20, 1.0),
        (WARM_STEPS, 10.0, 20, 0.5),
        (ScheduleRecipe("cosine", warmup_epochs=5), 2.5, 3, 0.5),  # a run within its warm-up
    ],
)
def test_by_hand(schedule: ScheduleRecipe, progress: float, epochs: int, expected: float) -> None:
    assert rate_factor(schedule, progress, epochs) == pytest.approx(expected, abs=1e-12)
