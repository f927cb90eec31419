from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dumlp_pin import SetBatch
from dumlp_pin.estimators import fitting
from dumlp_pin.estimators.fitting import Plan, hold_out, pieces, take, train


class _Constant(nn.Module):
    """Answers a number for every set, whatever it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(()))

    def forward(self, sets: SetBatch) -> torch.Tensor:
        return self.value.expand(len(sets))


def _train(target: list[float], held_out: list[int], **plan: Any) -> tuple[_Constant, list[Any]]:
    torch.manual_seed(0)
    network = _Constant()
    sets = SetBatch.from_list([torch.ones(index % 3 + 1, 1) for index in range(len(target))])
    values = {"batch_size": 4, "epochs": 40, "learning_rate": 0.1, "patience": 99} | plan
    history = train(
        network,
        sets,
        torch.tensor(target),
        torch.ones(len(target)),
        np.array(held_out, dtype=np.int64),
        lambda network, sets, target: (network(sets) - target).square(),
        Plan(**values, verbose=False),
    )
    return network, history


def test_without_held_out_sets_the_last_weights_are_the_result() -> None:
    network, history = _train([1.0] * 12, [])
    assert network.value.item() == pytest.approx(1, abs=0.05)
    assert len(history) == 40
    assert history[-1]["loss"] < 0.01 < history[0]["loss"]


def test_the_weights_of_the_best_epoch_on_held_out_sets_are_kept() -> None:
    # The sets trained on pull to 1, the held-out ones are best at 0.5 on the way.
    network, history = _train([1.0] * 8 + [0.5] * 4, [8, 9, 10, 11])
    losses = [row["held_out"] for row in history]
    assert min(losses) < 0.01 < losses[-1]
    assert (network.value.item() - 0.5) ** 2 == pytest.approx(min(losses), abs=1e-6)


def test_training_stops_when_patience_is_over() -> None:
    _, history = _train([1.0] * 8 + [-1.0] * 4, [8, 9, 10, 11], patience=3)
    assert len(history) == 4  # the first epoch was the best


def test_a_line_an_epoch_is_printed_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    network = _Constant()
    sets = SetBatch.from_list([torch.ones(1, 1)] * 3)
    train(
        network,
        sets,
        torch.ones(3),
        torch.ones(3),
        np.array([2]),
        lambda network, sets, target: (network(sets) - target).square(),
        Plan(batch_size=2, epochs=2, learning_rate=0.1, patience=9, verbose=True),
    )
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("epoch 1, loss 1, held_out ")
    assert second.startswith("epoch 2, ")


def test_one_epoch_is_enough_for_a_schedule() -> None:
    network, _ = _train([1.0] * 4, [], epochs=1)
    assert network.value.item() > 0


def test_sets_are_taken_in_the_order_asked_for() -> None:
    sets = SetBatch.from_list([torch.full((size, 1), float(size)) for size in (3, 1, 2)])
    taken = take(sets, torch.tensor([2, 0]), np.array([2, 3]))
    assert [one.tolist() for one in taken.to_list()] == [[[2.0]] * 2, [[3.0]] * 3]


def test_pieces_hold_no_more_elements_than_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "ROWS_AT_ONCE", 10)
    sizes = np.array([4, 4, 4, 30, 1, 9, 2])
    index = np.array([6, 0, 1, 3, 2, 5, 4])
    cut = list(pieces(index, sizes))
    np.testing.assert_array_equal(np.concatenate(cut), index)
    assert len(cut) > 3
    assert all(sizes[piece[1:]].sum() <= 10 for piece in cut)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.99])
def test_of_every_stratum_the_same_part_is_held_out_and_one_set_stays(fraction: float) -> None:
    strata = np.repeat([0, 1, 2], [100, 10, 1])
    held = hold_out(strata, fraction, np.random.RandomState(0))
    assert len(set(held)) == len(held)
    counts = np.bincount(strata[held], minlength=3)
    assert counts.tolist() == [min(round(fraction * n), n - 1) for n in (100, 10, 1)]
