"""Commands about models: list them, export one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from dumlp_pin.cli.app import app


@app.command
def models(pattern: Annotated[Positional[str], arg(metavar="PATTERN")] = "*") -> None:
    """List the models.

    Args:
        pattern: A shell pattern, such as '*modelnet40'.
    """
    from dumlp_pin.models import count_parameters, create_model, list_models

    table = Table("name", "task", "parameters", box=None)
    for name in list_models(pattern):
        model = create_model(name)
        table.add_row(name, model.task, f"{count_parameters(model):,}")
    Console().print(table)


@app.command
def export(model: Positional[str], out: Positional[Path], int8: bool = False) -> None:
    """Write a trained model to a file for programs without this package.

    Args:
        model: The name of a model that ships trained, such as digits, or the folder of a run or of
            a fit.
        out: An .onnx file, checked in ONNX Runtime; or a .pt2 file, for `torch.export.load`.
        int8: Weights and activations in eight bits, and say what that costs on the test sets.
    """
    from dumlp_pin.export.command import export_command

    export_command(model, out, int8)
