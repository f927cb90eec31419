"""Commands that train and score by recipe: demo, train, evaluate, reproduce."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional, UseAppendAction

from dumlp_pin._console import table_console
from dumlp_pin.cli.app import app, fail


@app.command
def demo(out: Path = Path("runs/demo"), seed: int = 0) -> None:
    """Train on the digits that ship with the package, beside mean pooling and Deep Sets.

    Args:
        out: The folder for weights, figures and tables; what a former demo left is replaced.
        seed: The seed of weights and batches.
    """
    from dumlp_pin.demo import run_demo

    run_demo(out, seed)


@app.command
def train(
    recipe: Positional[str],
    out: Path,
    seed: int = 0,
    seeds: int | None = None,
    set: UseAppendAction[tuple[str, ...]] = (),
    resume: bool = False,
    device: str | None = None,
    compile: Literal["auto", "on", "off"] = "auto",
    tensorboard: bool = False,
) -> None:
    """Train a model by a recipe.

    Args:
        recipe: A shipped recipe's name, such as digits, or a .toml file.
        out: The folder for checkpoint, weights, metrics and result.
        seed: The seed of weights, batches and augmentation.
        seeds: Train this many times, with seed and those after it, in out/seed0, out/seed1, ...;
            on a GPU at once.
        set: A change to the recipe, such as optimizer.lr=0.02; may be given again.
        resume: Go on from the checkpoint in the folder.
        device: Where to train, such as cpu or cuda:1; a GPU where there is one.
        compile: Compile the steps first, a minute that pays in long runs; auto is on on a GPU.
        tensorboard: Write the numbers of each epoch for TensorBoard too.
    """
    if seeds is not None and seeds < 2:
        raise ValueError(f"--seeds is {seeds}, expected at least 2: --seed chooses a single one")
    try:
        from dumlp_pin.training.distributed import join_processes
        from dumlp_pin.training.recipe import load_recipe
        from dumlp_pin.training.trainer import train_seeds

        folders = {seed: out}
        if seeds is not None:
            folders = {each: out / f"seed{each}" for each in range(seed, seed + seeds)}
        with join_processes(device) as processes:
            outcomes = train_seeds(
                load_recipe(recipe, set),
                folders,
                resume=resume,
                device=processes.device,
                compile={"auto": None, "on": True, "off": False}[compile],
                tensorboard=tensorboard,
            )
        results = dict(zip(folders.values(), outcomes, strict=True))
        if processes.rank == 0:
            _print_results(results)
            _draw(results)
    except KeyboardInterrupt:
        if any(out.rglob("checkpoint.safetensors")):
            fail("stopped; go on from the last epoch with the same command and --resume", 130)
        fail("stopped before the first epoch ended; nothing is left to go on from", 130)


def _print_results(results: dict[Path, dict[str, Any]]) -> None:
    for folder, result in results.items():
        headline = result["headline"]
        for title, protocol in (("last epoch", "last"), ("best epoch on test", "best_on_test")):
            row = result[protocol]
            print(f"{headline}, {title} ({row['epoch']}): {100 * row[headline]:.2f} %")
        print(folder / "result.json")
    if len(results) > 1:
        last = [100 * result["last"][result["headline"]] for result in results.values()]
        spread = f"{statistics.mean(last):.2f} +- {statistics.stdev(last):.2f} %"
        print(f"last epoch, mean and standard deviation of {len(last)} seeds: {spread}")


def _draw(results: dict[Path, dict[str, Any]]) -> None:
    """Pictures are extra: without the packages that draw them, a run is no less done."""
    from dumlp_pin.figures.run import draw_run

    try:
        for folder in results:
            print(*draw_run(folder))
    except ModuleNotFoundError as error:
        print(f"no pictures: {error}")


@app.command
def evaluate(model: Positional[str], data: str | None = None, device: str | None = None) -> None:
    """Score a trained model on its test sets.

    Args:
        model: The name of a model that ships trained, such as digits, or the folder of a run.
        data: Another data set with the same classes.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
    """
    from dumlp_pin.pretrained import find_pretrained
    from dumlp_pin.training.distributed import choose_device
    from dumlp_pin.training.evaluate import evaluate as score_again

    for metric, value in score_again(find_pretrained(model), data, choose_device(device)).items():
        print(f"{metric}: {100 * value:.2f} %")


@app.command
def reproduce(
    table: Positional[str],
    results: Path = Path("results"),
    run: bool = False,
    seeds: int = 5,
    device: str | None = None,
    out: Path | None = None,
) -> None:
    """Print a table of the paper beside the results of runs here.

    Args:
        table: table1 to table9, figure4 or grid, or a topic: complexity, which is table5, measures
            how fast the models are on this machine.
        results: The folder below which results are looked for.
        run: Train what is missing first, each run in a folder of its own below the results.
        seeds: How many seeds a row is trained with.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
        out: A .json file for the numbers of complexity.
    """
    from dumlp_pin.training.reproduce import reproduce as print_table

    try:
        print_table(table, results, table_console(), run=run, seeds=seeds, device=device, out=out)
    except KeyboardInterrupt:
        fail(f"stopped; the same command goes on: {results} has the last epoch", 130)
