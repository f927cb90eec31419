"""Sets with the one that does not belong, and the chance that each member is given of being it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from dumlp_pin.figures._canvas import figure_at, panel

ODD, WRONG = "tab:blue", "tab:red"
WIDTH, HEIGHT, BAR, GAP, TITLE = 0.7, 0.86, 0.08, 0.08, 0.22  # inches
STEP, ROW = WIDTH + GAP, TITLE + HEIGHT + BAR + 1.5 * GAP


def draw_anomalies(
    path: Path, images: Tensor, odd: Tensor, chances: Tensor, titles: Sequence[str]
) -> None:
    """A row a set: images (B, N, 3, H, W) of uint8, the place `odd` (B,) of the one apart.

    The odd one has a blue frame. Below each image a bar is its chance (B, N) of being the odd one.
    Where another one has the highest chance, that one has a red frame.
    """
    B, N = chances.shape
    with figure_at(path, N * STEP + GAP, B * ROW) as figure:
        for row in range(B):
            figure.text(
                GAP / figure.get_figwidth(),
                1 - (row * ROW + 0.04) / figure.get_figheight(),
                titles[row],
                va="top",
                fontsize=8,
            )
            truth, guess = int(odd[row]), int(chances[row].argmax())
            for place in range(N):
                left, top = GAP + place * STEP, row * ROW + TITLE
                picture = panel(figure, left, top, WIDTH, HEIGHT)
                picture.imshow(images[row, place].permute(1, 2, 0).cpu().numpy(), aspect="auto")
                if place in (truth, guess):
                    colour = ODD if place == truth else WRONG
                    picture.spines[:].set(visible=True, linewidth=3, color=colour)
                bar = panel(figure, left, top + HEIGHT + GAP / 2, WIDTH, BAR)
                bar.barh(0, float(chances[row, place]), height=1, color=ODD)
                bar.set(xlim=(0, 1), ylim=(-0.5, 0.5))
                bar.spines[:].set(visible=True, linewidth=0.5, color="0.7")
