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
