"""Several processes that train one model: each takes its share of every batch.

Started by `torchrun`; without it there is one process and nothing here does anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dumlp_pin.batchnorm import BatchNorm


@dataclass(frozen=True)
class Processes:
    """This process among all of them; the one of rank 0 writes and prints."""

    device: torch.device
    rank: int = 0
    count: int = 1

    def total(self, value: Tensor) -> Tensor:
        """The sum over the processes of numbers that take no gradient."""
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def share(self, index: Tensor) -> Tensor:
        """This process's part of the sets of a batch (B,); none if there are more processes."""
        return index.tensor_split(self.count)[self.rank]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged and batch norm statistics taken over all processes."""
        if self.count == 1:
            return model
        for module in model.modules():
            if isinstance(module, BatchNorm):
                module.synchronised = True
        return nn.parallel.DistributedDataParallel(model)


@contextmanager
def join_processes(device: str | torch.device | None = None) -> Iterator[Processes]:
    """Meet the other processes of `torchrun`, if there are any; who opened the group closes it."""
    opens = "WORLD_SIZE" in os.environ and not dist.is_initialized()
    chosen = choose_device(device)
    if opens:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        if dist.is_initialized():
            yield Processes(chosen, dist.get_rank(), dist.get_world_size())
        else:
            yield Processes(chosen)
    finally:
        if opens:
            dist.destroy_process_group()


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, or a GPU where there is one; each process has a GPU of its own."""
    has_cuda = torch.cuda.is_available()
    try:
        chosen = torch.device(device or ("cuda" if has_cuda else "cpu"))
    except RuntimeError as error:
        raise ValueError(
            f"unknown device {device!r}: expected one such as cpu or cuda:1"
        ) from error
    if chosen.type != "cuda":
        try:
            torch.zeros(1, device=chosen).item()
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(f"PyTorch cannot compute on device {device} here: use cpu") from error
        return chosen
    if not has_cuda:
        raise ValueError(f"device {device} was asked for, but PyTorch sees no GPU here: use cpu")
    if chosen.index is None:
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(chosen)
    return chosen
