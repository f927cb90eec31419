"""The state of a run at the end of an epoch, in one file that is there whole or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dumlp_pin._files import written_whole


@dataclass
class Progress:
    """What a run has done so far, beside its weights."""

    recipe: dict[str, Any]
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
    averaged: nn.Module | None,
    optimizer: torch.optim.Optimizer,
) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    if averaged is not None:
        tensors |= {f"averaged.{name}": value for name, value in averaged.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
    with written_whole(path) as draft:
        save_file(
            {name: value.contiguous() for name, value in tensors.items()},
            draft,
            {"progress": json.dumps(vars(progress))},
        )


def load_checkpoint(
    path: Path,
    model: nn.Module,
    averaged: nn.Module | None,
    optimizer: torch.optim.Optimizer,
) -> Progress:
    """Put the state of a checkpoint into a run that was set up like the one that wrote it."""
    if not path.is_file():
        raise FileNotFoundError(f"nothing to resume: no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a checkpoint of a run: {error}") from error
    model.load_state_dict(_under("model.", tensors))
    if averaged is not None:
        averaged.load_state_dict(_under("averaged.", tensors))
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in _under("optimizer.", tensors).items():
        index, name = key.split(".")
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return progress


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
