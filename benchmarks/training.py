"""How fast the paper's recipes train on this machine, and what bounds them.

    python benchmarks/training.py --out results/benchmarks/training.json --device cuda

Everything is measured in one run: the machine's own rates (large matrix products, a large copy);
the loop that research code usually has, which augments one set at a time and fetches the loss in
every step; and the trainer's epochs, of one seed and of several at once. Medians of whole epochs on
data of the published size; the values are random, never zeros.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import nn

from dumlp_pin.models import count_macs, create_model
from dumlp_pin.training.distributed import Processes, choose_device
from dumlp_pin.training.recipe import Recipe, load_recipe
from dumlp_pin.training.results import environment, plain, write_json
from dumlp_pin.training.run import make_optimizer
from dumlp_pin.training.scoring import matmul_precision
from dumlp_pin.training.steps import Steps
from dumlp_pin.training.tasks import Batch, PartSegmentation, SetClassification, Task

PUBLISHED = {"modelnet40": 9_840, "mnist": 60_000, "shapenetpart": 14_007}  # sets to train on
REPEATS = 5
NAIVE_SETS = 320


def main(
    out: Path | None = None,
    recipes: tuple[str, ...] = ("modelnet40", "mnist_s", "mnist_l", "shapenetpart_l"),
    seeds: tuple[int, ...] = (1, 5),
    precision: tuple[str, ...] = ("tf32", "bf16"),
    part: float = 1.0,
    device: str | None = None,
) -> None:
    """Measure and print.

    Args:
        out: A JSON file for the numbers, written anew after each of them.
        recipes: Shipped recipes of modelnet40, mnist or shapenetpart.
        seeds: How many seeds are trained at once.
        precision: Values of the recipes' precision.
        part: Of the published number of sets, so much is an epoch here.
        device: Where to measure; a GPU where there is one.
    """
    where, console = choose_device(device), Console(width=150)
    rates = machine_rates(where)
    console.print(", ".join(f"{name} {rate / 1e12:,.2f} T/s" for name, rate in rates.items()))
    hardware = environment(where)
    console.print(f"{hardware['device']}, {hardware['threads']} threads, torch {torch.__version__}")
    measured: list[dict[str, Any]] = []
    for name, kind in itertools.product(recipes, precision):
        recipe = load_recipe(name, [f"precision={kind}"])
        task = random_task(recipe, max(NAIVE_SETS, int(PUBLISHED[recipe.data.name] * part)), where)
        naive = naive_rate(task, where) if kind == precision[0] else None
        for together in seeds:
            with matmul_precision(recipe):
                per_second, setup = trainer_rate(task, together, where)
            row = {
                "recipe": name,
                "precision": kind,
                "seeds": together,
                "sets_per_second": per_second,
                "seconds_an_epoch_and_seed": PUBLISHED[recipe.data.name] / per_second,
                "seconds_to_set_up": setup,
                "naive_sets_per_second": naive,
                **shares(task, kind, per_second, rates),
            }
            measured.append(row)
            console.print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
            if out is not None:
                write_json(out, plain({"rates": rates, "measured": measured} | hardware))
    console.print(shown(measured))


def shown(measured: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for header in (
        "recipe",
        "precision",
        "seeds",
        "sets/s",
        "s/epoch",
        "naive",
        "matrix",
        "memory",
    ):
        table.add_column(header, justify="left" if header in ("recipe", "precision") else "right")
    naive = {row["recipe"]: row["naive_sets_per_second"] for row in reversed(measured)}
    for row in measured:
        table.add_row(
            row["recipe"],
            row["precision"],
            str(row["seeds"]),
            f"{row['sets_per_second']:,.0f}",
            f"{row['seconds_an_epoch_and_seed']:.3f}",
            f"{row['sets_per_second'] / naive[row['recipe']]:.0f} x",
            f"{row['share_of_matrix_rate']:.1%}",
            f"{row['share_of_memory_rate']:.1%}",
        )
    return table


def random_task(recipe: Recipe, sets: int, device: torch.device) -> Task:
    """Values of no meaning in the shapes of a published data set."""
    torch.manual_seed(0)
    points = recipe.data.points or 784
    if recipe.data.name == "mnist":
        images = torch.randint(256, (sets, 28, 28), dtype=torch.uint8, device=device)
        arrays = {"x": images, "target": torch.randint(10, (sets,), device=device)}
        return SetClassification({"train": arrays, "test": arrays}, recipe, "0123456789")
    if recipe.data.name == "modelnet40":
        clouds = torch.randn(sets, points, 6, device=device)
        arrays = {"x": clouds, "target": torch.randint(40, (sets,), device=device)}
        return SetClassification({"train": arrays, "test": arrays}, recipe, [""] * 40)
    arrays = {
        "x": torch.randn(sets, points, 3, device=device),
        "target": torch.randint(50, (sets, points), dtype=torch.uint8, device=device),
        "category": torch.randint(16, (sets,), device=device),
    }
    return PartSegmentation({"train": arrays, "test": arrays}, recipe, [""] * 16, [[]])


def trainer_rate(task: Task, seeds: int, device: torch.device) -> tuple[float, float]:
    """Sets a second of all seeds together, and the seconds that compiling and capturing took."""
    torch._dynamo.reset()  # of all that it compiles it keeps a few versions only
    start = time.perf_counter()
    each = [_steps(task, seed, device) for seed in range(seeds)]
    size, steps = task.size("train"), len(each[0].sizes)

    def epoch() -> None:
        for one in each:
            one.begin(torch.randperm(size), [1e-4] * steps, seed=0)
        for step in range(steps):
            for one in each:
                one.take(step)
        for one in each:
            one.end()

    for _ in range(3):  # the few sets of an epoch's last step are captured in the third
        seconds(epoch, device)
    setup = time.perf_counter() - start
    return seeds * size / statistics.median(seconds(epoch, device) for _ in range(REPEATS)), setup


def naive_rate(task: Task, device: torch.device) -> float:
    """What a data set class and a loader without thought do: each set is prepared on its own."""
    steps = _steps(task, 0, device, compile=False)
    size = task.recipe.batch_size

    def epoch() -> None:
        total = 0.0
        for index in torch.randperm(NAIVE_SETS, device=device).split(size):
            singles = [task.prepare("train", task.rows("train", one)) for one in index.split(1)]
            batch = Batch(
                {key: torch.cat([s.inputs[key] for s in singles]) for key in singles[0].inputs},
                torch.cat([single.target for single in singles]),
            )
            steps.optimizer.zero_grad()
            loss = task.loss(steps.model(**batch.inputs), batch.target)
            loss.backward()
            steps.optimizer.step()
            total += loss.item()

    seconds(epoch, device)
    return NAIVE_SETS / statistics.median(seconds(epoch, device) for _ in range(REPEATS))


def _steps(task: Task, seed: int, device: torch.device, compile: bool | None = None) -> Steps:
    torch.manual_seed(seed)
    model = create_model(task.recipe.model.name).to(device).train()
    optimizer = make_optimizer(model, task.recipe.optimizer)
    compile = device.type == "cuda" if compile is None else compile
    return Steps(model, task, task.recipe, optimizer, None, Processes(device), compile=compile)


def shares(
    task: Task, precision: str, per_second: float, rates: dict[str, float]
) -> dict[str, float]:
    """How near the machine's rates this is, by the least work that training a set needs."""
    model = create_model(task.recipe.model.name)
    batch = task.prepare(
        "test", {name: values[:1].cpu() for name, values in task.arrays["test"].items()}
    )
    numbers = 0

    def count(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        nonlocal numbers
        numbers += output.numel()

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Linear)]
    model.eval()(**batch.inputs)
    for hook in hooks:
        hook.remove()
    # Of each product: once forward, twice backward, for its inputs and for its weights.
    operations = 3 * 2 * count_macs(model, *batch.inputs.values())
    # Of each layer's output: written and read; backward it is read again, by its own layer and by
    # the next one's weights, and its gradient is written and read.
    moved = 6 * numbers * (2 if precision == "bf16" else 4)
    return {
        "share_of_matrix_rate": per_second * operations / rates[f"{precision} operations"],
        "share_of_memory_rate": per_second * moved / rates["bytes copied"],
    }


def machine_rates(device: torch.device) -> dict[str, float]:
    """What the machine does at best: operations of matrix products, bytes read and written."""
    size = 8192 if device.type == "cuda" else 2048
    rates, before = {}, torch.get_float32_matmul_precision()
    for name, setting, dtype in (
        ("tf32", "high", torch.float32),
        ("fp32", "highest", torch.float32),
        ("bf16", "highest", torch.bfloat16),
    ):
        torch.set_float32_matmul_precision(setting)
        a, b = torch.randn(2, size, size, device=device).to(dtype)
        rates[f"{name} operations"] = 2 * size**3 / best(lambda a=a, b=b: a @ b, device)
    torch.set_float32_matmul_precision(before)
    source = torch.randn(size * 2**14, device=device)
    target = torch.empty_like(source)
    rates["bytes copied"] = 2 * source.nbytes / best(lambda: target.copy_(source), device)
    return rates


def best(work: Callable[[], Any], device: torch.device) -> float:
    """The median time of a call, of a few in a row so that none waits for the host."""

    def ten() -> None:
        for _ in range(10):
            work()

    seconds(ten, device)
    return statistics.median(seconds(ten, device) for _ in range(REPEATS)) / 10


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


if __name__ == "__main__":
    tyro.cli(main)
