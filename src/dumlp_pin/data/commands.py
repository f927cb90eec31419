"""What `dumlp-pin data list` and `dumlp-pin data prepare` print."""

import warnings
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

from dumlp_pin._console import table_console
from dumlp_pin.data.library import list_datasets, prepare
from dumlp_pin.data.store import data_root


def list_command() -> None:
    """Show every data set: what it is for, whether it is prepared, where it comes from."""
    table = Table("name", "task", "sets ready", Column("from", overflow="fold"), box=SIMPLE)
    for status in list_datasets():
        dataset = status.dataset
        sets = "\n".join(f"{split} {count:,}" for split, count in status.prepared.items())
        origin = f"{dataset.homepage}\n{dataset.licence}"
        if dataset.embedded:
            origin += "\nships with the package"
        table.add_row(dataset.name, dataset.task, sets or "-", origin)
    console = table_console()
    console.print(table)
    console.print(f"Data root: {data_root()}", soft_wrap=True, markup=False)


def prepare_command(name: str, source: Path | None = None) -> None:
    """Prepare one data set, with progress bars."""
    console = Console()
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        status = prepare(name, source, progress=True)
    for note in notes:
        console.print(f"Note: {note.message}", soft_wrap=True, markup=False)
    for split, count in status.prepared.items():
        console.print(f"{name} {split}: {count:,} sets")
    console.print(f"Prepared in {data_root() / name}", soft_wrap=True, markup=False)
