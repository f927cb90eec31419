"""Commands about models: list them."""

from __future__ import annotations

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
