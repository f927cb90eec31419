"""Steps that are fed from the host, or captured, against steps that are neither."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dumlp_pin.training.feed import feed
from dumlp_pin.training.recipe import Recipe
from dumlp_pin.training.steps import Steps
from dumlp_pin.training.tasks import load_task
from dumlp_pin.training.trainer import train, train_seeds
from tests.training.runs import assert_same_bits, history, quick, weights

CPU = torch.device("cpu")


def test_fed_from_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = quick(
        "batch_size=43", "accumulate=2"
    )  # 259 sets: of the last step's batches one is short
    train(recipe, 0, tmp_path / "resident", device="cpu")
    monkeypatch.setattr(Steps, "_resident", False)
    train(recipe, 0, tmp_path / "fed", device="cpu")
    assert_same_bits(tmp_path / "fed", tmp_path / "resident")


def test_a_feed_keeps_the_order() -> None:
    task = load_task(quick(), CPU)
    batches = list(torch.randperm(task.size("train")).split(50))
    for index, rows in zip(batches, feed(task, batches, CPU), strict=True):
        assert torch.equal(rows["x"], task.arrays["train"]["x"][index])
        assert torch.equal(rows["target"], task.arrays["train"]["target"][index])


def test_seeds_one_after_another_are_what_each_is_alone(tmp_path: Path) -> None:
    recipe = quick("epochs=2", "batch_size=128")
    train_seeds(recipe, {seed: tmp_path / str(seed) for seed in (3, 4)}, device="cpu")
    train(recipe, 4, tmp_path / "alone", device="cpu")
    assert_same_bits(tmp_path / "4", tmp_path / "alone")


# PyTorch's compiler imports parts of PyTorch that PyTorch deprecates.
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
# PyTorch 2.6 says that of its own caches.
@pytest.mark.filterwarnings("ignore:Skipping serialization:UserWarning")
def test_compiled_it_is_the_same_training(tmp_path: Path) -> None:
    recipe = quick("epochs=1", "batch_size=128")
    train(recipe, 0, tmp_path / "compiled", device="cpu", compile=True)
    train(recipe, 0, tmp_path / "plain", device="cpu", compile=False)
    assert_near(tmp_path / "compiled", tmp_path / "plain")


needs_gpu = pytest.mark.gpu


@needs_gpu
@pytest.mark.parametrize(
    "changes",
    [
        ("precision=fp32",),
        ("precision=fp32", "batch_size=43", "accumulate=2", "ema=0.9"),
        ("precision=fp32", "optimizer.name=adamw", "optimizer.lr=0.001"),
    ],
)
@pytest.mark.parametrize("compile", [False, True])
def test_a_captured_step_is_every_step(
    changes: tuple[str, ...], compile: bool, tmp_path: Path
) -> None:
    recipe = quick(*changes)
    train(recipe, 0, tmp_path / "captured", device="cuda", compile=compile)
    train(recipe, 0, tmp_path / "on_cpu", device="cpu")
    losses = [[row["loss"] for row in history(tmp_path / n)] for n in ("captured", "on_cpu")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    if recipe.optimizer.name == "sgd":  # Adam's first steps are signs, which rounding can turn
        assert_near(tmp_path / "captured", tmp_path / "on_cpu")


@needs_gpu
def test_captured_steps_draw_new_random_numbers_and_those_of_their_seed(tmp_path: Path) -> None:
    recipe = quick("model.overrides.dropout=0.5", "optimizer.lr=0", "batch_size=259")
    folders = {seed: tmp_path / str(seed) for seed in (0, 1)}
    train_seeds(recipe, folders, device="cuda", compile=False)
    train(recipe, 1, tmp_path / "alone", device="cuda", compile=False)
    losses = [[row["loss"] for row in history(tmp_path / name)] for name in ("0", "1", "alone")]
    assert len(set(losses[1])) == len(losses[1])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[2], rel=1e-6)


@needs_gpu
def test_fed_from_the_host_to_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = quick("batch_size=43", "accumulate=2", "precision=fp32")
    train(recipe, 0, tmp_path / "resident", device="cuda", compile=False)
    monkeypatch.setattr("dumlp_pin.training.tasks.room_on", lambda device: 0)
    train(recipe, 0, tmp_path / "fed", device="cuda", compile=False)
    assert_near(tmp_path / "fed", tmp_path / "resident")


def assert_near(folder: Path, expected: Path) -> None:
    """Two runs that differ by the order of sums in a few steps."""
    start = _start(quick())
    for name, value in weights(expected).items():
        if value.is_floating_point():
            moved = (value - start[name]).abs().max()
            error = (weights(folder)[name] - value).abs().max()
            assert error <= 0.02 * moved + 1e-5, (name, float(error), float(moved))


def _start(recipe: Recipe) -> dict[str, Tensor]:
    from dumlp_pin.models import create_model

    torch.manual_seed(0)
    return create_model(recipe.model.name, **recipe.model.overrides).state_dict()
