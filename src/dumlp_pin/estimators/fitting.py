"""The training loop over packed sets, and the sizes it chooses from the data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin.sets import SetBatch
from dumlp_pin.training.recipe import ScheduleRecipe
from dumlp_pin.training.schedule import rate_factor

WEIGHT_DECAY = 0.01
ROWS_AT_ONCE = 2**17  # elements that go through the network together, at most


@dataclass(frozen=True)
class Plan:
    """How to train. `patience` counts epochs without a better held-out loss."""

    batch_size: int
    epochs: int
    learning_rate: float
    patience: int
    verbose: bool


Loss = Callable[[nn.Module, SetBatch, Tensor], Tensor]  # (b,) one number a set


def train(
    network: nn.Module,
    sets: SetBatch,
    target: Tensor,
    weight: Tensor,
    held_out: np.ndarray,
    loss: Loss,
    plan: Plan,
) -> list[dict[str, float]]:
    """Train on the sets that are not in `held_out`, and keep the weights of the best epoch there.

    Without held-out sets the weights of the last epoch are kept. Returns the losses of each epoch.
    """
    training = np.setdiff1d(np.arange(len(sets)), held_out)
    sizes = sets.sizes.cpu().numpy()
    # Fused: for networks this small, the optimiser would take as long as all the rest.
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=plan.learning_rate, weight_decay=WEIGHT_DECAY, fused=True
    )
    parts = _parts(len(training), plan.batch_size, int(sizes[training].sum()))
    schedule = ScheduleRecipe("cosine", warmup_epochs=plan.epochs // 10)
    history: list[dict[str, float]] = []
    best, best_epoch, best_state = math.inf, 0, None
    for epoch in range(plan.epochs):
        network.train()
        total = torch.zeros((), device=sets.device)
        order = training[torch.randperm(len(training)).numpy()]
        for step, chosen in enumerate(np.array_split(order, parts)):
            # In the middle of the step: neither the first nor the last has a rate of zero.
            factor = rate_factor(schedule, epoch + (step + 0.5) / parts, plan.epochs)
            optimizer.param_groups[0]["lr"] = plan.learning_rate * factor
            index = torch.from_numpy(chosen).to(sets.device)
            batch = take(sets, index, sizes[chosen])
            value = _mean(loss(network, batch, target[index]), weight[index])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total += value.detach()
        row = {"epoch": epoch + 1, "loss": float(total) / parts}
        if not math.isfinite(row["loss"]):
            raise FloatingPointError(
                f"the loss is {row['loss']} in epoch {epoch + 1}: try "
                f"learning_rate={plan.learning_rate / 10:g}"
            )
        if len(held_out):
            row["held_out"] = _score(network, sets, target, weight, held_out, loss, sizes)
            if row["held_out"] < best:
                best, best_epoch = row["held_out"], epoch
                best_state = copy.deepcopy(network.state_dict())
        history.append(row)
        if plan.verbose:
            print(", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
        if len(held_out) and epoch - best_epoch >= plan.patience:
            break
    if best_state is not None:
        network.load_state_dict(best_state)
    return history


@torch.inference_mode()
def _score(
    network: nn.Module,
    sets: SetBatch,
    target: Tensor,
    weight: Tensor,
    index: np.ndarray,
    loss: Loss,
    sizes: np.ndarray,
) -> float:
    network.eval()
    losses = []
    for chosen in pieces(index, sizes):
        where = torch.from_numpy(chosen).to(sets.device)
        losses.append(loss(network, take(sets, where, sizes[chosen]), target[where]))
    return float(_mean(torch.cat(losses), weight[torch.from_numpy(index).to(sets.device)]))


def _mean(losses: Tensor, weight: Tensor) -> Tensor:
    return (losses * weight).sum() / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)


def _parts(sets: int, batch_size: int, rows: int) -> int:
    """How many batches an epoch has; they are of nearly the same number of sets."""
    return max(1, round(sets / batch_size), math.ceil(rows / ROWS_AT_ONCE))


def take(sets: SetBatch, index: Tensor, sizes: np.ndarray) -> SetBatch:
    """Some of the sets, whose `sizes` the host knows: nothing waits for the device."""
    after = torch.from_numpy(sizes.cumsum()).to(sets.device)
    offsets = F.pad(after, (1, 0))
    shift = (sets.offsets[index] - offsets[:-1]).repeat_interleave(
        offsets.diff(), output_size=int(sizes.sum())
    )
    rows = torch.arange(len(shift), device=sets.device) + shift
    return SetBatch(sets.rows[rows], offsets)


def pieces(index: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """`index` cut so that no piece has more than ROWS_AT_ONCE elements beside its first set."""
    piece = sizes[index].cumsum() // ROWS_AT_ONCE
    yield from np.split(index, 1 + np.flatnonzero(np.diff(piece)))


def hold_out(strata: np.ndarray, fraction: float, random: np.random.RandomState) -> np.ndarray:
    """The indices of a `fraction` of the sets, the same part of each stratum; at least one stays.

    >>> held = hold_out(np.array([0] * 80 + [1] * 20), 0.25, np.random.RandomState(0))
    >>> len(held), (held >= 80).sum()
    (25, np.int64(5))
    """
    held = []
    for stratum in np.unique(strata):
        members = random.permutation(np.flatnonzero(strata == stratum))
        held.append(members[: min(round(fraction * len(members)), len(members) - 1)])
    return np.sort(np.concatenate(held))
