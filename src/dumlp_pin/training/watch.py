"""What people watch as a run goes on: a bar on a terminal, plain lines elsewhere, TensorBoard."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from dumlp_pin._errors import need
from dumlp_pin.training.results import Row

LINES_EVERY = 10.0  # seconds between two plain lines


class Watch:
    """Shows epochs as they end: `with Watch("digits", epochs=40) as watch: watch.epoch(1, [row])`.

    There is a row for each of the runs that go on at once; their means are shown, and sets of all.
    """

    def __init__(self, title: str, epochs: int, done: int = 0, *, quiet: bool = False) -> None:
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

    def epoch(self, number: int, rows: Sequence[Row], headline: str) -> None:
        loss, score = (statistics.fmean(row[key] for row in rows) for key in ("loss", headline))
        speed = sum(row["sets_per_second"] for row in rows)
        figures = f"loss {loss:.4f}  {headline} {100 * score:.2f} %  {speed:,.0f} sets/s"
        self.progress.figures = figures
        self.progress.update(self.bar, completed=number)
        now = time.monotonic()
        if not self.console.is_terminal and (
            number == self.epochs or now - self.last_line > LINES_EVERY
        ):
            self.last_line = now
            line = f"{self.title}: epoch {number}/{self.epochs}  {figures}"
            self.console.print(line, highlight=False, soft_wrap=True)


class Board:
    """The numbers of each epoch for TensorBoard, in a folder."""

    def __init__(self, folder: Path, done: int = 0) -> None:
        need("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        # What was drawn after the checkpoint that a run goes on from is drawn again.
        self.writer = SummaryWriter(folder, purge_step=done + 1)

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.writer.close()

    def epoch(self, number: int, row: Row) -> None:
        for name, value in row.items():
            self.writer.add_scalar(name, value, number)


class _ProgressAboveFigures(Progress):
    """A bar and a line below it: together they are too wide for many terminals."""

    figures = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.figures)
