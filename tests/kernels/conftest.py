"""Where the kernels are tested: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from dumlp_pin.kernels._triton import INTERPRETED


@pytest.fixture
def device() -> torch.device:
    if INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")
