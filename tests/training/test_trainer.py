from __future__ import annotations

import csv
import json
import math
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dumlp_pin import cli
from dumlp_pin.models import create_model, registry
from dumlp_pin.training import trainer
from dumlp_pin.training.run import DivergenceError, make_optimizer
from dumlp_pin.training.scoring import score
from dumlp_pin.training.tasks import SetClassification, load_task
from dumlp_pin.training.trainer import train
from tests.training.runs import QUICK, assert_same_bits, history, python, quick, weights

FILES = {
    "checkpoint.safetensors",
    "confusion.png",
    "curves.png",
    "metrics.csv",
    "metrics.jsonl",
    "model.safetensors",
    "result.json",
}
QUICKLY = [word for change in QUICK for word in ("--set", change)]


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `dumlp-pin`."""
    monkeypatch.setattr(sys, "argv", ["dumlp-pin", *map(str, arguments)])
    capsys.readouterr()
    status = 0
    try:
        cli.main()
    except SystemExit as exit:
        status = cast(int, exit.code)
    shown, error = capsys.readouterr()
    return status, shown, error


def test_as_a_user(tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    process = python(
        *("-m", "dumlp_pin", "train", "digits", "--out", str(out)),
        *("--set", "epochs=2", "--set", "optimizer.lr=0.02"),
    )
    shown, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert {path.name for path in out.iterdir()} == FILES
    assert str(out / "result.json") in shown.splitlines()

    result = json.loads((out / "result.json").read_text())
    assert result["recipe"]["optimizer"]["lr"] == 0.02
    assert result["seed"] == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[-1] == result["last"]
    with (out / "metrics.csv").open(newline="") as file:
        assert [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)] == rows
    create_model("dumlp_pin_digits").load_state_dict(weights(out))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digist"], "unknown recipe 'digist'; did you mean 'digits'?"),
        (["digits", "--set", "epoch=2"], "has no key 'epoch'; did you mean 'epochs'?"),
        (["digits", "--set", "optimizer.rl=2"], "has no key 'rl'"),
        (["digits", "--set", "optimizer.name=sdg"], "'sdg' is unknown; did you mean 'sgd'?"),
        (["digits", "--set", "epochs=many"], "expected int, got 'many'"),
        (["digits", "--set", "epochs"], "a change is written key=value, got 'epochs'"),
        (["digits", "--set", "model.name=dumlp_pin_digit"], "did you mean 'dumlp_pin_digits'?"),
        (["digits", "--set", "model.overrides.heads=[3]"], "argument 'heads'"),
        (["digits", "--set", "optimizer.lr=-1"], "Invalid learning rate: -1.0"),
        (["digits", "--device", "gpu"], "unknown device 'gpu': expected one such as cpu or cuda:1"),
        (["digits", "--seeds", "1"], "--seeds is 1, expected at least 2"),
        (["digits", "--seed", "-1"], "the seed is -1, expected a number from 0 to 2^63 - 1"),
        (["digits", "--device", "meta"], "PyTorch cannot compute on device meta here: use cpu"),
        (
            ["digits", "--set", "data.points=32"],
            "data.points is of points, and digits has images: leave it out",
        ),
        (
            ["digits", "--set", "model.overrides.num_classes=3"],
            "dumlp_pin_digits tells 3 classes apart, digits has 10: "
            "--set model.overrides.num_classes=10",
        ),
        (["digits", "--resume"], "nothing to resume: no checkpoint at"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    status, shown, error = command(monkeypatch, capsys, "train", *arguments, "--out", out)
    assert (status, shown) == (1, "")
    assert message in error
    assert error.startswith("dumlp-pin: ")
    assert error.count("\n") == 1
    assert not out.exists() or not list(out.iterdir())


def test_out_that_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    arguments = ("train", "digits", "--out", tmp_path / "file")
    status, _, error = command(monkeypatch, capsys, *arguments)
    assert (status, error.count("\n")) == (1, 1)
    assert f"{tmp_path / 'file'} is a file, expected a folder" in error


def test_ctrl_c(tmp_path: Path) -> None:
    arguments = ("train", "digits", "--out", str(tmp_path), *QUICKLY, "--set", "epochs=100000")
    process = python("-m", "dumlp_pin", *arguments)
    until = time.monotonic() + 60
    while not (tmp_path / "checkpoint.safetensors").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    expected = "stopped; go on from the last epoch with the same command and --resume"
    assert errors == f"dumlp-pin: {expected}\n"
    load_file(tmp_path / "checkpoint.safetensors")


def test_ctrl_c_before_there_is_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "load_task", interrupt)
    arguments = ("train", "digits", "--out", tmp_path)
    assert command(monkeypatch, capsys, *arguments) == (
        130,
        "",
        "dumlp-pin: stopped before the first epoch ended; nothing is left to go on from\n",
    )


def test_several_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", "digits", "--out", tmp_path / "all", "--seed", "4", *QUICKLY)
    epochs = ("--set", "epochs=1")
    status, shown, error = command(monkeypatch, capsys, *arguments, *epochs, "--seeds", "2")
    assert (status, error) == (0, "")
    train(quick("epochs=1"), 5, tmp_path / "alone")
    assert_same_bits(tmp_path / "all" / "seed5", tmp_path / "alone")
    last = [100 * history(tmp_path / "all" / f"seed{n}")[-1]["overall_accuracy"] for n in (4, 5)]
    spread = f"{statistics.mean(last):.2f} +- {abs(last[0] - last[1]) / math.sqrt(2):.2f} %"
    assert f"of 2 seeds: {spread}" in shown

    # Those that are done only report; the third had not begun.
    status, shown, _ = command(monkeypatch, capsys, *arguments, *epochs, "--seeds", "3", "--resume")
    assert status == 0
    (trained,) = (line for line in shown.splitlines() if "epoch 1/1" in line)
    assert trained.startswith("digits seed 6: ")


def test_the_result_is_what_the_file_says(tmp_path: Path) -> None:
    result = train(quick("epochs=1"), 0, tmp_path)
    assert result == json.loads((tmp_path / "result.json").read_text())


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path: Path) -> None:
    recipe = quick("epochs=1", "model.overrides.dropout=0.5")
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.rand(3)  # the state of the generator around a run does not matter
        train(recipe, seed, tmp_path / folder)
    assert_same_bits(tmp_path / "a", tmp_path / "b")
    assert history(tmp_path / "a") != history(tmp_path / "c")


def test_each_epoch_has_batches_of_its_own(tmp_path: Path) -> None:
    train(quick("optimizer.lr=0"), 0, tmp_path)  # batch norm sees who is with whom
    assert len({row["loss"] for row in history(tmp_path)}) == 3


def test_the_setting_for_matrix_products_is_given_back(tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    train(quick("epochs=1"), 0, tmp_path)
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_loss_becomes_nan(accumulate: int, tmp_path: Path) -> None:
    recipe = quick(
        "schedule.name=step",
        "schedule.warmup_epochs=0",
        "schedule.milestones=[1]",
        "schedule.factor=1e30",
        f"accumulate={accumulate}",
    )
    where = r"in step 2 of epoch 2, at learning rate 5e\+28"
    with pytest.raises(DivergenceError, match=where) as caught:
        train(recipe, 0, tmp_path)
    for advice in ("optimizer.lr=0.005", "warmup_epochs", "the checkpoint holds the epoch before"):
        assert advice in str(caught.value)
    assert len(history(tmp_path)) == 1
    for value in load_file(tmp_path / "checkpoint.safetensors").values():
        assert value.isfinite().all()


def test_the_last_step_spoils_the_weights(tmp_path: Path) -> None:
    recipe = quick(
        "batch_size=259",
        "schedule.warmup_epochs=0",
        "optimizer.lr=1e38",
        "optimizer.weight_decay=100",
    )
    message = "the weights blew up after step 1 of epoch 1"
    with pytest.raises(DivergenceError, match=message) as caught:
        train(recipe, 0, tmp_path)
    assert "checkpoint" not in str(caught.value)
    (left,) = tmp_path.iterdir()
    failure = json.loads(left.read_text())
    assert left.name == "failed.json"  # it counts among the seeds too
    assert (failure["seed"], failure["epoch"], failure["error"]) == (0, 1, str(caught.value))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_label_smoothing_is_shared_by_the_other_classes(smoothing: float) -> None:
    logits, target = torch.randn(7, 5), torch.tensor([0, 1, 2, 3, 4, 4, 0])
    wanted = torch.full((7, 5), smoothing / 4)
    wanted[torch.arange(7), target] = 1 - smoothing
    expected = -(wanted * logits.log_softmax(1)).sum(1).mean()
    task = SetClassification({}, quick(f"label_smoothing={smoothing}"), class_names="abcde")
    torch.testing.assert_close(task.loss(logits, target), expected)


class WithoutBatchNorm(nn.Module):
    """The mean of each set's elements through two layers: no set depends on its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.square()).mean(1)


