"""How the programs of a Triton kernel are laid over a GPU."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Protocol

import torch

from dumlp_pin._layout import Sets
from dumlp_pin.kernels._triton import INTERPRETED


class Needs(Protocol):
    """What a block needs of a multiprocessor for a program that takes `tile` elements at a time."""

    def shared_bytes(self, tile: int) -> int: ...

    def held(self, tile: int) -> int:
        """Numbers in registers at the same time."""
        ...


class Plan(NamedTuple):
    """What a program is given."""

    tile: int  # elements at a time
    warps: int
    together: int  # programs on a multiprocessor, if its memory is enough for them
    registers: int = 255  # of a thread

    def options(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": 1, "maxnreg": self.registers}

    def programs(self, device: torch.device, needs: Needs) -> int:
        """How many run at the same time."""
        if INTERPRETED:
            return 4
        together = min(self.together, shared_memory(device) // needs.shared_bytes(self.tile))
        return processors(device) * together


# For each precision what was fastest on an H200, then what is left for wider blocks.
PLANS = {
    "bf16": (Plan(64, 4, 3, 168), Plan(64, 4, 2)),
    "tf32": (Plan(128, 8, 1), Plan(64, 4, 2)),
    "tf32x3": (Plan(64, 4, 1),),
    "interpreted": (Plan(64, 4, 1),),
}


@cache
def plan_for(needs: Needs, precision: str, device: torch.device) -> Plan | None:
    """The first plan with registers for all it holds; else the last; None without the memory."""
    plans = [
        plan for plan in PLANS[precision] if needs.shared_bytes(plan.tile) <= shared_memory(device)
    ]
    for plan in plans:
        # A third of the registers is for addresses and for numbers on their way.
        if needs.held(plan.tile) <= 32 * plan.warps * plan.registers * 2 / 3:
            return plan
    return plans[-1] if plans else None


def precision_of(like: Sets) -> str:
    """How the kernels multiply: float32 as PyTorch is asked to multiply it."""
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
