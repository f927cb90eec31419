"""How fast a model answers on a GPU: many sets at once, one set at a time, sets of all sizes.

    python benchmarks/inference.py --out results/benchmarks

Everything is measured in one run: the machine's own rates (large matrix products, a large copy);
the model's definition operation by operation; the same through `torch.compile`; and the way that
the package takes. The classifier has one aggregation; the segmenter has broadcasts as well. Ways
take turns, each number is a median, and inputs are random, never zeros.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor
from ways import defined, trained

from dumlp_pin import SetBatch, blocks, captured, explain
from dumlp_pin.models import count_macs
from dumlp_pin.training.results import environment, plain, write_json

PRECISIONS = {
    "bf16": (torch.bfloat16, "high"),
    "tf32": (torch.float32, "high"),
    "fp32": (torch.float32, "highest"),
}
SETS, ELEMENTS, FEATURES = 4096, 1024, 6
SMALLEST, LARGEST = 16, 4096
SEGMENTED_SETS, SEGMENTED_ELEMENTS = 256, 2048
REPEATS = 7
Way = Callable[..., Any]


def main(
    out: Path = Path("results/benchmarks"),
    classifier: str | None = "dumlp_pin_modelnet40",
    segmenter: str | None = "dumlp_pin_shapenetpart_l",
    compiled: bool = True,
) -> None:
    """Measure and print.

    Args:
        out: The folder for inference.json, written anew after each number.
        classifier: One of one aggregation; None for no numbers of it.
        segmenter: One that takes a category; None for no numbers of it.
        compiled: Whether to measure torch.compile too, which takes a while to compile.
    """
    device = torch.device("cuda")
    models = {"model": classifier, "segmenter": segmenter}
    numbers: dict[str, Any] = {**environment(device), **models, "rates": rates(device)}
    report(out, numbers, "rates")
    torch.manual_seed(0)
    for precision, (dtype, matmul) in PRECISIONS.items():
        torch.set_float32_matmul_precision(matmul)
        numbers[precision] = {}
        if classifier is not None:
            of_classifier(trained(classifier).to(device, dtype), out, numbers, precision, compiled)
        if segmenter is not None:
            of_segmenter(trained(segmenter).to(device, dtype), out, numbers, precision, compiled)


def of_classifier(
    model: Any, out: Path, numbers: dict[str, Any], precision: str, compiled: bool
) -> None:
    def eager(x: Any, mask: Tensor | None = None) -> Tensor:
        return defined(model, x, mask)

    dtype, rate = next(model.parameters()).dtype, numbers["rates"][precision]
    macs = count_macs(model, draw(1, dtype))
    with torch.inference_mode():
        path = explain(model, draw(1, dtype))["aggregate"]
        assert path.name == "triton", path.reason
        ways = ways_of(model, eager, compiled)
        inputs = [(draw(SETS, dtype),) for _ in range(3)]
        found = numbers[precision]
        found["sets_per_second"] = many = per_second(ways, inputs, SETS)
        report(out, numbers, precision, "sets_per_second")
        found["share_of_matrix_rate"] = {way: 2 * macs * many[way] / rate for way in many}
        report(out, numbers, precision, "share_of_matrix_rate")
        found["one_set_microseconds"] = one_set(ways, [(draw(1, dtype),) for _ in range(8)])
        report(out, numbers, precision, "one_set_microseconds")
        found["elements_per_second"] = of_all_sizes(ways, dtype)
        report(out, numbers, precision, "elements_per_second")


def of_segmenter(
    model: Any, out: Path, numbers: dict[str, Any], precision: str, compiled: bool
) -> None:
    def eager(*inputs: Any) -> Any:
        """The blocks by their definition: none is told of a kernel."""
        ask, blocks.kernel_for = blocks.kernel_for, lambda *_: None
        try:
            return model(*inputs)
        finally:
            blocks.kernel_for = ask

    def inputs(sets: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(sets, SEGMENTED_ELEMENTS, model.in_features, device="cuda", dtype=dtype)
        return x, torch.randint(model.num_categories, (sets,), device="cuda")

    dtype, rate = next(model.parameters()).dtype, numbers["rates"][precision]
    macs = count_macs(model, *inputs(1))
    with torch.inference_mode():
        found = numbers[precision]["segmenter"] = {}
        paths = explain(model, *inputs(1))
        found["paths"] = {name: f"{path.name}: {path.reason}" for name, path in paths.items()}
        ways = ways_of(model, eager, compiled)
        given = [inputs(SEGMENTED_SETS) for _ in range(3)]
        found["sets_per_second"] = many = per_second(ways, given, SEGMENTED_SETS)
        report(out, numbers, precision, "segmenter", "sets_per_second")
        found["share_of_matrix_rate"] = {way: 2 * macs * many[way] / rate for way in many}
        report(out, numbers, precision, "segmenter", "share_of_matrix_rate")
        found["one_set_microseconds"] = one_set(ways, [inputs(1) for _ in range(8)])
        report(out, numbers, precision, "segmenter", "one_set_microseconds")


def ways_of(model: Any, eager: Way, compiled: bool) -> dict[str, Way]:
    ways = {"eager": eager, "fused": model}
    if compiled:
        torch.compiler.reset()
        # A compiler that traces a model sees its definition.
        ways["compiled"] = torch.compile(model, dynamic=False)
    return ways


def draw(sets: int, dtype: torch.dtype, elements: int = ELEMENTS) -> Tensor:
    return torch.randn(sets, elements, FEATURES, device="cuda", dtype=dtype)


def rates(device: torch.device) -> dict[str, float]:
    """Operations a second of large matrix products, bytes a second of a large copy."""
    measured = {}
    for precision, (dtype, matmul) in PRECISIONS.items():
        torch.set_float32_matmul_precision(matmul)
        size = 8192 if precision != "fp32" else 4096
        a, b = torch.randn(2, size, size, device=device, dtype=dtype)
        work = partial(torch.matmul, a, b)
        measured[precision] = 2 * size**3 / median_seconds({"": work}, 10)[""]
    source = torch.randn(1 << 30, device=device)
    target = torch.empty_like(source)
    copy = median_seconds({"": lambda: target.copy_(source)}, 5)[""]
    return {**measured, "copy": 2 * source.nbytes / copy}


def per_second(ways: dict[str, Way], inputs: Sequence[Any], items: int) -> dict[str, float]:
    """Inputs take turns, so that none waits in a cache."""
    turns = cycle(inputs)
    work = {name: lambda way=way: way(*next(turns)) for name, way in ways.items()}
    return {name: items / seconds for name, seconds in median_seconds(work, 6).items()}


def one_set(ways: dict[str, Way], inputs: Sequence[Any]) -> dict[str, float]:
    """From a new input on the GPU to the answer there, by the clock on the wall."""
    # Norms that no kernel folds in, as those of a head, are operations of their own until fuse().
    model: Any = ways["fused"]
    with torch.inference_mode(False):
        folded = copy.deepcopy(model).fuse()
    ways = ways | {
        "fused, in a graph": captured(model, *inputs[0]),
        "fused, norms folded for good": folded,
        "fused, norms folded for good, in a graph": captured(folded, *inputs[0]),
    }
    turns = cycle(inputs)

    def ask(way: Way) -> float:
        given = next(turns)
        torch.cuda.synchronize()
        start = time.perf_counter()
        way(*given)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(320):
        for name, way in ways.items():
            seconds = ask(way)
            if turn >= 20:
                times[name].append(seconds)
    return {name: 1e6 * statistics.median(values) for name, values in times.items()}


def of_all_sizes(ways: dict[str, Way], dtype: torch.dtype) -> dict[str, float]:
    """Real elements a second: sets of equal size, of all sizes, and the latter in a padding."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(SMALLEST, LARGEST + 1, (SETS // 2,), generator=generator)
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).cuda()
    T = int(sizes.sum())
    ragged = SetBatch(torch.randn(T, FEATURES, device="cuda", dtype=dtype), offsets)
    x, mask = ragged.to_padded(LARGEST)
    equal = draw(SETS, dtype)
    fused, eager = ways["fused"], ways["eager"]
    times = median_seconds(
        {
            "equal": lambda: fused(equal),
            "ragged": lambda: fused(ragged),
            "padded": lambda: fused(x, mask),
            "eager, ragged": lambda: eager(ragged),
            "eager, padded": lambda: eager(x, mask),
        },
        4,
    )
    elements = dict.fromkeys(times, T) | {"equal": SETS * ELEMENTS}
    return {name: elements[name] / seconds for name, seconds in times.items()}


def median_seconds(ways: dict[str, Callable[[], Any]], times: int) -> dict[str, float]:
    """Ways take turns; each turn is of so many runs one after the other."""
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for work in ways.values():
        work()
    for _ in range(REPEATS):
        for name, work in ways.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(times):
                work()
            stop.record()
            stop.synchronize()
            measured[name].append(start.elapsed_time(stop) / 1e3 / times)
    return {name: statistics.median(values) for name, values in measured.items()}


def report(out: Path, numbers: dict[str, Any], *where: str) -> None:
    found = numbers
    for key in where:
        found = found[key]
    for name, value in found.items():
        print(f"{' '.join(where)}: {name}: {value:,.4g}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "inference.json", plain(numbers))


if __name__ == "__main__":
    tyro.cli(main)
