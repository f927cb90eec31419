"""Commands about trained weights: make a run one of those that ship."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional, UseAppendAction

from dumlp_pin.cli.app import app


@app.command
def ship(
    run: Positional[Path],
    name: Positional[str],
    note: UseAppendAction[tuple[str, ...]] = (),
    out: Path | None = None,
    device: str | None = None,
) -> None:
    """Make a finished run a trained model with a name and a model card.

    Args:
        run: The folder of a run, or one with a run for each seed: their median is taken.
        name: What it will be called, such as modelnet40, or with a tag, modelnet40.plus.
        note: What else the card has to say, such as how the data differ; may be given again.
        out: The folder for the model's folder; without it, where the shipped models are.
        device: Where to measure, such as cpu or cuda:1; a GPU where there is one.
    """
    from dumlp_pin.shipping import ship as make
    from dumlp_pin.training.distributed import choose_device

    folder = make(run, name, note, out, choose_device(device))
    print((folder / "README.md").read_text(encoding="utf-8"))
    print(folder)
