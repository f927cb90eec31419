"""Which elements the softmax over the set attends to, column by column."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dumlp_pin.blocks import AggregationBlock
from dumlp_pin.figures._canvas import caption, figure_at, panel
from dumlp_pin.figures._sets import draw_cloud, draw_pixels, extent, show_pixels
from dumlp_pin.functional import set_softmax

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS_SHOWN, ACROSS = 32, 8
SIDE, GAP, TITLE, WHOLE = 1.1, 0.08, 0.17, 2.4  # inches; the whole set is at most so wide
STRONG = torch.tensor([0.80, 0.05, 0.05])
PALE = torch.tensor([0.78, 0.80, 0.84])
PLAIN = torch.tensor([0.30, 0.35, 0.42])
INK = 0.35  # of an image beneath its weights
FULL = 0.99  # the share of weights that are not drawn as strong as can be


def draw_attention(path: Path, elements: Tensor, weights: Tensor, rows: int | None = None) -> None:
    """A panel a column of `weights` (N, C), the most concentrated first; the set itself before it.

    `elements` (N, F) are points; with `rows`, the pixels of an image so many rows high. Above a
    panel stands on how many elements its weight rests, by `effective_number`.
    """
    reach = effective_number(weights)
    order = reach.argsort()[:COLUMNS_SHOWN].tolist()
    down = math.ceil(len(order) / ACROSS)
    height = SIDE
    if rows is None:
        wide, high = extent(elements)
        height = SIDE * min(max(high / wide, 0.4), 1.2)
    step = SIDE + GAP, height + TITLE
    large = down * step[1] - TITLE  # the set itself is as high as all rows
    wide = min(large * SIDE / height, WHOLE)
    left = wide + 3 * GAP
    with figure_at(
        path, left + ACROSS * step[0], TITLE + down * step[1] + 2 * GAP, of_points=rows is None
    ) as figure:
        whole = panel(figure, GAP, 2 * TITLE + GAP, wide, large)
        if rows is None:
            draw_cloud(whole, elements, PLAIN.expand(len(elements), 3))
        else:
            draw_pixels(whole, elements, rows, PLAIN)
        caption(figure, f"{len(elements):,} elements", GAP + wide / 2, 0.04)
        title = (
            f"{len(order)} columns of the softmax over them, and how many elements each rests on"
        )
        caption(figure, title, left + ACROSS * step[0] / 2, 0.04)
        for place, column in enumerate(order):
            x, y = left + place % ACROSS * step[0], 2 * TITLE + GAP + place // ACROSS * step[1]
            axes = panel(figure, x, y, SIDE, height)
            weight = weights[:, column]
            strength = (weight / weight.quantile(FULL)).clamp(max=1)
            _draw(axes, elements, strength, rows)
            axes.set_title(f"{reach[column]:.0f}", fontsize=7, pad=1)


def effective_number(weights: Tensor) -> Tensor:
    """Of each column of weights (N, C) that sums to 1, the exponential of its entropy.

    It is N if all elements have the same weight, 1 if one has all of it.

    >>> effective_number(torch.tensor([[0.5, 1.0], [0.5, 0.0]]))
    tensor([2., 1.])
    """
    return torch.special.entr(weights).sum(0).exp()


def attention_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """(B, N, C): the weights of the last aggregation that has a softmax over the set."""
    blocks = [
        module
        for module in model.modules()
        if isinstance(module, AggregationBlock) and "softmax" in module.activations
    ]
    if not blocks:
        raise ValueError("no aggregation of this model has a softmax over the set")
    branch = blocks[-1].branches[blocks[-1].activations.index("softmax")]
    seen: list[Tensor] = []
    hook = branch.register_forward_hook(lambda *call: seen.append(call[2]))
    try:
        with torch.inference_mode():
            model(**inputs)
    finally:
        hook.remove()
    return set_softmax(seen[-1])


def _draw(axes: Axes, elements: Tensor, strength: Tensor, rows: int | None) -> None:
    red = strength[:, None]
    if rows is None:
        draw_cloud(axes, elements, PALE + red * (STRONG - PALE), strength)
        return
    paper = 1 - INK * elements[:, 2:]
    show_pixels(axes, paper + red * (STRONG - paper), rows)
