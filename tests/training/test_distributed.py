"""Two processes that meet on this machine, against one that has all the rows or sets."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.training.distributed import Processes, join_processes
from dumlp_pin.training.trainer import train
from tests.training.runs import python, quick, weights

# Batches of 43 of 259 sets: odd ones, and at the end a single set for two processes.
UNEVEN = ("epochs=2", "batch_size=43", "accumulate=2", "ema=0.9")
# The rows that the first process has, of nine: some, all, none, all but one.
FIRST_HAS = (4, 9, 0, 8)

EACH = """
import sys
from pathlib import Path
import torch.distributed as dist
from dumlp_pin.training.distributed import join_processes
from dumlp_pin.training.trainer import train
from tests.training import test_distributed as test
from tests.training.runs import quick

out = Path(sys.argv[1])
with join_processes() as processes:
    test.step_of_a_share(processes, out)
    train(quick(*test.UNEVEN), 0, out / "run")
    assert dist.is_initialized()
assert not dist.is_initialized()
"""


def rows_and_mask(masked: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """Nine rows in float64, which of them count, and what the loss multiplies each output by."""
    generator = torch.Generator().manual_seed(7)
    rows, factors = torch.randn(2, 9, 3, generator=generator, dtype=torch.float64).unbind()
    mask = torch.tensor([1, 1, 0, 1, 1, 0, 1, 1, 1]).bool() if masked else None
    return rows, mask, factors


def step(norm: BatchNorm, rows: Tensor, mask: Tensor | None, factors: Tensor) -> dict[str, Tensor]:
    rows = rows.clone().requires_grad_()
    output = norm(rows, mask)
    if mask is not None:
        output = output.masked_fill(~mask[:, None], 0)
    (output.square() * factors).sum().backward()
    assert rows.grad is not None
    state = {f"state.{name}": value.clone() for name, value in norm.state_dict().items()}
    gradients = {f"gradient.{name}": value.grad for name, value in norm.named_parameters()}
    return {"output": output.detach(), "rows": rows.grad, **state, **gradients}  # type: ignore[dict-item]


def step_of_a_share(processes: Processes, out: Path) -> None:
    for first_has in FIRST_HAS:
        for masked in (False, True):
            share = slice(first_has) if processes.rank == 0 else slice(first_has, None)
            rows, mask, factors = rows_and_mask(masked)
            norm = BatchNorm(3).double()
            norm.synchronised = True
            mask = None if mask is None else mask[share]
            tensors = step(norm, rows[share], mask, factors[share])
            norm.eval()(rows)  # waits for nobody: the processes may score different numbers of sets
            save_file(tensors, out / f"{first_has}-{masked}-{processes.rank}.safetensors")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes leave behind."""
    folder = tmp_path_factory.mktemp("two")
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    both = [python("-c", EACH, str(folder), **meeting, RANK=rank) for rank in ("0", "1")]
    (shown, errors), (shown_by_other, errors_of_other) = [p.communicate() for p in both]
    assert (errors, errors_of_other) == ("", "")
    assert [process.returncode for process in both] == [0, 0]
    assert shown.count("epoch 2/2") == 1
    assert shown_by_other == ""
    return folder


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("first_has", FIRST_HAS)
def test_batch_norm_of_the_joint_rows(first_has: int, masked: bool, out: Path) -> None:
    expected = step(BatchNorm(3).double(), *rows_and_mask(masked))
    first, second = (load_file(out / f"{first_has}-{masked}-{rank}.safetensors") for rank in "01")
    for name, value in expected.items():
        if name in ("output", "rows"):
            actual = torch.cat((first[name], second[name]))
        elif name.startswith("gradient"):
            actual = first[name] + second[name]
        else:
            actual = first[name]
            assert torch.equal(actual, second[name])
        torch.testing.assert_close(actual, value, rtol=1e-12, atol=1e-12)


def test_two_processes_train_as_one_does(out: Path, tmp_path: Path) -> None:
    train(quick(*UNEVEN), 0, tmp_path)
    two, one = weights(out / "run"), weights(tmp_path)
    # Eight steps of float32 whose sums run in another order: differences up to 4e-6 were seen.
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5)
    results = [json.loads((run / "result.json").read_text()) for run in (out / "run", tmp_path)]
    assert [result["processes"] for result in results] == [2, 1]
    losses = [
        [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (out / "run", tmp_path)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_one_process_meets_nobody() -> None:
    with join_processes("cpu") as processes:
        assert processes == Processes(torch.device("cpu"), rank=0, count=1)
        index = torch.arange(5)
        assert torch.equal(processes.share(index), index)


@pytest.mark.parametrize(("sets", "shares"), [(5, [2, 2, 1]), (2, [1, 1, 0]), (0, [0, 0, 0])])
def test_each_set_is_in_one_share(sets: int, shares: list[int]) -> None:
    index = torch.arange(sets)
    parts = [Processes(torch.device("cpu"), rank, 3).share(index) for rank in range(3)]
    assert [len(part) for part in parts] == shares
    assert torch.equal(torch.cat(parts), index)
