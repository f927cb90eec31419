"""Training sets that stay in the host's memory, on the device one step before they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dumlp_pin.training.tasks import Task

Rows = dict[str, Tensor]


def feed(task: Task, batches: Sequence[Tensor], device: torch.device) -> Iterator[Rows]:
    """The rows of each batch of indices, on the device.

    On a GPU the next batch is gathered and copied while the work on this one runs. It goes by way
    of pinned memory, the only kind that is copied without the host's help.
    """
    if device.type != "cuda":
        for index in batches:
            yield {name: v.to(device) for name, v in task.rows("train", index).items()}
        return
    copies = torch.cuda.Stream(device)

    def begin(index: Tensor) -> Rows:
        with torch.cuda.stream(copies):
            return {
                name: values.pin_memory().to(device, non_blocking=True)
                for name, values in task.rows("train", index).items()
            }

    coming = begin(batches[0])
    for index in [*batches[1:], None]:
        rows, work = coming, torch.cuda.current_stream(device)
        work.wait_stream(copies)
        for values in rows.values():
            values.record_stream(work)  # or the next copy could land where this work still reads
        if index is not None:
            coming = begin(index)
        yield rows
