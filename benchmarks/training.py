"""Training throughput on ModelNet40-shaped data, beside a naive loop, on this machine.

    python benchmarks/training.py --out results/training.json

Everything is measured in one run: the machine's own rates (a large matrix product, a large copy);
the loop that research code usually has, which augments one shape at a time and fetches the loss in
every step; and the trainer's epoch. Medians; inputs are random, never zeros.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from dumlp_pin.models import count_macs, create_model
from dumlp_pin.training.distributed import Processes
from dumlp_pin.training.recipe import load_recipe
from dumlp_pin.training.results import environment, plain, write_json
from dumlp_pin.training.tasks import SetClassification
from dumlp_pin.training.trainer import train_epoch

REPEATS = 3
CLASSES = [f"class {index}" for index in range(40)]


def main(
    out: Path | None = None, recipe: str = "modelnet40", shapes: int = 512, device: str = "cpu"
) -> None:
    """Measure and print.

    Args:
        out: A JSON file for the numbers.
        recipe: A recipe that classifies point clouds.
        shapes: How many shapes an epoch has.
        device: Where to measure.
    """
    where = torch.device(device)
    settings = load_recipe(recipe)
    torch.manual_seed(0)
    points = torch.randn(shapes, settings.data.points or 1024, 6, device=where)
    arrays = {"x": points, "target": torch.randint(len(CLASSES), (shapes,), device=where)}
    task = SetClassification({"train": arrays, "test": arrays}, settings, CLASSES)

    # Forward once, backward twice: gradients of the inputs and of the weights of every product.
    macs = count_macs(create_model(settings.model.name), points[:1].cpu())
    flops_a_shape = 3 * 2 * macs
    rate = matrix_rate(where)
    measured = {
        "one shape at a time": naive_epoch(task, where),
        "trainer": trainer_epoch(task, where),
    }
    table = Table("loop", "shapes/s", "ratio", "share of the matrix rate", box=None)
    first = next(iter(measured.values()))
    for name, per_second in measured.items():
        share = per_second * flops_a_shape / rate
        table.add_row(name, f"{per_second:,.0f}", f"{per_second / first:.1f} x", f"{share:.1%}")
    hardware = environment(where)
    console = Console()
    console.print(f"{hardware['device']}, {hardware['threads']} threads, torch {torch.__version__}")
    console.print(
        f"float32 matrix products: {rate / 1e9:,.0f} GFLOP/s; "
        f"copies: {copy_rate(where) / 1e9:,.0f} GB/s"
    )
    console.print(table)
    if out is not None:
        numbers = {
            "shapes_per_second": measured,
            "matrix_flops": rate,
            "recipe": settings.to_dict(),
        }
        write_json(out, plain(numbers | hardware))


def trainer_epoch(task: SetClassification, device: torch.device) -> float:
    model, optimizer = _fresh(task, device)
    processes = Processes(device)
    epochs = iter(range(10**6))

    def epoch() -> Any:
        return train_epoch(model, task, optimizer, None, task.recipe, 0, next(epochs), processes)

    return task.size("train") / seconds(epoch, device)


def naive_epoch(task: SetClassification, device: torch.device) -> float:
    """What a data set class and a loader without thought do: augment in `__getitem__`."""
    model, optimizer = _fresh(task, device)
    x, target = task.arrays["train"]["x"], task.arrays["train"]["target"]
    size = task.recipe.batch_size

    def epoch() -> None:
        order = torch.randperm(len(x)).tolist()
        total = 0.0
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            batch = torch.cat([task.recipe.augmentation(x[i : i + 1], None)[0] for i in chosen])
            loss = task.loss(model(batch), target[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()

    return len(x) / seconds(epoch, device)


def _fresh(task: SetClassification, device: torch.device) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = create_model(task.recipe.model.name).to(device).train()
    settings = dataclasses.replace(task.recipe.optimizer, lr=1e-4)
    return model, torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)


def matrix_rate(device: torch.device, size: int = 2048) -> float:
    """Floating-point operations a second of a float32 product, as training has them."""
    a, b = torch.randn(2, size, size, device=device)
    return 2 * size**3 / seconds(lambda: a @ b, device)


def copy_rate(device: torch.device, size: int = 1 << 26) -> float:
    """Bytes read and written a second by a copy too large for the caches."""
    source = torch.randn(size, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device)


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """The median of a few runs after a warm-up."""

    def once() -> float:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    once()
    return statistics.median(once() for _ in range(REPEATS))


if __name__ == "__main__":
    tyro.cli(main)
