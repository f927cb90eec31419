"""The training loop, from a recipe and a seed to weights and a result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dumlp_pin._files import written_whole
from dumlp_pin.models import count_parameters, create_model
from dumlp_pin.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from dumlp_pin.training.distributed import Processes, join_processes
from dumlp_pin.training.recipe import OptimizerRecipe, Recipe
from dumlp_pin.training.results import (
    both_protocols,
    environment,
    plain,
    write_history,
    write_json,
)
from dumlp_pin.training.schedule import rate_factor
from dumlp_pin.training.tasks import Task, load_task
from dumlp_pin.training.watch import Watch

SCORING_BATCH = 256


class DivergenceError(FloatingPointError):
    """The loss is not a number any more."""


def train(
    recipe: Recipe,
    seed: int,
    out: Path,
    *,
    resume: bool = False,
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Train and score a model; returns the result, which is also in `out/result.json`.

    `out` gets checkpoint.safetensors (to resume), model.safetensors (the weights that were scored),
    metrics.jsonl and metrics.csv.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.set_float32_matmul_precision("highest" if recipe.precision == "fp32" else "high")
    processes = join_processes(device)
    task = load_task(recipe, device)

    torch.manual_seed(seed)
    model = create_model(recipe.model.name, **recipe.model.overrides).to(device)
    averaged = _averaged(model, recipe.ema)
    optimizer = _optimizer(model, recipe.optimizer)
    progress = Progress(recipe.to_dict(), seed, history=[])
    if resume:
        progress = load_checkpoint(out / "checkpoint.safetensors", model, averaged, optimizer)
        _check_same_run(progress, recipe, seed, out)
    elif (out / "checkpoint.safetensors").exists():
        raise FileExistsError(f"{out} holds a run: go on with --resume or choose another --out")

    scored = model if averaged is None else averaged.module
    parallel = processes.wrap(model)
    with Watch(f"{recipe.name} seed {seed}", recipe.epochs, progress.epochs_done) as watch:
        for epoch in range(progress.epochs_done, recipe.epochs):
            start = time.perf_counter()
            torch.manual_seed(_epoch_seed(seed, epoch))
            losses = _train_epoch(parallel, task, optimizer, averaged, recipe, epoch, processes)
            seconds = time.perf_counter() - start
            row = {
                "epoch": epoch + 1,
                "loss": _mean_or_raise(losses, recipe, epoch),
                "sets_per_second": task.size("train") / seconds,
                "seconds": seconds,
                **score(scored, task, recipe).compute(),
            }
            progress.history.append(row)
            progress.seconds += time.perf_counter() - start
            if processes.rank == 0:
                path = out / "checkpoint.safetensors"
                save_checkpoint(path, progress, model, averaged, optimizer)
                write_history(out, progress.history)
                watch.epoch(epoch + 1, row, task.headline)

    result = {
        "recipe": recipe.to_dict(),
        "seed": seed,
        "headline": task.headline,
        "scored_on": f"held-out {recipe.data.holdout:.0%} of training"
        if recipe.data.holdout
        else recipe.data.test,
        **both_protocols(progress.history, task.headline),
        "per_class": plain(score(scored, task, recipe).per_class()),
        "parameters": count_parameters(scored),
        "seconds": progress.seconds,
        "processes": processes.count,
        **environment(device),
    }
    if processes.rank == 0:
        with written_whole(out / "model.safetensors") as draft:
            save_file(scored.state_dict(), draft, {"model": recipe.model.name})
        write_json(out / "result.json", result)
    return result


def _train_epoch(
    model: nn.Module,
    task: Task,
    optimizer: torch.optim.Optimizer,
    averaged: AveragedModel | None,
    recipe: Recipe,
    epoch: int,
    processes: Processes,
) -> Tensor:
    """One pass over the training sets: the loss of every step, still on the device."""
    model.train()
    device = next(model.parameters()).device
    order = torch.randperm(task.size("train"), device=device)
    steps = order.split(recipe.batch_size * recipe.accumulate)
    losses = torch.zeros(len(steps), device=device)
    for step, sets in enumerate(steps):
        factor = rate_factor(recipe.schedule, epoch + step / len(steps), recipe.epochs)
        for group in optimizer.param_groups:
            group["lr"] = recipe.optimizer.lr * factor
        optimizer.zero_grad(set_to_none=True)
        for index in sets.split(recipe.batch_size):
            batch = task.batch("train", index)
            inputs = {name: processes.share(value) for name, value in batch.inputs.items()}
            target = processes.share(batch.target)
            with _autocast(device, recipe):
                output = model(**inputs)
            # Every set of a step weighs the same, however batches and processes share them.
            share = len(target) / len(sets)
            loss = task.loss(output, target) * share if share else output.sum() * 0
            (loss * processes.count).backward()  # DistributedDataParallel averages gradients
            losses[step] += processes.total(loss.detach())
        optimizer.step()
        if averaged is not None:
            averaged.update_parameters(getattr(model, "module", model))
    return losses


@torch.inference_mode()
def score(model: nn.Module, task: Task, recipe: Recipe) -> Any:
    """The metrics of a model on the sets that a task scores."""
    model.eval()
    device = next(model.parameters()).device
    metrics = task.new_metrics(device)
    for index in torch.arange(task.size("test"), device=device).split(SCORING_BATCH):
        batch = task.batch("test", index)
        with _autocast(device, recipe):
            output = model(**batch.inputs)
        task.score(metrics, output, batch)
    return metrics


def _epoch_seed(seed: int, epoch: int) -> int:
    """All chance of an epoch comes from here, so a resumed run draws what it would have drawn."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])


def _autocast(device: torch.device, recipe: Recipe) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16")


def _averaged(model: nn.Module, decay: float) -> AveragedModel | None:
    if not decay:
        return None
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


def _optimizer(model: nn.Module, recipe: OptimizerRecipe) -> torch.optim.Optimizer:
    parameters = model.parameters()
    if recipe.name == "adamw":
        return torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        parameters, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )


def _mean_or_raise(losses: Tensor, recipe: Recipe, epoch: int) -> float:
    """The only place where an epoch waits for the device."""
    finite = losses.isfinite()
    if not bool(finite.all()):
        step = int((~finite).nonzero()[0])
        rate = recipe.optimizer.lr * rate_factor(
            recipe.schedule, epoch + step / len(losses), recipe.epochs
        )
        raise DivergenceError(
            f"the loss is {float(losses[step])} in step {step + 1} of epoch {epoch + 1}, at "
            f"learning rate {rate:g}: try --set optimizer.lr={recipe.optimizer.lr / 10:g}, "
            "--set schedule.warmup_epochs=5 or --set precision=fp32; the last good epoch is in "
            "the checkpoint"
        )
    return float(losses.mean())


def _check_same_run(progress: Progress, recipe: Recipe, seed: int, out: Path) -> None:
    asked = plain(recipe.to_dict())
    if progress.seed != seed:
        raise ValueError(f"{out} holds a run with seed {progress.seed}, asked for {seed}")
    for key, value in asked.items():
        if progress.recipe.get(key) != value:
            raise ValueError(
                f"{out} holds a run with {key} = {progress.recipe.get(key)}, asked for {value}"
            )
