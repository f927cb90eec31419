"""Commands about models: list them, export one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.table import Table
from tyro.conf import Positional, arg

from dumlp_pin._console import table_console
from dumlp_pin.cli.app import app

NOT_COUNTED = """
For one set as large as in the paper. Multiply-adds are those of matrix products and convolutions,
by PyTorch's counter. It does not see the distances between points that sampling and the search for
neighbours take, which stand beside it; nor sorting, activations, norms and sums.
"""


@app.command
def models(pattern: Annotated[Positional[str], arg(metavar="PATTERN")] = "*") -> None:
    """List the models: parameters and work for one set, beside what the paper prints.

    Args:
        pattern: A shell pattern, such as '*modelnet40'.
    """
    from dumlp_pin.models import list_models
    from dumlp_pin.training.sizes import size_of

    table = Table("\nname", "\ntask", box=None)
    for header in ("\nparameters", "\npaper", "multiply-\nadds, M", "\npaper", "dis-\ntances, M"):
        table.add_column(header, justify="right", no_wrap=True)
    names = list_models(pattern)
    if not names:
        raise KeyError(f"no model matches {pattern!r}; known: {', '.join(list_models())}")
    for name in names:
        size = size_of(name)
        parameters, printed = f"{size.parameters:,}", size.printed_parameters or ""
        if size.part:
            parameters += f", {size.part} {size.of_part:,}"
            printed = f"{size.part} {printed}"
        macs = distances = ""
        if size.work is not None:
            macs = f"{size.work.macs / 1e6:,.1f}"
            distances = f"{size.work.distances / 1e6:.1f}" if size.work.distances else ""
        printed_macs = "" if size.printed_macs is None else f"{size.printed_macs:,.0f}"
        table.add_row(name, size.task, parameters, printed, macs, printed_macs, distances)
    console = table_console()
    console.print(table)
    console.print(NOT_COUNTED, highlight=False)


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
