"""Runs small enough to test with: a fifth of the embedded digits, and the rest scored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dumlp_pin import create_model
from dumlp_pin._files import save_tensors
from dumlp_pin.training.recipe import Recipe, load_recipe
from dumlp_pin.training.results import Row, plain, write_json
from dumlp_pin.training.watch import Watch

ROOT = Path(__file__).parents[2]
QUICK = ("epochs=3", "batch_size=64", "data.holdout=0.8")  # 259 sets: five steps an epoch
TIMES = ("seconds", "sets_per_second")


def quick(*changes: str) -> Recipe:
    return load_recipe("digits", [*QUICK, *changes])


@contextmanager
def stopped_after(epoch: int) -> Iterator[None]:
    """Ctrl-C as soon as an epoch of the run within is done."""
    show = Watch.epoch

    def show_or_stop(watch: Watch, number: int, rows: Sequence[Row], headline: str) -> None:
        show(watch, number, rows, headline)
        if number == epoch:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watch, "epoch", show_or_stop)
        with pytest.raises(KeyboardInterrupt):
            yield


def python(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Another process of this Python, which can be killed."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def history(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [_timeless(row) for row in rows]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same_bits(folder: Path, expected: Path) -> None:
    """Two runs left the same weights, optimizer state, history and result, but for the times."""
    for name in ("model.safetensors", "checkpoint.safetensors"):
        actual_tensors, tensors = load_file(folder / name), load_file(expected / name)
        assert actual_tensors.keys() == tensors.keys()
        for key, value in tensors.items():
            assert torch.equal(actual_tensors[key], value), key
    assert history(folder) == history(expected)
    results = [json.loads((each / "result.json").read_text()) for each in (folder, expected)]
    assert _timeless(results[0]) == _timeless(results[1])


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in TIMES}
    return value


def untrained_run(folder: Path, recipe_name: str, class_names: Sequence[str]) -> Path:
    """What a run of a shipped recipe leaves for others to load, with weights nobody trained."""
    recipe = load_recipe(recipe_name)
    torch.manual_seed(0)
    model = create_model(recipe.model.name, **recipe.model.overrides)
    save_tensors(folder / "model.safetensors", model.state_dict(), {})
    result = {"recipe": recipe.to_dict(), "class_names": class_names, "scored_on": "test"}
    write_json(folder / "result.json", plain(result))
    return folder
