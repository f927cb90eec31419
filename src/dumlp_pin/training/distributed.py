"""Several processes that train one model: each takes its share of every batch.

Started by `torchrun`; without it there is one process and nothing here does anything.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dumlp_pin.batchnorm import BatchNorm


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    count: int = 1

    def total(self, value: Tensor) -> Tensor:
        """The sum over the processes of a number that takes no gradient."""
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def share(self, batch: Tensor) -> Tensor:
        """This process's part of a batch (B, ...)."""
        return batch.tensor_split(self.count)[self.rank]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged and batch norm statistics taken over all processes."""
        if self.count == 1:
            return model
        for module in model.modules():
            if isinstance(module, BatchNorm):
                module.synchronised = True
        return nn.parallel.DistributedDataParallel(model)


def join_processes(device: torch.device) -> Processes:
    """Meet the other processes of `torchrun`, if there are any."""
    if "WORLD_SIZE" not in os.environ:
        return Processes()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Processes(dist.get_rank(), dist.get_world_size())
