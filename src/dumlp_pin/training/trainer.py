"""The training loop, from a recipe and seeds to weights and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from dumlp_pin.training.distributed import Processes, join_processes
from dumlp_pin.training.recipe import Recipe
from dumlp_pin.training.run import DivergenceError, Run
from dumlp_pin.training.scoring import matmul_precision
from dumlp_pin.training.tasks import load_task
from dumlp_pin.training.watch import Board, Watch

Result = dict[str, Any]


def train(
    recipe: Recipe,
    seed: int,
    out: Path,
    *,
    resume: bool = False,
    device: str | torch.device | None = None,
    compile: bool | None = None,
    tensorboard: bool = False,
) -> Result:
    """Train and score a model; returns the result, which is also in `out/result.json`.

    On a GPU the steps are compiled first, which takes a minute, unless `compile` says otherwise;
    elsewhere they are compiled only if it says so.
    """
    (result,) = train_seeds(
        recipe,
        {seed: out},
        resume=resume,
        device=device,
        compile=compile,
        tensorboard=tensorboard,
    )
    return result


def train_seeds(
    recipe: Recipe,
    folders: Mapping[int, Path],
    *,
    resume: bool = False,
    device: str | torch.device | None = None,
    compile: bool | None = None,
    tensorboard: bool = False,
) -> list[Result]:
    """A run for each seed in its folder: on a GPU all at once, elsewhere one after another.

    Of runs that were stopped, those that had not begun begin now.
    """
    first, *others = folders.values()
    begun = {first, *(out for out in others if (out / "checkpoint.safetensors").exists())}
    runs = [Run(recipe, seed, out, resume=resume and out in begun) for seed, out in folders.items()]
    results = {run: result for run in runs if (result := run.result()) is not None}
    to_do = [run for run in runs if run not in results]
    if to_do:
        with join_processes(device) as processes, matmul_precision(recipe):
            task = load_task(recipe, processes.device)
            on_gpu = processes.device.type == "cuda"
            for together in [to_do] if on_gpu else [[run] for run in to_do]:
                for run in together:
                    run.prepare(task, processes, compile=on_gpu if compile is None else compile)
                results |= _train_together(together, processes, tensorboard)
    return [results[run] for run in runs]


def _train_together(
    runs: Sequence[Run], processes: Processes, tensorboard: bool
) -> dict[Run, Result]:
    recipe, quiet = runs[0].recipe, processes.rank > 0
    done = min(run.epochs_done for run in runs)
    seeds = ", ".join(str(run.seed) for run in runs)
    title = f"{recipe.name} seed{'s' if len(runs) > 1 else ''} {seeds}"
    diverged: dict[Run, DivergenceError] = {}
    with ExitStack() as shown:
        boards = {}
        if tensorboard and not quiet:
            for run in runs:
                board = Board(run.out / "tensorboard", run.epochs_done)
                boards[run] = shown.enter_context(board)
        watch = shown.enter_context(Watch(title, recipe.epochs, done, quiet=quiet))
        for epoch in range(done, recipe.epochs):
            # Of runs that were stopped, one may be an epoch ahead: it waits for the others.
            active = [run for run in runs if run.epochs_done == epoch and run not in diverged]
            for run in active:
                run.begin()
            for step in range(runs[0].steps_an_epoch):
                for run in active:
                    run.take(step)
            rows = []
            for run in active:
                try:
                    rows.append(run.end())
                except DivergenceError as error:
                    diverged[run] = error
                    run.give_up(error)
                    continue
                if run in boards:
                    boards[run].epoch(epoch + 1, rows[-1])
            if not rows:
                break
            watch.epoch(epoch + 1, rows, runs[0].task.headline)
    results = {run: run.conclude(len(runs)) for run in runs if run not in diverged}
    for error in diverged.values():  # the runs beside it are done and kept
        raise error
    return results
