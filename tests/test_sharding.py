"""Sets whose elements are on two or three processes, against one process that has them all."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from dumlp_pin import AggregationBlock, SetBatch
from tests.training.runs import python

CASES: dict[str, tuple[str | None, ...]] = {
    "softmax": ("softmax", None),
    "squash": ("squash", "softmax"),
    "each number": ("relu", "elu"),
    "one": ("squash_authors",),
    "three": ("softmax", "squash", None),
}
FORMS = ("dense", "masked", "packed")
# Where three sets of 12 elements are cut. A process may have nothing of a set, or of all.
CUTS = {2: [(5,), (12,)], 3: [(3, 4), (0, 12), (6, 6)]}

EACH = """
import sys
from pathlib import Path
import torch.distributed as dist
from tests import test_sharding as test

out, port, (rank, members, world) = Path(sys.argv[1]), sys.argv[2], map(int, sys.argv[3:])
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
test.on_one_of_several(rank, members, world, out)
dist.destroy_process_group()
"""


def make(names: Sequence[str | None], group: dist.ProcessGroup | None = None) -> AggregationBlock:
    torch.manual_seed(0)
    branches = [(6, 4), (5, 3), (2,)][: len(names)]
    return AggregationBlock(3, branches, names, scale=0.5, process_group=group).double()


def draw() -> tuple[Tensor, Tensor, Tensor]:
    """Three sets, which of their elements are real, and what each process's loss weighs them by."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 12, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 12, generator=generator) < 0.7
    weights = torch.randn(3, 3, 60, generator=generator, dtype=torch.float64)
    return torch.where(mask[..., None], x, 9), mask, weights


def step(block: AggregationBlock, form: str, share: slice, weights: Tensor) -> dict[str, Tensor]:
    """One step of training on a share of the elements, and then inference on it."""
    x, mask, _ = draw()
    x, mask = x[:, share].clone().requires_grad_(), mask[:, share]
    given: dict[str, SetBatch | Tensor] = {"x": x}
    if form == "masked":
        given = {"x": x, "mask": mask}
    elif form == "packed":
        given = {"x": SetBatch.from_list([a[m] for a, m in zip(x, mask, strict=True)])}
    y = block(**given)
    (weights[:, : y.shape[1]] * y.square()).sum().backward()
    gradients = {f"gradient {name}": p.grad for name, p in block.named_parameters()}
    numbers = {"y": y.detach(), "x": x.grad, **gradients, **dict(block.named_buffers())}
    with torch.inference_mode():
        numbers["inference"] = block.eval()(**given).clone()
    return {name: value.contiguous() for name, value in numbers.items() if value is not None}


def shares(cuts: Sequence[int]) -> list[slice]:
    bounds = [0, *cuts, 12]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def on_one_of_several(rank: int, members: int, world: int, out: Path) -> None:
    # Nobody may hold the group when it is destroyed.
    ranks: Any = range(members)
    group: Any = dist.group.WORLD if members == world else dist.new_group(ranks)
    if rank >= members:
        return
    for cuts in CUTS[members]:
        for case, names in CASES.items():
            for form in FORMS:
                block = make(names, group)
                numbers = step(block, form, shares(cuts)[rank], draw()[2][rank])
                save_file(numbers, out / f"{cuts}-{case}-{form}-{rank}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(("members", "world"), [(2, 2), (3, 3), (2, 3)])
def test_processes_compute_what_one_does(members: int, world: int, tmp_path: Path) -> None:
    """The feature, running estimates and gradients; what the losses of all processes add up to.

    Of more processes those that are not in the group have no part in it.
    """
    place = str(tmp_path), str(free_port())
    each = [python("-c", EACH, *place, str(r), str(members), str(world)) for r in range(world)]
    for process in each:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, output + errors
    weights = draw()[2][:members].sum(0)
    for case, names in CASES.items():
        for form in FORMS:
            expected = step(make(names), form, slice(None), weights)
            for cuts in CUTS[members]:
                found = [load_file(tmp_path / f"{cuts}-{case}-{form}-{r}") for r in range(members)]
                for name, value in expected.items():
                    parts = [numbers[name] for numbers in found]
                    if name == "x":
                        parts = [torch.cat(parts, dim=1)]
                    elif name.startswith("gradient"):
                        parts = [torch.stack(parts).sum(0)]
                    for part in parts:
                        torch.testing.assert_close(part, value, msg=f"{cuts} {case} {form} {name}")