@pytest.fixture
def without_batch_norm(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(registry._BUILDERS, "without_batch_norm", WithoutBatchNorm)
    return "model.name=without_batch_norm"


def test_accumulated_batches_are_one_step(without_batch_norm: str, tmp_path: Path) -> None:
    # 259 sets: two steps of 2 * 48 and one of 48 + 19, where each set weighs the same.
    common = (without_batch_norm, "epochs=2", "schedule.warmup_epochs=0", "optimizer.lr=0.5")
    train(quick(*common, "batch_size=48", "accumulate=2"), 0, tmp_path / "accumulated")
    train(quick(*common, "batch_size=96"), 0, tmp_path / "joint")
    torch.manual_seed(0)
    start = WithoutBatchNorm().state_dict()
    accumulated, joint = weights(tmp_path / "accumulated"), weights(tmp_path / "joint")
    for name, value in joint.items():
        moved = float((value - start[name]).abs().max())
        assert moved > 0.01
        # A sum in another order: a few roundings of float32 among six steps.
        torch.testing.assert_close(accumulated[name], value, rtol=0, atol=1e-5 * moved)


def test_averaged_weights(without_batch_norm: str, tmp_path: Path) -> None:
    # One step an epoch: the average begins as the weights after one, then adds a tenth of the next.
    common = (without_batch_norm, "batch_size=259", "schedule.name=step")
    common = (*common, "schedule.warmup_epochs=0", "optimizer.lr=0.5")
    train(quick(*common, "epochs=1"), 0, tmp_path / "first")
    train(quick(*common, "epochs=2"), 0, tmp_path / "second")
    recipe = quick(*common, "epochs=2", "ema=0.9")
    train(recipe, 0, tmp_path / "averaged")
    first, second, averaged = (weights(tmp_path / n) for n in ("first", "second", "averaged"))
    for name, value in averaged.items():
        torch.testing.assert_close(value, 0.9 * first[name] + 0.1 * second[name])


def test_averaged_weights_are_scored(tmp_path: Path) -> None:
    recipe = quick("batch_size=16", "optimizer.lr=0.2", "schedule.warmup_epochs=0", "ema=0.9")
    train(recipe, 0, tmp_path)
    recorded = history(tmp_path)[-1].items()
    task = load_task(recipe, torch.device("cpu"))
    model = create_model("dumlp_pin_digits")
    model.load_state_dict(weights(tmp_path))
    assert recorded >= score(model, task, recipe).compute().items()
    checkpoint = load_file(tmp_path / "checkpoint.safetensors")
    model.load_state_dict({name: checkpoint[f"model.{name}"] for name in model.state_dict()})
    assert not recorded >= score(model, task, recipe).compute().items()


@pytest.mark.parametrize(
    ("changes", "kind", "options"),
    [
        (
            ("optimizer.momentum=0.8", "optimizer.weight_decay=0.01"),
            torch.optim.SGD,
            {"lr": 0.05, "weight_decay": 0.01, "momentum": 0.8},
        ),
        (
            ("optimizer.name=adamw", "optimizer.lr=0.1", "optimizer.weight_decay=0.5"),
            torch.optim.AdamW,
            {"lr": 0.1, "weight_decay": 0.5},
        ),
    ],
)
def test_the_recipe_reaches_the_optimizer(
    changes: tuple[str, ...], kind: type, options: dict[str, float]
) -> None:
    optimizer = make_optimizer(WithoutBatchNorm(), quick(*changes).optimizer)
    assert type(optimizer) is kind
    assert optimizer.param_groups[0].items() >= options.items()
