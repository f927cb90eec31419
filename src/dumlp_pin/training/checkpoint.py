"""The state of a run at the end of an epoch, in one file that is there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from dumlp_pin._files import save_tensors
from dumlp_pin.training.averaging import Averaged


@dataclass
class Progress:
    """What a run has done so far, beside its weights."""

    recipe: dict[str, Any]  # as JSON reads it back
    seed: int
    history: list[dict[str, float]]  # one row an epoch
    seconds: float = 0.0

    @property
    def epochs_done(self) -> int:
        return len(self.history)


def save_checkpoint(
    path: Path,
    progress: Progress,
    model: nn.Module,
    averaged: Averaged | None,
    optimizer: torch.optim.Optimizer,
) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    if averaged is not None:
        tensors |= {
            f"averaged.{name}": value for name, value in averaged.model.state_dict().items()
        }
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            tensors[f"optimizer.{index}.{name}"] = value
    save_tensors(path, tensors, {"progress": json.dumps(vars(progress))})


def read_progress(path: Path) -> Progress:
    if not path.is_file():
        raise FileNotFoundError(f"nothing to resume: no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            return Progress(**json.loads(file.metadata()["progress"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is broken, or not a checkpoint of a run: {error}") from error


def load_state(
    path: Path,
    model: nn.Module,
    averaged: Averaged | None,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Put the state of a checkpoint into a run that was set up like the one that wrote it."""
    tensors = load_file(path)
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in _under("optimizer.", tensors).items():
        index, name = key.split(".")
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    try:
        model.load_state_dict(_under("model.", tensors))
        if averaged is not None:
            averaged.load(_under("averaged.", tensors))
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} was written by another version of this model: {reason}"
        ) from error


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
