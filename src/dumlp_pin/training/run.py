"""One run: a recipe and a seed, from fresh weights or a checkpoint to a result."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dumlp_pin._files import check_folder, remove_drafts, save_tensors
from dumlp_pin.models import count_parameters, create_model
from dumlp_pin.training.averaging import Averaged
from dumlp_pin.training.checkpoint import Progress, load_state, read_progress, save_checkpoint
from dumlp_pin.training.distributed import Processes
from dumlp_pin.training.recipe import OptimizerRecipe, Recipe
from dumlp_pin.training.results import both_protocols, environment, plain, write_history, write_json
from dumlp_pin.training.schedule import rate_factor
from dumlp_pin.training.scoring import score
from dumlp_pin.training.steps import Steps
from dumlp_pin.training.tasks import SetClassification, Task

FAILED = "failed.json"


class DivergenceError(FloatingPointError):
    """The loss is not a number any more."""


class Run:
    """One seed of a recipe in a folder of its own; the trainer says when each part happens.

    `prepare` it, then for each epoch `begin`, `take` every step and `end`, and at last `conclude`.
    The folder gets checkpoint.safetensors (to resume), model.safetensors (the weights that were
    scored), metrics.jsonl, metrics.csv and result.json.
    """

    def __init__(self, recipe: Recipe, seed: int, out: Path, *, resume: bool) -> None:
        self.recipe, self.seed, self.out = recipe, seed, out
        if not 0 <= seed < 2**63:
            raise ValueError(f"the seed is {seed}, expected a number from 0 to 2^63 - 1")
        self.checkpoint, self.result_file = out / "checkpoint.safetensors", out / "result.json"
        self.progress = Progress(plain(recipe.to_dict()), seed, history=[])
        self.resumes = resume
        check_folder(out)
        if resume:
            asked, self.progress = self.progress, read_progress(self.checkpoint)
            _check_same_run(self.progress, asked, out)
        elif self.checkpoint.exists() or self.result_file.exists():
            raise FileExistsError(f"{out} holds a run: go on with --resume or choose another --out")

    @property
    def epochs_done(self) -> int:
        return self.progress.epochs_done

    def result(self) -> dict[str, Any] | None:
        """What came out, if the run is over."""
        if self.epochs_done < self.recipe.epochs or not self.result_file.exists():
            return None
        try:
            return json.loads(self.result_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{self.result_file} is not JSON: {error}") from error

    def prepare(self, task: Task, processes: Processes, *, compile: bool) -> None:
        self.task, self.processes = task, processes
        if processes.rank == 0:
            self.out.mkdir(parents=True, exist_ok=True)
            remove_drafts(self.out)
        recipe = self.recipe
        torch.manual_seed(self.seed)
        model = create_model(recipe.model.name, **recipe.model.overrides).to(processes.device)
        _check_classes(model, task, recipe)
        self.averaged = Averaged(model, recipe.ema) if recipe.ema else None
        self.optimizer = make_optimizer(model, recipe.optimizer)
        if self.resumes:
            load_state(self.checkpoint, model, self.averaged, self.optimizer)
        self.model = model
        self.steps = Steps(
            model, task, recipe, self.optimizer, self.averaged, processes, compile=compile
        )

    @property
    def steps_an_epoch(self) -> int:
        return len(self.steps.sizes)

    @property
    def scored(self) -> nn.Module:
        return self.model if self.averaged is None else self.averaged.model

    def begin(self) -> None:
        """An epoch: which set comes when, and at which learning rates."""
        epoch, recipe, steps = self.epochs_done, self.recipe, self.steps_an_epoch
        self.started = time.perf_counter()
        chance = torch.Generator().manual_seed(_epoch_seed(self.seed, epoch))
        rates = [
            recipe.optimizer.lr * rate_factor(recipe.schedule, epoch + step / steps, recipe.epochs)
            for step in range(steps)
        ]
        # The order is the same in all processes. Augmentation and dropout are not: no two of them
        # have a set in common.
        order = torch.randperm(self.task.size("train"), generator=chance)
        self.steps.begin(order, rates, _epoch_seed(self.seed, epoch, 1 + self.processes.rank))

    def take(self, step: int) -> None:
        self.steps.take(step)

    def end(self) -> dict[str, float]:
        """Score the epoch and keep it."""
        losses = self.steps.end()
        loss = _mean_or_raise(losses, self.model, self.recipe, self.epochs_done)
        seconds = time.perf_counter() - self.started
        row = {
            "epoch": self.epochs_done + 1,
            "loss": loss,
            "sets_per_second": self.task.size("train") / seconds,
            "seconds": seconds,
            **score(self.scored, self.task, self.recipe).compute(),
        }
        self.progress.history.append(row)
        self.progress.seconds += time.perf_counter() - self.started
        if self.processes.rank == 0:
            # The checkpoint comes last: what it calls done is in the other files already.
            write_history(self.out, self.progress.history)
            save_checkpoint(
                self.checkpoint, self.progress, self.model, self.averaged, self.optimizer
            )
        return row

    def conclude(self, seeds_at_once: int) -> dict[str, Any]:
        """Score the weights that stay, and write down all there is to know about the run."""
        recipe, task, history = self.recipe, self.task, self.progress.history
        metrics = score(self.scored, task, recipe)
        result = plain(
            {
                "recipe": recipe.to_dict(),
                "seed": self.seed,
                "headline": task.headline,
                "scored_on": f"held-out {recipe.data.holdout:.0%} of training"
                if recipe.data.holdout
                else recipe.data.test,
                **both_protocols(history, task.headline),
                "class_names": task.class_names,
                "per_class": metrics.per_class(),
                # Of set classes: true x predicted.
                "confusion": getattr(metrics, "confusion", None),
                "parameters": count_parameters(self.scored),
                "seconds": self.progress.seconds,
                "seeds_at_once": seeds_at_once,
                "processes": self.processes.count,
                **environment(self.processes.device),
            }
        )
        if self.processes.rank == 0:
            metadata = {"model": recipe.model.name}
            save_tensors(self.out / "model.safetensors", self.scored.state_dict(), metadata)
            write_json(self.result_file, result)
            (self.out / FAILED).unlink(missing_ok=True)
        return result

    def give_up(self, error: DivergenceError) -> None:
        """Leave word of a run that diverged: it counts among the seeds of its recipe too."""
        if self.processes.rank == 0:
            failure = {
                "recipe": self.recipe.to_dict(),
                "seed": self.seed,
                "epoch": self.epochs_done + 1,
                "error": str(error),
                **environment(self.processes.device),
            }
            write_json(self.out / FAILED, plain(failure))


def make_optimizer(model: nn.Module, recipe: OptimizerRecipe) -> torch.optim.Optimizer:
    """Fused: all weights in one kernel, with a learning rate that may be on the device."""
    if recipe.name == "adamw":
        return torch.optim.AdamW(
            model.parameters(),
            lr=recipe.lr,
            weight_decay=recipe.weight_decay,
            fused=True,
            capturable=next(model.parameters()).is_cuda,
        )
    return torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def _epoch_seed(*numbers: int) -> int:
    """All chance of an epoch comes from here, so a resumed run draws what it would have drawn."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _mean_or_raise(losses: Tensor, model: nn.Module, recipe: Recipe, epoch: int) -> float:
    """The only place where an epoch waits for the device."""
    # The last step can spoil the weights after its loss was taken.
    weights = torch.stack([parameter.isfinite().all() for parameter in model.parameters()])
    finite = torch.cat((losses.isfinite(), weights.all()[None]))
    if not bool(finite.all()):
        step = int((~finite).nonzero()[0])
        what = (
            f"loss is {float(losses[step])} in" if step < len(losses) else "weights blew up after"
        )
        step = min(step, len(losses) - 1)
        rate = recipe.optimizer.lr * rate_factor(
            recipe.schedule, epoch + step / len(losses), recipe.epochs
        )
        raise DivergenceError(
            f"the {what} step {step + 1} of epoch {epoch + 1}, at learning rate {rate:g}: "
            f"try --set optimizer.lr={recipe.optimizer.lr / 10:g}, "
            "--set schedule.warmup_epochs=5 or --set precision=fp32"
            + ("; the checkpoint holds the epoch before" if epoch else "")
        )
    return float(losses.mean())


def _check_classes(model: Any, task: Task, recipe: Recipe) -> None:
    expected = len(task.class_names)
    classes = getattr(model, "num_classes", expected)
    if isinstance(task, SetClassification) and classes != expected:
        raise ValueError(
            f"{recipe.model.name} tells {classes} classes apart, {recipe.data.name} has "
            f"{expected}: --set model.overrides.num_classes={expected}"
        )


def _check_same_run(progress: Progress, asked: Progress, out: Path) -> None:
    if progress.seed != asked.seed:
        raise ValueError(f"{out} holds a run with seed {progress.seed}, asked for {asked.seed}")
    for key, value in asked.recipe.items():
        if progress.recipe.get(key) != value:
            raise ValueError(
                f"{out} holds a run with {key} = {progress.recipe.get(key)}, asked for {value}"
            )
