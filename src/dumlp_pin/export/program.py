"""A model as a program of plain tensors: what goes in, and whether what comes out is still right.

An exported program takes padded sets: x (B, N, F), category (B,) where the model asks for one, and
mask (B, N), True where an element is real. Any B and any N will do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from dumlp_pin.models.networks import AnomalyDetector
from dumlp_pin.sets import SetBatch

Inputs = dict[str, Tensor]

TRACED = (7, 3)  # the sizes of the sets that a model is traced with
COMPARED = ((9,), (1,), (4, 1, 0, 6), (40, 33))  # and of those that it is compared on
IMAGE = (12, 10)  # pictures of any size give one vector
SLACK = 8  # how many times a model's own rounding error a copy may be off


def plain_copy(model: nn.Module) -> nn.Module:
    """In float32, on the CPU, ready to evaluate; the model itself stays as it is."""
    return copy.deepcopy(model).float().cpu().eval()


def name_of(model: nn.Module) -> str:
    """The name a model was created by, or its class."""
    name, _ = getattr(model, "created_as", (type(model).__name__, {}))
    return name


def draw_inputs(model: nn.Module, sizes: Sequence[int], seed: int = 0) -> Inputs:
    """Random sets of these sizes, padded with NaN, and what else the model asks for.

    >>> from dumlp_pin import create_model
    >>> inputs = draw_inputs(create_model("dumlp_pin_shapenetpart_s"), sizes=[7, 3])
    >>> {name: tuple(value.shape) for name, value in inputs.items()}
    {'x': (2, 7, 3), 'category': (2,), 'mask': (2, 7)}
    """
    generator = torch.Generator().manual_seed(seed)
    shape = _element_shape(model)
    sets = [torch.randn(size, *shape, generator=generator) for size in sizes]
    x, mask = SetBatch.from_list(sets).to_padded()
    x[~mask] = torch.nan
    categories = getattr(model, "num_categories", 0)
    if not categories:
        return {"x": x, "mask": mask}
    category = torch.randint(categories, (len(sizes),), generator=generator)
    return {"x": x, "category": category, "mask": mask}


def trace(model: nn.Module) -> ExportedProgram:
    """The model for any number and size of sets."""
    inputs = draw_inputs(model, TRACED)
    free = {
        "x": {axis: Dim.DYNAMIC for axis in range(inputs["x"].ndim) if axis != 2},
        "category": {0: Dim.DYNAMIC},
        "mask": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC},
    }
    try:
        return torch.export.export(
            model, (), inputs, dynamic_shapes={name: free[name] for name in inputs}
        )
    except (RuntimeError, ValueError, TypeError) as error:  # of the tracer, or of the model
        raise cannot_export(model, error) from error


def cannot_export(model: nn.Module, error: BaseException) -> ValueError:
    reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
    return ValueError(f"{name_of(model)} cannot be exported: {reason.strip()}")


@torch.no_grad()
def check_agreement(model: nn.Module, run: Callable[[Inputs], Tensor], where: str) -> float:
    """The relative difference of an exported copy from its model, over sets of several sizes.

    Both are held against float64. A copy that is further away than the model's own rounding
    explains is an error.
    """
    exact = copy.deepcopy(model).double()
    outputs: list[list[Tensor]] = []
    for sizes in COMPARED:
        inputs = draw_inputs(model, sizes)
        wide = inputs | {"x": inputs["x"].double()}
        outputs.append(
            [output.flatten().double() for output in (exact(**wide), model(**inputs), run(inputs))]
        )
    reference, own, copied = (torch.cat(each) for each in zip(*outputs, strict=True))
    eps = torch.finfo(torch.float32).eps
    allowed = SLACK * max(_distance(own, reference), eps)
    error = _distance(copied, reference)
    if not error <= allowed:  # NaN is an error, too
        raise ValueError(
            f"{name_of(model)} in {where} is off by {error:.1e}, rounding explains {allowed:.1e}"
        )
    return _distance(copied, own)


def _distance(output: Tensor, reference: Tensor) -> float:
    """Relative; the -inf that a padded element's score is may only be met by the same."""
    difference = torch.where(output == reference, 0, output - reference)
    return float(difference.norm() / reference.nan_to_num(neginf=0).norm())


def _element_shape(model: Any) -> tuple[int, ...]:
    if isinstance(model, AnomalyDetector):
        images = model.backbone
        return (model.width,) if images is None else (images.in_channels, *IMAGE)
    if not isinstance(getattr(model, "in_features", None), int):
        raise TypeError(f"{name_of(model)} does not say what it takes: it has no in_features")
    return (model.in_features,)
