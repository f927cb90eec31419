"""How the training kernels are launched: their tiles, and what each of their programs does."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dumlp_pin.kernels._triton import INTERPRETED
from dumlp_pin.kernels.training_ops import Kept

forward_kernels: Any = importlib.import_module("dumlp_pin.kernels.triton_training_forward")
backward_kernels: Any = importlib.import_module("dumlp_pin.kernels.triton_training_backward")


class Tiling(NamedTuple):
    """The rows of a tile, the programs on each multiprocessor, and what Triton is to do."""

    rows: int
    programs: int
    options: dict[str, int]


# Of those tried on an H200 the fastest, over the layers of all models and both precisions.
FORWARD = Tiling(32, 2, {"num_warps": 4, "num_stages": 2})
BACKWARD = Tiling(32, 1, {"num_warps": 8, "num_stages": 3})
SUMS = Tiling(32, 4, {"num_warps": 4})
OUTPUT_TILE = 4096  # numbers
NARROWEST = 16  # matrix products have at least as many columns


class Share(NamedTuple):
    """How the rows are shared among programs, in whole tiles."""

    rows: int
    rows_a_program: int

    @classmethod
    def of(cls, z: Tensor, tiling: Tiling) -> Share:
        """For z (groups, rows, N): each program has one of the groups."""
        groups, rows, _ = z.shape
        tiles = cdiv(rows, tiling.rows)
        programs = max(1, tiling.programs * processors(z.device) // groups)
        return cls(rows, cdiv(tiles, programs) * tiling.rows)

    @property
    def programs(self) -> int:
        return cdiv(self.rows, self.rows_a_program)


def forward(kept: Kept, source: Tensor, before: Kept | None, target: Tensor, eps: float) -> None:
    """Write z and its statistics, or y where no norm follows, from `source` (groups, rows, K)."""
    (groups, K, N, normed), share = kept.layer, Share.of(target, FORWARD)
    partial = source.new_empty(share.programs, 2, groups, N, dtype=torch.float32)
    with torch.cuda.device_of(source):
        forward_kernels.forward_layer[(share.programs, groups)](
            source,
            *norm_of(before, source),
            kept.weight,
            kept.bias,
            target,
            partial,
            *share,
            from_group_to_group(source),
            K=K,
            N=N,
            INPUT_NORMED=before is not None,
            NORMED=normed,
            OPERAND=operand_of(target, K),
            BLOCK_R=FORWARD.rows,
            BLOCK_K=block(K),
            BLOCK_N=block(N),
            **FORWARD.options,
        )
        if normed:
            forward_kernels.combine_statistics[(cdiv(groups * N, 8),)](
                partial,
                kept.bias,
                kept.statistics,
                *share,
                share.programs,
                eps,
                N=groups * N,
                BLOCK_P=power_of_2(share.programs),
                BLOCK_N=8,
            )


def normalise(kept: Kept, y: Tensor) -> None:
    """Write y (groups, rows, N): the last layer's z after its norm."""
    groups, rows, N = y.shape
    block_r = OUTPUT_TILE // block(N)
    with torch.cuda.device_of(y):
        forward_kernels.normalise_output[(cdiv(rows, block_r), groups)](
            kept.z, *norm_of(kept, y), y, rows, N=N, BLOCK_R=block_r, BLOCK_N=block(N)
        )


def sum_output(kept: Kept, gradient: Tensor, sums: Tensor) -> None:
    """Write the sums of the gradient (groups, rows, N) at the MLPs' output."""
    (groups, _, N, normed), share = kept.layer, Share.of(gradient, SUMS)
    partial = gradient.new_empty(share.programs, len(sums), dtype=torch.float32)
    with torch.cuda.device_of(gradient):
        backward_kernels.output_sums[(share.programs, groups)](
            gradient,
            kept.z if normed else gradient,
            norm_of(kept, gradient)[0],
            partial,
            *share,
            N=N,
            NORMED=normed,
            BLOCK_R=SUMS.rows,
            BLOCK_N=block(N),
            **SUMS.options,
        )
        add_up(partial, sums)


def backward(
    kept: Kept,
    gradient: Tensor,
    sums: Tensor,
    source: Tensor,
    before: Kept | None,
    target: Tensor | None,
    found: Tensor,
) -> None:
    """Write into `target` the gradient at `source`, what the layer reads, None if nobody asks.

    `gradient` and `sums` are those behind the layer's norm. Into `found`, a vector, come the
    gradients of the scale and shift of the norm before, if there is one, and of the weight.
    """
    (groups, K, N, normed), share = kept.layer, Share.of(gradient, BACKWARD)
    partial = gradient.new_empty(share.programs, len(found), dtype=torch.float32)
    with torch.cuda.device_of(gradient):
        backward_kernels.backward_layer[(share.programs, groups)](
            gradient,
            kept.z if normed else gradient,
            *norm_of(kept, gradient),
            sums,
            kept.weight,
            source,
            *norm_of(before, source),
            source if target is None else target,
            partial,
            *share,
            from_group_to_group(source),
            K=K,
            N=N,
            INPUT_NORMED=before is not None,
            NORMED=normed,
            FOR_X=target is not None,
            OPERAND=operand_of(gradient),
            BLOCK_R=BACKWARD.rows,
            BLOCK_K=block(K),
            BLOCK_N=block(N),
            **BACKWARD.options,
        )
        add_up(partial, found)


def add_up(partial: Tensor, total: Tensor) -> None:
    """Write the sum of `partial` (programs, numbers) over the programs, in a fixed order."""
    programs, numbers = partial.shape
    backward_kernels.add_up[(cdiv(numbers, 32),)](
        partial, total, programs, numbers, BLOCK_P=64, BLOCK_N=32
    )


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def power_of_2(number: int) -> int:
    """The next, or the number itself."""
    return 1 << (number - 1).bit_length()


def block(width: int) -> int:
    """The columns of a tile."""
    return max(NARROWEST, power_of_2(width))


def processors(device: torch.device) -> int:
    """How many there are; the interpreter gets two, to see programs share rows."""
    if INTERPRETED:
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def from_group_to_group(source: Tensor) -> int:
    """How many numbers; 0 where all groups read the same (rows, K)."""
    return source[0].numel() if source.ndim == 3 else 0


def norm_of(kept: Kept | None, unused: Tensor) -> tuple[Tensor, Tensor]:
    """Statistics, then scales and shifts; without a norm no kernel reads them."""
    if kept is None or not kept.layer.normed:
        return unused, unused
    return kept.statistics, kept.affine


def operand_of(values: Tensor, features: int = NARROWEST) -> str:
    """How matrix products over so many features take activations of this type."""
    if values.dtype == torch.bfloat16:
        return "bf16"
    # Of few products TF32 saves nothing, and cuBLAS does not use it either.
    few = features < NARROWEST
    return "ieee" if few or torch.get_float32_matmul_precision() == "highest" else "tf32"
