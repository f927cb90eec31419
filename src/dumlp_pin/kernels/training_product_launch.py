"""How the kernels of the product are launched: their tiles, and the parts that sets have."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from dumlp_pin.kernels.device import processors
from dumlp_pin.kernels.training_launch import Tiling, add_up, block, cdiv, norm_of, operand_of
from dumlp_pin.kernels.training_ops import Kept

kernels: Any = importlib.import_module("dumlp_pin.kernels.triton_training_product")

# As the compiler has them for an H200, no precision or width spills registers to speak of.
FORWARD = Tiling(128, 2, {"num_warps": 8, "num_stages": 2})
BACKWARD = Tiling(64, 2, {"num_warps": 8, "num_stages": 2})
# A set is not cut into parts smaller than these. To merge parts forward takes a kernel of its own,
# which goes from one to the next.
ROWS_FORWARD, MOST_FORWARD = 1024, 32
ROWS_BACKWARD = 128


def forward(
    kept: Kept, starts: Tensor | None, left: str, right: str, y: Tensor, sums: Tensor
) -> None:
    """Write y (B, C, C) and what the backward pass needs beside it, sums (B, C + 4, C).

    `kept` is the last layer of both branches.
    """
    rows, B, C = kept.z.shape[1], len(y), kept.layer.N
    least = max(ROWS_FORWARD, cdiv(rows, B * MOST_FORWARD))
    parts = parts_of(kept.z, B, 1, FORWARD, least)
    into = sums if parts == 1 else sums.new_empty(B, parts, *sums.shape[1:])
    with torch.cuda.device_of(y):
        kernels.multiply_sets[(B, parts)](
            kept.z,
            *norm_of(kept, y),
            starts,
            into,
            y,
            rows,
            rows // B,
            C=C,
            LEFT=left,
            RIGHT=right,
            WHOLE=parts == 1,
            OPERAND=operand_of(kept.z),
            BLOCK_R=FORWARD.rows,
            BLOCK_C=block(C),
            **FORWARD.options,
        )
        if parts > 1:
            kernels.merge_parts[(B, 1)](
                into, sums, y, parts, C=C, LEFT=left, RIGHT=right, BLOCK_C=block(C)
            )


def backward(
    kept: Kept,
    starts: Tensor | None,
    left: str,
    right: str,
    sums: Tensor,
    y_gradient: Tensor,
    gradients: Tensor,
    of_affine: Tensor,
) -> None:
    """Write the gradients of both factors, behind their norms, and of the norms' parameters."""
    rows, B, C = kept.z.shape[1], len(sums), kept.layer.N
    parts = parts_of(kept.z, B, 2, BACKWARD, ROWS_BACKWARD)
    partial = sums.new_empty(B * parts, len(of_affine))
    with torch.cuda.device_of(gradients):
        kernels.multiply_sets_backward[(B, parts, 2)](
            kept.z,
            *norm_of(kept, gradients),
            starts,
            sums,
            y_gradient,
            gradients,
            partial,
            rows,
            rows // B,
            C=C,
            LEFT=left,
            RIGHT=right,
            OPERAND=operand_of(kept.z),
            BLOCK_R=BACKWARD.rows,
            BLOCK_C=block(C),
            **BACKWARD.options,
        )
        add_up(partial, of_affine)


def parts_of(z: Tensor, B: int, programs: int, tiling: Tiling, least: int) -> int:
    """How many parts, of so many programs each, the sets have.

    Enough for all processors, and none of them small. Nothing looks at the sizes of sets: their
    mean decides.
    """
    tiles = cdiv(z.shape[1], B * tiling.rows)
    wanted = cdiv(tiling.programs * processors(z.device), B * programs)
    return cdiv(tiles, max(cdiv(tiles, wanted), cdiv(least, tiling.rows)))
