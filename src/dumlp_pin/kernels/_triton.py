"""Whether Triton is here, found out without importing it."""

import importlib.util
import os

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run in Python, on a CPU
