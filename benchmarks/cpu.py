"""How fast a model answers on a processor, and against what.

    python benchmarks/cpu.py --out results/benchmarks/cpu.json

Everything is measured in one run: the machine's own rate of matrix products; the model's definition
operation by operation, in two precisions; the same through `torch.compile` and ONNX Runtime; the
way that the package takes; and the networks that the paper compares with. Each way has a process of
its own, so that no other's threads or memory come into it. They take turns, and each ratio is the
median of the ratios of single turns, so that a neighbour on the machine who comes and goes slows
all of them. With `--threads 1` the seconds are those that a core works for the process, and
neighbours hardly count. Inputs are random, never zeros.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor
from ways import defined, trained

from dumlp_pin import create_model, explain
from dumlp_pin._errors import need
from dumlp_pin.export.onnx import to_onnx
from dumlp_pin.models import count_macs
from dumlp_pin.training.results import environment, plain, write_json

ELEMENTS = 1024
MATRIX = 1024  # rows and columns of the products that the machine is measured with
PEER_SETS, PEER_TURNS = 8, 3
REST = 0.3  # seconds, until the threads of the one before no longer wait for work
PEERS = (
    "deepsets_modelnet40",
    "pointnet_modelnet40",
    "pointnet2_modelnet40",
    "pct_modelnet40",
    "point_transformer_modelnet40",
    "set_transformer_modelnet40",
)
Way = Callable[[Tensor], Any]
Seconds = dict[str, list[float]]


def main(
    out: Path | None = None,
    name: str = "dumlp_pin_modelnet40",
    batches: tuple[int, ...] = (1, 32, 256),
    peers: tuple[str, ...] = PEERS,
    turns: int = 15,
    threads: int | None = None,
) -> None:
    """Measure and print.

    Args:
        out: A JSON file for the numbers, written anew after each batch.
        name: A classifier of one aggregation.
        batches: How many sets at once.
        peers: Networks for the same task, measured on a few sets beside the package.
        turns: How often each way is measured.
        threads: As `torch.set_num_threads`; by default all processors.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    numbers: dict[str, Any] = {
        **environment(torch.device("cpu")),
        "model": name,
        "elements": ELEMENTS,
        "batches": {},
    }
    model = create_model(name)
    macs = count_macs(model, torch.randn(1, ELEMENTS, model.in_features))
    with everybody({way: (way, name) for way in WAYS}) as asked:
        for batch in batches:
            seconds = measured(asked, batch, turns)
            numbers["batches"][str(batch)] = against("eager", seconds, batch, macs)
            report(f"{batch} sets", numbers["batches"][str(batch)], numbers, out)
    with everybody({each: ("package", each) for each in (name, *peers)}) as asked:
        numbers["peers"] = against(name, measured(asked, PEER_SETS, PEER_TURNS), PEER_SETS, macs)
    report(f"{PEER_SETS} sets", numbers["peers"], numbers, out)


@contextmanager
def everybody(ways: dict[str, tuple[str, str]]) -> Any:
    """A process for each way with a model, as the end of a pipe that takes orders."""
    processes = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        asked = {}
        for name, (way, model) in ways.items():
            asked[name], theirs = processes.Pipe()
            work = processes.Process(
                target=serve, args=(theirs, way, model, torch.get_num_threads())
            )
            work.start()
            stack.callback(work.join)
            stack.callback(asked[name].send, None)
        yield asked


@torch.inference_mode()
def serve(pipe: Any, way: str, name: str, threads: int) -> None:
    """Answers a batch's size with how long it took, again and again."""
    torch.set_num_threads(threads)
    with torch.inference_mode(False):
        torch.manual_seed(0)
        model = trained(name)
        work = WAYS[way](model)
    inputs: dict[int, tuple[Tensor, int]] = {}
    while (batch := pipe.recv()) is not None:
        if batch not in inputs:
            x = torch.randn(batch, ELEMENTS, model.in_features)
            timed(partial(work, x), 1)
            inputs = {batch: (x, max(1, int(0.05 / timed(partial(work, x), 1))))}
        x, runs = inputs[batch]
        time.sleep(REST)
        work(x)
        pipe.send(timed(partial(work, x), runs))


def eager(model: Any) -> Way:
    return partial(defined, model)


def eager_half(model: Any) -> Way:
    model = model.bfloat16()
    return lambda x: defined(model, x.bfloat16())


def compiled(model: Any) -> Way:
    return torch.compile(eager(model), dynamic=False)


def in_onnx_runtime(model: Any) -> Way:
    runtime = need("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    content = to_onnx(model).SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> Any:
        return session.run(None, {"x": x.numpy(), "mask": np.ones(x.shape[:2], dtype=bool)})

    return run


def package(model: Any) -> Way:
    with torch.inference_mode():
        paths = explain(model, torch.rand(1, 2, model.in_features))
    assert all(path.name == "cpu" for path in paths.values()), paths
    return model


def package_half(model: Any) -> Way:
    model = model.bfloat16()
    return lambda x: model(x.bfloat16())


def product(dtype: torch.dtype, _: Any) -> Way:
    a, b = torch.randn(2, MATRIX, MATRIX, dtype=dtype)
    return lambda _: a @ b


WAYS: dict[str, Callable[[Any], Way]] = {
    "eager": eager,
    "eager bf16": eager_half,
    "compiled": compiled,
    "ONNX Runtime": in_onnx_runtime,
    "package": package,
    "package bf16": package_half,
    "matrix": partial(product, torch.float32),
    "matrix bf16": partial(product, torch.bfloat16),
}


def measured(asked: dict[str, Any], batch: int, turns: int) -> Seconds:
    """Seconds of each turn, which is of so many runs that about a twentieth of one passes."""
    seconds: Seconds = {name: [] for name in asked}
    for turn in range(turns + 1):
        for name, pipe in asked.items():
            pipe.send(batch)
            answer = pipe.recv()
            if turn:  # the first is to get ready
                seconds[name].append(answer)
    return seconds


def timed(work: Callable[[], Any], runs: int) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(runs):
        work()
    return (clock() - start) / runs


def against(base: str, seconds: Seconds, batch: int, macs: int) -> dict[str, dict[str, float]]:
    """Of each way its rate, and how many times that of `base` it is."""
    result: dict[str, dict[str, float]] = {}
    for name, turns in seconds.items():
        if name.startswith("matrix"):
            result[name] = {"operations_per_second": 2 * MATRIX**3 / statistics.median(turns)}
            continue
        rate = {"sets_per_second": batch / statistics.median(turns)}
        result[name] = rate | {f"times_{base}": ratio(seconds[base], turns)}
        matrix = seconds.get("matrix bf16" if name.endswith("bf16") else "matrix")
        if matrix is not None:
            result[name]["share_of_matrix_rate"] = ratio(matrix, turns) * batch * macs / MATRIX**3
    return result


def ratio(of: Sequence[float], to: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def report(title: str, found: dict[str, Any], numbers: dict[str, Any], out: Path | None) -> None:
    print(f"{title} of {ELEMENTS} elements")
    for name, values in found.items():
        what = ", ".join(f"{value:,.3g} {key.replace('_', ' ')}" for key, value in values.items())
        print(f"  {name}: {what}", flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, plain(numbers))


if __name__ == "__main__":
    tyro.cli(main)
