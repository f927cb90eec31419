import subprocess
import sys

import numpy as np
import pytest
import torch

from dumlp_pin._errors import need
from dumlp_pin.data import DataError
from dumlp_pin.data.checks import check_finite, check_range, whole_numbers


def test_an_error_is_one_line() -> None:
    assert str(DataError("a\nname: broken\r\nfile")) == "a name: broken file"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 4999, 9999])
def test_one_bad_value_among_many(value: float, place: int) -> None:
    tensor = torch.rand(100, 100)
    check_finite("file", tensor)
    tensor.view(-1)[place] = value
    with pytest.raises(DataError, match=r"^file: holds NaN or infinite values$"):
        check_finite("file", tensor)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_range_ends_before_its_stop(dtype: torch.dtype) -> None:
    check_range("file", torch.tensor([0, 9], dtype=dtype), 10)
    check_range("file", torch.tensor([], dtype=dtype), 10)
    with pytest.raises(DataError, match=r"^file: values must lie in 0..9, found 0..10$"):
        check_range("file", torch.tensor([0, 10], dtype=dtype), 10)


@pytest.mark.parametrize("dtype", ["u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8"])
def test_labels_of_any_number_type(dtype: str) -> None:
    labels = whole_numbers("file", np.arange(5).astype(dtype), 5)
    assert torch.equal(labels, torch.arange(5))


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError) as caught:
        need("h5py", "data")
    assert str(caught.value) == 'h5py is not installed: pip install "dumlp-pin[data]"'


def test_loading_needs_no_extra() -> None:
    code = "import sys, dumlp_pin.data; print({'h5py', 'PIL', 'pooch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
