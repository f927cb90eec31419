"""What the kernels have to know of the device that they run on."""

from __future__ import annotations

from functools import cache

import torch

from dumlp_pin._layout import Sets
from dumlp_pin.kernels._triton import INTERPRETED


def precision_of(like: Sets) -> str:
    """How the kernels of inference multiply: float32 as PyTorch is asked to multiply it."""
    if INTERPRETED:
        return "interpreted"
    if like.dtype == torch.bfloat16:
        return "bf16"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors; the interpreter gets two, to see programs share rows."""
    return 2 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether matrix units take both factors from shared memory as they lie there."""
    return not INTERPRETED and torch.cuda.get_device_properties(device).major == 9


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have of a multiprocessor."""
    if INTERPRETED:
        return 1 << 18
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin
