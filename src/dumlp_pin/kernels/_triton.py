"""Whether Triton can run here, found out without importing it."""

import importlib.util
import os
import shutil

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run in Python, on a CPU
# It launches kernels through a few lines of C, which it compiles on the machine.
_COMPILERS = (os.environ.get("CC", ""), "clang", "gcc")
HAS_TRITON = importlib.util.find_spec("triton") is not None and (
    INTERPRETED or any(map(shutil.which, _COMPILERS))
)


def why_not_on(device: str) -> str | None:
    """Why kernels cannot run on a kind of device; None if they can.

    >>> why_not_on("mps") is None
    False
    """
    if not HAS_TRITON:
        return "Triton is not installed, or has no C compiler"
    if device != "cuda" and not INTERPRETED:
        return f"Triton needs a GPU, the input is on {device}"
    return None
