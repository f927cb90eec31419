"""Commands about the data sets of the paper: list them, prepare one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, arg

from dumlp_pin.cli.app import app

data_app = tyro.extras.SubcommandApp()
app.command(data_app, name="data", help="The data sets: list them, prepare one.")


@data_app.command(name="list")
def list_data() -> None:
    """Show every data set: what it is for, whether it is prepared, where it comes from."""
    from dumlp_pin.data.commands import list_command

    list_command()


@data_app.command
def prepare(name: Positional[str], source: Annotated[Path | None, arg(name="from")] = None) -> None:
    """Read a data set from its published files and keep a copy that loads in a moment.

    Args:
        name: The data set, such as modelnet40.
        source: The folder or archive with the published files; without it they are downloaded.
    """
    from dumlp_pin.data.commands import prepare_command

    prepare_command(name, source)
