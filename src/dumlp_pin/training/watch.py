"""What people watch while a run goes on: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINES_EVERY = 10.0  # seconds between two plain lines


class Watch:
    """Shows epochs as they end: `with Watch("digits", epochs=40) as watch: watch.epoch(1, row)`."""

    def __init__(self, title: str, epochs: int, done: int = 0) -> None:
        self.title, self.epochs = title, epochs
        self.console = Console()
        self.last_line = 0.0
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs  {task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.bar = self.progress.add_task(title, total=epochs, completed=done, figures="")

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

    def epoch(self, number: int, row: dict[str, float], headline: str) -> None:
        figures = (
            f"loss {row['loss']:.4f}  {headline} {100 * row[headline]:.2f} %  "
            f"{row['sets_per_second']:,.0f} sets/s"
        )
        self.progress.update(self.bar, completed=number, figures=figures)
        now = time.monotonic()
        if not self.console.is_terminal and (
            number == self.epochs or now - self.last_line > LINES_EVERY
        ):
            self.last_line = now
            line = f"{self.title}: epoch {number}/{self.epochs}  {figures}"
            self.console.print(line, highlight=False, soft_wrap=True)
