"""What every reader checks: each failure is one line that names the file it was found in."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class DataError(ValueError):
    """A data set's file is missing, broken, or not what it should be; always one line."""

    def __init__(self, message: str) -> None:
        # Names and errors from broken files can hold line breaks.
        super().__init__(" ".join(message.splitlines()))


def reason(error: Exception) -> str:
    """What an error says, or its kind where it says nothing."""
    return str(error) or type(error).__name__


def check_tensor(
    where: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int | None]
) -> None:
    """Refuse a dtype or shape other than the expected one; `None` stands for any size.

    >>> check_tensor("labels", torch.zeros(3), torch.int64, (3,))
    Traceback (most recent call last):
    dumlp_pin.data.checks.DataError: labels: expected int64 of shape (3), got float32 of shape (3)
    """
    fits = tensor.ndim == len(shape) and all(
        wanted is None or size == wanted for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if tensor.dtype != dtype or not fits:
        raise DataError(
            f"{where}: expected {_words(dtype, shape)}, got {_words(tensor.dtype, tensor.shape)}"
        )


def check_finite(where: str, tensor: Tensor) -> None:
    # The extremes of a tensor with a NaN are NaN: one pass, and no mask as large as the data.
    if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
        raise DataError(f"{where}: holds NaN or infinite values")


def check_range(where: str, tensor: Tensor, stop: int) -> None:
    """Refuse values outside 0 <= value < stop."""
    if not tensor.numel():
        return
    low, high = torch.aminmax(tensor)
    _check_extremes(where, low.item(), high.item(), stop)


def whole_numbers(where: str, array: np.ndarray, stop: int) -> Tensor:
    """Labels as a publisher stores them, of any number type -> int64 in 0 <= label < stop."""
    # Checked before the cast, which would turn 3.5 into 3, and NaN into anything.
    if array.dtype.kind not in "iuf" or not (array == np.round(array)).all():
        raise DataError(f"{where}: expected whole numbers")
    if array.size:
        _check_extremes(where, array.min(), array.max(), stop)
    return torch.from_numpy(array.astype(np.int64))


def _check_extremes(where: str, low: float, high: float, stop: int) -> None:
    if low < 0 or high >= stop:
        raise DataError(f"{where}: values must lie in 0..{stop - 1}, found {low}..{high}")


def _words(dtype: torch.dtype, shape: Sequence[int | None]) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"{str(dtype).removeprefix('torch.')} of shape ({sizes})"
