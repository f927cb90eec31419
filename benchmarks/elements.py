r"""Time and memory against the number of elements of one set, until a way stops.

    python benchmarks/elements.py --out results/benchmarks/elements.json \
        --picture docs/images/elements.png

Each number is taken by a process of its own, so that resident memory is its own. It has one thread,
and seconds are those that a core works for it: what else the machine does makes no difference. The
stream gets its elements in chunks, as from a disk; all else gets them in one tensor. A way stops
where a set takes longer or more memory than it may. Inputs are random, never zeros.
"""

from __future__ import annotations

import math
import multiprocessing
import queue
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import tyro

from dumlp_pin import create_model
from dumlp_pin.figures._canvas import figure_at
from dumlp_pin.training.results import environment, plain, write_json

OURS, STREAM = "dumlp_pin_modelnet40", "dumlp_pin_modelnet40, streamed"
CHUNK, CHUNKS = 65_536, 16
FIRST_OF_SLOPE = 10_000
Row = dict[str, Any]


def main(
    out: Path | None = None,
    picture: Path | None = None,
    ways: tuple[str, ...] = (
        STREAM,
        OURS,
        "set_transformer_modelnet40",
        "pct_modelnet40",
        "pointnet2_modelnet40",
    ),
    largest: int = 100_000_000,
    seconds: float = 20,
    gigabytes: float = 8,
) -> None:
    """Measure, print and draw.

    Args:
        out: A JSON file for the numbers, written anew after each of them.
        picture: A PNG file.
        ways: Names of classifiers; ", streamed" after one that can be.
        largest: Up to so many elements, by powers of ten from 100.
        seconds: How long a set may take; a stream may take as long as it takes.
        gigabytes: How much address space a process may take.
    """
    numbers: dict[str, Any] = {
        **environment(torch.device("cpu")),
        "threads": 1,
        "limits": {"seconds": seconds, "gigabytes": gigabytes},
        "ways": {},
    }
    for way in ways:
        rows: list[Row] = []
        numbers["ways"][way] = {"measured": rows}
        for power in range(2, round(math.log10(largest)) + 1):
            row = in_a_process(way, 10**power, None if way == STREAM else seconds, gigabytes)
            rows.append(row)
            print(way, ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            numbers["ways"][way]["slope"] = slope(rows)
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                write_json(out, plain(numbers))
            if "stopped" in row:
                break
        print(way, "slope", numbers["ways"][way]["slope"])
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw(picture, {way: found["measured"] for way, found in numbers["ways"].items()})


def in_a_process(way: str, elements: int, seconds: float | None, gigabytes: float) -> Row:
    processes = multiprocessing.get_context("spawn")
    answers: Any = processes.Queue()
    process = processes.Process(target=measure, args=(way, elements, gigabytes, answers))
    process.start()
    row: Row = {"elements": elements}
    try:
        # A machine that has much else to do may take its time.
        row |= answers.get(timeout=None if seconds is None else 60 + 10 * seconds)
    except queue.Empty:
        row["stopped"] = f"longer than {seconds:g} s"
        process.terminate()
    process.join()
    if seconds is not None and row.get("seconds", 0) > seconds:
        row["stopped"] = f"longer than {seconds:g} s"
    return row


def measure(way: str, elements: int, gigabytes: float, answers: Any) -> None:
    limit = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.set_num_threads(1)
    try:
        work = streamed(elements) if way == STREAM else at_once(way, elements)
        with torch.inference_mode():
            taken = timed(work)
    except (MemoryError, RuntimeError) as error:
        answers.put({"stopped": str(error).splitlines()[0][:200] or "no memory"})
        return
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers.put({"seconds": taken, "resident_megabytes": peak / 2**10})


def timed(work: Callable[[], Any]) -> float:
    """The median of runs that take a second together, at least one after the first."""
    start = time.process_time()
    work()
    once = time.process_time() - start
    if once > 5:
        return once
    taken = []
    for _ in range(max(1, min(100, int(1 / once)))):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def streamed(elements: int) -> Callable[[], Any]:
    model = create_model(OURS).eval()
    source = torch.randn(CHUNK * CHUNKS, model.in_features)

    def work() -> Any:
        state, left, turn = model.stream(), elements, 0
        while left:
            size, start = min(left, CHUNK), turn % CHUNKS * CHUNK
            state.update(source[start : start + size])
            left, turn = left - size, turn + 1
        return state.result()

    return work


def at_once(way: str, elements: int) -> Callable[[], Any]:
    model = create_model(way).eval()
    x = torch.randn(1, elements, model.in_features)
    return lambda: model(x)


def slope(rows: list[Row]) -> float | None:
    """Of the logarithm of time over that of the number of elements, by least squares."""
    points = [
        (math.log(row["elements"]), math.log(row["seconds"]))
        for row in rows
        if "seconds" in row and row["elements"] >= FIRST_OF_SLOPE
    ]
    if len(points) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def draw(path: Path, ways: Mapping[str, list[Row]]) -> None:
    with figure_at(path, 9, 3.6) as figure:
        axes = figure.subplots(1, 2)
        for way, rows in ways.items():
            done = [row for row in rows if "seconds" in row]
            counts = [row["elements"] for row in done]
            axes[0].plot(counts, [row["seconds"] for row in done], marker=".", label=way)
            axes[1].plot(counts, [row["resident_megabytes"] for row in done], marker=".")
        axes[0].set(ylabel="seconds of one core")
        axes[1].set(ylabel="resident memory (MB)")
        axes[0].legend(frameon=False, fontsize=7)
        for panel in axes:
            panel.set(xlabel="elements of the set", xscale="log", yscale="log")
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(alpha=0.3)


if __name__ == "__main__":
    tyro.cli(main)
