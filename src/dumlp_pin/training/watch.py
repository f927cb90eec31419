"""What people watch as a run goes on: a bar on a terminal, plain lines elsewhere, TensorBoard."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from dumlp_pin._errors import need

LINES_EVERY = 10.0  # seconds between two plain lines


class Watch:
    """Shows epochs as they end: `with Watch("digits", epochs=40) as watch: watch.epoch(1, row)`.

    With `board`, a folder, TensorBoard gets the numbers too.
    """

    def __init__(
        self,
        title: str,
        epochs: int,
        done: int = 0,
        *,
        board: Path | None = None,
        quiet: bool = False,
    ) -> None:
        self.title, self.epochs = title, epochs
        self.console = Console(quiet=quiet)
        self.last_line = -math.inf
        self.progress = _ProgressAboveFigures(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs"),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self.bar = self.progress.add_task(title, total=epochs, completed=done)
        self.board = None
        if board is not None and not quiet:
            need("tensorboard", "tensorboard")
            from torch.utils.tensorboard import SummaryWriter

            # What was drawn after the checkpoint that a run goes on from is drawn again.
            self.board = SummaryWriter(board, purge_step=done + 1)

    def __enter__(self) -> Watch:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.progress.stop()
        if self.board is not None:
            self.board.close()

    def epoch(self, number: int, row: dict[str, float], headline: str) -> None:
        figures = (
            f"loss {row['loss']:.4f}  {headline} {100 * row[headline]:.2f} %  "
            f"{row['sets_per_second']:,.0f} sets/s"
        )
        self.progress.figures = figures
        self.progress.update(self.bar, completed=number)
        now = time.monotonic()
        if not self.console.is_terminal and (
            number == self.epochs or now - self.last_line > LINES_EVERY
        ):
            self.last_line = now
            line = f"{self.title}: epoch {number}/{self.epochs}  {figures}"
            self.console.print(line, highlight=False, soft_wrap=True)
        if self.board is not None:
            for name, value in row.items():
                self.board.add_scalar(name, value, number)


class _ProgressAboveFigures(Progress):
    """A bar and a line below it: together they are too wide for many terminals."""

    figures = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.figures)
