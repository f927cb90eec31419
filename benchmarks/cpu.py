"""How fast a model answers on a processor, and against what.

    python benchmarks/cpu.py --out results/cpu_inference.json

Everything is measured in one run: the machine's own rate of matrix products; the model's definition
operation by operation, in two precisions; the same through `torch.compile` and ONNX Runtime; the
way that the package takes; and the networks that the paper compares with. Ways take turns, and each
ratio is the median of the ratios of single turns, so that a neighbour on the machine who comes and
goes slows all of them. With `--threads 1` the seconds are those that a core works for this process,
and neighbours hardly count. Inputs are random, never zeros.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

from dumlp_pin import create_model, explain
from dumlp_pin._errors import need
from dumlp_pin.export.onnx import to_onnx
from dumlp_pin.functional import ACTIVATIONS, dot_product
from dumlp_pin.models import count_macs
from dumlp_pin.training.results import environment, plain, write_json

ELEMENTS = 1024
PEER_SETS, PEER_TURNS = 8, 3
MATRIX = 1024  # rows and columns of the products that the machine is measured with
PEERS = (
    "deepsets_modelnet40",
    "pointnet_modelnet40",
    "pointnet2_modelnet40",
    "pct_modelnet40",
    "point_transformer_modelnet40",
    "set_transformer_modelnet40",
)
Work = Callable[[], Any]


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
    torch.manual_seed(0)
    model = trained(name)
    numbers: dict[str, Any] = {
        **environment(torch.device("cpu")),
        "model": name,
        "elements": ELEMENTS,
        "batches": {},
    }
    macs = count_macs(model, torch.randn(1, ELEMENTS, model.in_features))
    ways = ways_of(model)
    for batch in batches:
        x = torch.randn(batch, ELEMENTS, model.in_features)
        works = {way: lambda run=run, x=x: run(x) for way, run in ways.items()}
        seconds = measured(works | rates(), turns)
        numbers["batches"][str(batch)] = against("eager", seconds, batch, macs)
        report(f"{batch} sets of {ELEMENTS} elements", numbers["batches"][str(batch)], numbers, out)
    works = {each: asked(trained(each), PEER_SETS) for each in (name, *peers)}
    numbers["peers"] = against(name, measured(works, PEER_TURNS), PEER_SETS, macs)
    report(f"{PEER_SETS} sets of {ELEMENTS} elements", numbers["peers"], numbers, out)


def trained(name: str) -> Any:
    """Fresh weights, with norms that are not at their start."""
    model = create_model(name).eval()
    for buffer_name, buffer in model.named_buffers():
        if "running" in buffer_name:
            buffer.uniform_(0.5, 1.5)
    return model


def asked(network: Any, sets: int) -> Work:
    x = torch.randn(sets, ELEMENTS, network.in_features)
    return lambda: network(x)


def ways_of(model: Any) -> dict[str, Callable[[Tensor], Any]]:
    half = copy.deepcopy(model).bfloat16()
    runtime = need("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads would spin on while other ways have their turn.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    content = to_onnx(model).SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    compiled = torch.compile(defined, dynamic=False)
    with torch.inference_mode():
        assert {path.name for path in explain(model, torch.rand(1, 2, 6)).values()} == {"cpu"}
    return {
        "eager": lambda x: defined(model, x),
        "eager bf16": lambda x: defined(half, x.bfloat16()),
        "compiled": lambda x: compiled(model, x),
        "ONNX Runtime": lambda x: session.run(
            None, {"x": x.numpy(), "mask": np.ones(x.shape[:2], dtype=bool)}
        ),
        "package": model,
        "package bf16": lambda x: half(x.bfloat16()),
    }


def defined(model: Any, x: Tensor) -> Tensor:
    block = model.aggregate
    pairs = zip(block.activations, block.branches, strict=True)
    y = dot_product([ACTIVATIONS[name](branch(x)) for name, branch in pairs])
    return model.forward_head(y.flatten(1) * block.scale)


def rates() -> dict[str, Work]:
    products = {}
    for name, dtype in (("matrix", torch.float32), ("matrix bf16", torch.bfloat16)):
        a, b = torch.randn(2, MATRIX, MATRIX, dtype=dtype)
        products[name] = lambda a=a, b=b: a @ b
    return products


@torch.inference_mode()
def measured(works: dict[str, Work], turns: int) -> dict[str, list[float]]:
    """Seconds of each turn; each is of so many runs that about a twentieth of a second passes."""
    seconds, runs = {name: [] for name in works}, {}
    for name, work in works.items():
        timed(work, 1)
        runs[name] = max(1, int(0.05 / timed(work, 1)))
    for _ in range(turns):
        for name, work in works.items():
            seconds[name].append(timed(work, runs[name]))
    return seconds


def timed(work: Work, runs: int) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(runs):
        work()
    return (clock() - start) / runs


def against(
    base: str, seconds: dict[str, list[float]], batch: int, macs: int
) -> dict[str, dict[str, float]]:
    """Of each way its rate, and how many times that of `base` it is."""
    result: dict[str, dict[str, float]] = {}
    for name, turns in seconds.items():
        if name.startswith("matrix"):
            result[name] = {"operations_per_second": 2 * MATRIX**3 / statistics.median(turns)}
            continue
        rate = {"sets_per_second": batch / statistics.median(turns)}
        result[name] = rate | {f"times_{base}": ratio(seconds[base], turns)}
        product = seconds.get("matrix bf16" if name.endswith("bf16") else "matrix")
        if product is not None:
            result[name]["share_of_matrix_rate"] = ratio(product, turns) * batch * macs / MATRIX**3
    return result


def ratio(of: list[float], to: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(of, to, strict=False))


def report(title: str, found: dict[str, Any], numbers: dict[str, Any], out: Path | None) -> None:
    print(title)
    for name, values in found.items():
        what = ", ".join(f"{value:,.3g} {key.replace('_', ' ')}" for key, value in values.items())
        print(f"  {name}: {what}", flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, plain(numbers))


if __name__ == "__main__":
    tyro.cli(main)
