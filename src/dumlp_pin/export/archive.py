"""`torch.export` archives: a traced program and its weights, which need PyTorch alone."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import nn

from dumlp_pin._files import written_whole
from dumlp_pin.export.program import check_agreement, plain_copy, trace


def export_archive(model: nn.Module, path: str | Path) -> float:
    """Write a model to one .pt2 file; returns how far what is read back is from it, relatively.

    `torch.export.load(path).module()` takes x and mask by name, in any number and size of sets.
    """
    model = plain_copy(model)
    content = io.BytesIO()
    torch.export.save(trace(model), content)
    content.seek(0)
    program = torch.export.load(content).module()
    difference = check_agreement(model, lambda inputs: program(**inputs), "its archive")
    with written_whole(Path(path)) as draft:
        draft.write_bytes(content.getvalue())
    return difference
