from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from dumlp_pin.training import watch
from dumlp_pin.training.watch import Board, Watch

ROW = {"loss": 0.25, "accuracy": 0.875, "sets_per_second": 1234.5}
FIGURES = "loss 0.2500  accuracy 87.50 %  1,234 sets/s"


def run(epochs: int, quiet: bool = False) -> None:
    with Watch("digits seed 0", epochs, quiet=quiet) as shown:
        for epoch in range(epochs):
            shown.epoch(epoch + 1, [ROW], "accuracy")


def test_plain_lines_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    run(4)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"digits seed 0: epoch {epoch}/4  {FIGURES}" for epoch in (1, 4)]


def test_runs_side_by_side_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Watch("digits seeds 0, 1", 1) as shown:
        shown.epoch(1, [ROW, ROW | {"loss": 0.75, "accuracy": 0.625}], "accuracy")
    figures = "loss 0.5000  accuracy 75.00 %  2,469 sets/s"
    assert capsys.readouterr().out == f"digits seeds 0, 1: epoch 1/1  {figures}\n"


def test_a_plain_line_for_each_slow_epoch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LINES_EVERY", 0.0)
    run(4)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    run(4)
    shown = re.sub(r"\x1b\[[0-9;?]*\w", "", capsys.readouterr().out)
    bar, figures = [line.strip() for line in shown.splitlines() if line.strip()][-2:]
    assert re.fullmatch(r"digits seed 0 \S+ 4/4 epochs 0:00:00", bar)
    assert figures == FIGURES
    assert "epoch 4/4 " not in shown  # no plain line beside the bar


def test_the_other_processes_show_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(2, quiet=True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    run(2, quiet=True)
    assert capfd.readouterr() == ("", "")


has_tensorboard = importlib.util.find_spec("tensorboard") is not None


@pytest.mark.skipif(has_tensorboard, reason="tensorboard is installed")
def test_names_the_extra_for_tensorboard(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match=r'pip install "dumlp-pin\[tensorboard\]"'):
        Board(tmp_path)


@pytest.mark.skipif(not has_tensorboard, reason="tensorboard is not installed")
def test_tensorboard_of_a_resumed_run(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing import (  # type: ignore[reportMissingImports]
        event_accumulator,
    )

    for done, losses in ((0, (3.0, 2.0)), (1, (1.0, 0.0))):
        with Board(tmp_path, done) as board:
            for epoch, loss in enumerate(losses, start=done + 1):
                board.epoch(epoch, ROW | {"loss": loss})
    events = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 3.0), (2, 1.0), (3, 0.0)]
    assert events.Scalars("accuracy")[-1].value == 0.875
