"""The training loop, from a recipe and a seed to weights and a result."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dumlp_pin._files import remove_drafts, save_tensors
from dumlp_pin.models import count_parameters, create_model
from dumlp_pin.training.checkpoint import (
    Progress,
    load_state,
    read_progress,
    save_checkpoint,
)
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


class DivergenceError(FloatingPointError):
    """The loss is not a number any more."""


def train(
    recipe: Recipe,
    seed: int,
    out: Path,
    *,
    resume: bool = False,
    device: str | torch.device | None = None,
    compile: bool = False,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Train and score a model; returns the result, which is also in `out/result.json`.

    `out` gets checkpoint.safetensors (to resume), model.safetensors (the weights that were scored),
    metrics.jsonl and metrics.csv. `compile` spends a minute on `torch.compile` first.
    """
    with join_processes(device) as processes, matmul_precision(recipe):
        return _run(recipe, seed, out, resume, compile, tensorboard, processes)


def _run(
    recipe: Recipe,
    seed: int,
    out: Path,
    resume: bool,
    compile: bool,
    tensorboard: bool,
    processes: Processes,
) -> dict[str, Any]:
    checkpoint, result_file = out / "checkpoint.safetensors", out / "result.json"
    progress = Progress(plain(recipe.to_dict()), seed, history=[])
    if resume:
        asked, progress = progress, read_progress(checkpoint)
        _check_same_run(progress, asked, out)
        if progress.epochs_done == recipe.epochs and result_file.exists():
            return json.loads(result_file.read_text(encoding="utf-8"))
    elif checkpoint.exists() or result_file.exists():
        raise FileExistsError(f"{out} holds a run: go on with --resume or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    first = processes.rank == 0
    if first:
        remove_drafts(out)

    device = processes.device
    task = load_task(recipe, device)
    torch.manual_seed(seed)
    model = create_model(recipe.model.name, **recipe.model.overrides).to(device)
    averaged = _averaged(model, recipe.ema)
    optimizer = _optimizer(model, recipe.optimizer)
    if resume:
        load_state(checkpoint, model, averaged, optimizer)

    if compile:
        model.compile()
    scored = model if averaged is None else averaged.module
    parallel = processes.wrap(model)
    with Watch(
        f"{recipe.name} seed {seed}",
        recipe.epochs,
        done=progress.epochs_done,
        board=out / "tensorboard" if tensorboard else None,
        quiet=not first,
    ) as watch:
        for epoch in range(progress.epochs_done, recipe.epochs):
            start = time.perf_counter()
            losses = train_epoch(
                parallel, task, optimizer, averaged, recipe, seed, epoch, processes
            )
            loss = _mean_or_raise(losses, model, recipe, epoch)
            seconds = time.perf_counter() - start
            row = {
                "epoch": epoch + 1,
                "loss": loss,
                "sets_per_second": task.size("train") / seconds,
                "seconds": seconds,
                **score(scored, task, recipe).compute(),
            }
            progress.history.append(row)
            progress.seconds += time.perf_counter() - start
            if first:
                # The checkpoint comes last: what it calls done is in the other files already.
                write_history(out, progress.history)
                save_checkpoint(checkpoint, progress, model, averaged, optimizer)
                watch.epoch(epoch + 1, row, task.headline)

    metrics = score(scored, task, recipe)
    result = plain(
        {
            "recipe": recipe.to_dict(),
            "seed": seed,
            "headline": task.headline,
            "scored_on": f"held-out {recipe.data.holdout:.0%} of training"
            if recipe.data.holdout
            else recipe.data.test,
            **both_protocols(progress.history, task.headline),
            "class_names": task.class_names,
            "per_class": metrics.per_class(),
            "confusion": getattr(metrics, "confusion", None),  # true x predicted, of set classes
            "parameters": count_parameters(scored),
            "seconds": progress.seconds,
            "processes": processes.count,
            **environment(device),
        }
    )
    if first:
        metadata = {"model": recipe.model.name}
        save_tensors(out / "model.safetensors", scored.state_dict(), metadata)
        write_json(result_file, result)
    return result


def train_epoch(
    model: nn.Module,
    task: Task,
    optimizer: torch.optim.Optimizer,
    averaged: AveragedModel | None,
    recipe: Recipe,
    seed: int,
    epoch: int,
    processes: Processes,
) -> Tensor:
    """One pass over the training sets: the loss of every step, still on the device."""
    model.train()
    device = processes.device
    order = torch.Generator().manual_seed(_epoch_seed(seed, epoch))  # the same in all processes
    # Augmentation and dropout are not: no two processes have a set in common.
    torch.manual_seed(_epoch_seed(seed, epoch, 1 + processes.rank))
    sets_in_order = torch.randperm(task.size("train"), generator=order).to(device)
    steps = sets_in_order.split(recipe.batch_size * recipe.accumulate)
    losses = torch.zeros(len(steps), device=device)
    for step, sets in enumerate(steps):
        factor = rate_factor(recipe.schedule, epoch + step / len(steps), recipe.epochs)
        for group in optimizer.param_groups:
            group["lr"] = recipe.optimizer.lr * factor
        optimizer.zero_grad(set_to_none=True)
        for index in sets.split(recipe.batch_size):
            batch = task.batch("train", processes.share(index))
            with _autocast(device, recipe):
                output = model(**batch.inputs)
            # Every set of a step weighs the same, however batches and processes share them.
            share = len(batch.target) / len(sets)
            loss = task.loss(output, batch.target) * share if share else output.sum() * 0
            (loss * processes.count).backward()  # DistributedDataParallel averages gradients
            losses[step] += loss.detach()
        optimizer.step()
        if averaged is not None:
            averaged.update_parameters(getattr(model, "module", model))
    return processes.total(losses)


@torch.inference_mode()
def score(model: nn.Module, task: Task, recipe: Recipe) -> Any:
    """The metrics of a model on the sets that a task scores."""
    model.eval()
    device = next(model.parameters()).device
    metrics = task.new_metrics(device)
    for index in torch.arange(task.size("test"), device=device).split(task.scoring_batch()):
        batch = task.batch("test", index)
        with _autocast(device, recipe):
            output = model(**batch.inputs)
        task.score(metrics, output, batch)
    return metrics


def _epoch_seed(*numbers: int) -> int:
    """All chance of an epoch comes from here, so a resumed run draws what it would have drawn."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


@contextmanager
def matmul_precision(recipe: Recipe) -> Iterator[None]:
    """PyTorch has one setting for all; other code in the process gets its own back."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if recipe.precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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


def _check_same_run(progress: Progress, asked: Progress, out: Path) -> None:
    if progress.seed != asked.seed:
        raise ValueError(f"{out} holds a run with seed {progress.seed}, asked for {asked.seed}")
    for key, value in asked.recipe.items():
        if progress.recipe.get(key) != value:
            raise ValueError(
                f"{out} holds a run with {key} = {progress.recipe.get(key)}, asked for {value}"
            )
