"""How the training kernels are launched: their tiles, and what each of their programs does."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dumlp_pin.kernels.device import processors
from dumlp_pin.kernels.training_ops import Kept, Offset

forward_kernels: Any = importlib.import_module("dumlp_pin.kernels.triton_training_forward")
backward_kernels: Any = importlib.import_module("dumlp_pin.kernels.triton_training_backward")


class Tiling(NamedTuple):
    """How the work is cut, and what Triton is to do."""

    rows: int  # of a tile
    programs: int  # on each multiprocessor
    options: dict[str, int]
    most: int = 128 * 128  # numbers of a program's part of a weight, or columns where it has none

    def part(self, columns: int, others: int = 1) -> int:
        """How many of the columns a program takes; of a weight, each with all the others."""
        return min(block(columns), max(NARROWEST, self.most // power_of_2(others)))


# Of those tried on an H200 the fastest, over the layers of all models and both precisions.
FORWARD = Tiling(32, 2, {"num_warps": 4, "num_stages": 2})
BACKWARD = Tiling(32, 1, {"num_warps": 8, "num_stages": 3})
SUMS = Tiling(32, 4, {"num_warps": 4}, most=128)
# A program has some columns of a set, or where sets are few a part of its rows.
OF_SETS = Tiling(128, 1, {"num_warps": 8}, most=32)
# As the compiler has it for that GPU, a layer of more columns than this spills registers with as
# few warps, and does not fit into shared memory with as many stages.
NARROW = 128
OUTPUT_TILE = 4096  # numbers
NARROWEST = 16  # matrix products have at least as many columns


class Share(NamedTuple):
    """How the rows are shared among programs, in whole tiles."""

    rows: int
    rows_a_program: int

    @classmethod
    def of(cls, z: Tensor, tiling: Tiling, parts: int = 1) -> Share:
        """For z (groups, rows, N): each program has one of the groups and a part of the weight."""
        groups, rows, _ = z.shape
        tiles = cdiv(rows, tiling.rows)
        programs = max(1, tiling.programs * processors(z.device) // (groups * parts))
        return cls(rows, cdiv(tiles, programs) * tiling.rows)

    @property
    def programs(self) -> int:
        return cdiv(self.rows, self.rows_a_program)


def forward(
    kept: Kept,
    source: Tensor,
    before: Kept | None,
    offset: Offset | None,
    target: Tensor,
    eps: float,
) -> None:
    """Write z and its statistics, or y where no norm follows, from `source` (groups, rows, K)."""
    groups, K, N, normed = kept.layer
    block_n = FORWARD.part(N, K)
    parts = cdiv(N, block_n)
    share = Share.of(target, FORWARD, parts)
    options = FORWARD.options | ({"num_warps": 8} if K > NARROW else {})
    owners = None if offset is None else offset.owners(share.rows)
    partial = source.new_empty(share.programs, 2, groups, N, dtype=torch.float32)
    with torch.cuda.device_of(source):
        forward_kernels.forward_layer[(share.programs, groups, parts)](
            source,
            *norm_of(before, source),
            kept.weight,
            kept.bias,
            source if offset is None else offset.values,
            source if owners is None else owners,
            target,
            partial,
            *share,
            from_group_to_group(source),
            1 if offset is None else share.rows // len(offset.values),
            K=K,
            N=N,
            INPUT_NORMED=before is not None,
            NORMED=normed,
            OFFSET=offset is not None,
            EQUAL_SETS=owners is None,
            OPERAND=operand_of(target, K),
            BLOCK_R=FORWARD.rows,
            BLOCK_K=block(K),
            BLOCK_N=block_n,
            **options,
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


def normalise(kept: Kept, y: Tensor, relu: bool) -> None:
    """Write y (groups, rows, N): the last layer's z after its norm, and after a ReLU if `relu`."""
    groups, rows, N = y.shape
    block_r = OUTPUT_TILE // block(N)
    with torch.cuda.device_of(y):
        forward_kernels.normalise_output[(cdiv(rows, block_r), groups)](
            kept.z, *norm_of(kept, y), y, rows, N=N, RELU=relu, BLOCK_R=block_r, BLOCK_N=block(N)
        )


def sum_output(kept: Kept, gradient: Tensor, relu: bool, sums: Tensor) -> None:
    """Write the sums of the gradient (groups, rows, N) at the MLPs' output, behind its norm.

    Here and below, `relu` says that the gradient has yet to pass the ReLU behind the norm.
    """
    groups, _, N, normed = kept.layer
    block_n = SUMS.part(N)
    parts = cdiv(N, block_n)
    share = Share.of(gradient, SUMS, parts)
    partial = gradient.new_empty(share.programs, len(sums), dtype=torch.float32)
    with torch.cuda.device_of(gradient):
        backward_kernels.output_sums[(share.programs, groups, parts)](
            gradient,
            kept.z if normed else gradient,
            *norm_of(kept, gradient),
            partial,
            *share,
            N=N,
            NORMED=normed,
            RELU=relu,
            BLOCK_R=SUMS.rows,
            BLOCK_N=block_n,
            **SUMS.options,
        )
        add_up(partial, sums)


def sum_sets(
    kept: Kept,
    gradient: Tensor,
    sums: Tensor,
    relu: bool,
    starts: Tensor | None,
    target: Tensor,
) -> None:
    """Write the gradient of the offset (B, N): of each set the sum over its rows of that at z."""
    (_, rows, N), B = gradient.shape, len(target)
    block_n = OF_SETS.part(N)
    parts = cdiv(N, block_n)
    programs = max(1, OF_SETS.programs * processors(gradient.device) // (B * parts))
    programs = min(programs, cdiv(rows, B * OF_SETS.rows))
    partial = gradient.new_empty(programs, B * N, dtype=torch.float32)
    with torch.cuda.device_of(gradient):
        backward_kernels.set_sums[(B * programs, 1, parts)](
            gradient,
            kept.z,
            *norm_of(kept, gradient),
            sums,
            gradient if starts is None else starts,
            partial if programs > 1 else target,
            rows,
            B,
            programs,
            N=N,
            EQUAL_SETS=starts is None,
            RELU=relu,
            BLOCK_R=OF_SETS.rows,
            BLOCK_N=block_n,
            **OF_SETS.options,
        )
        if programs > 1:
            add_up(partial, target)


def backward(
    kept: Kept,
    gradient: Tensor,
    sums: Tensor,
    relu: bool,
    source: Tensor,
    before: Kept | None,
    target: Tensor | None,
    found: Tensor,
) -> None:
    """Write into `target` the gradient at `source`, what the layer reads, None if nobody asks.

    `gradient` and `sums` are those behind the layer's norm. Into `found`, a vector, come the
    gradients of the scale and shift of the norm before, if there is one, and of the weight.
    """
    groups, K, N, normed = kept.layer
    block_k = BACKWARD.part(K, N)
    parts = cdiv(K, block_k)
    share = Share.of(gradient, BACKWARD, parts)
    large = N > NARROW and gradient.dtype == torch.float32
    options = BACKWARD.options | ({"num_stages": 2} if large else {})
    partial = gradient.new_empty(share.programs, len(found), dtype=torch.float32)
    with torch.cuda.device_of(gradient):
        backward_kernels.backward_layer[(share.programs, groups, parts)](
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
            RELU=relu,
            FOR_X=target is not None,
            OPERAND=operand_of(gradient),
            BLOCK_R=BACKWARD.rows,
            BLOCK_K=block_k,
            BLOCK_N=block(N),
            **options,
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
