"""The command `dumlp-pin`: parses, calls, prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, UseAppendAction, arg

app = tyro.extras.SubcommandApp()
data_app = tyro.extras.SubcommandApp()
app.command(data_app, name="data", help="The data sets: list them, prepare one.")

# What a person can set right. Anything else is a fault of ours, and shows where it happened.
EXPECTED = (ValueError, KeyError, TypeError, OSError, ModuleNotFoundError, FloatingPointError)


@app.command
def demo(out: Path = Path("runs/demo"), seed: int = 0) -> None:
    """Train on the digits that ship with the package, beside mean pooling and Deep Sets.

    Args:
        out: The folder for weights, figures and tables; what a former demo left is replaced.
        seed: The seed of weights and batches.
    """
    from dumlp_pin.demo import run_demo

    run_demo(out, seed)


@app.command
def train(
    recipe: Positional[str],
    out: Path,
    seed: int = 0,
    set: UseAppendAction[tuple[str, ...]] = (),
    resume: bool = False,
    device: str | None = None,
) -> None:
    """Train a model by a recipe.

    Args:
        recipe: A shipped recipe's name, such as digits, or a .toml file.
        out: The folder for checkpoint, weights, metrics and result.
        seed: The seed of weights, batches and augmentation.
        set: A change to the recipe, such as optimizer.lr=0.02; may be given again.
        resume: Go on from the checkpoint in the folder.
        device: Where to train, such as cpu or cuda:1; a GPU where there is one.
    """
    from dumlp_pin.training import recipe as recipes
    from dumlp_pin.training.trainer import train as run

    try:
        result = run(recipes.load_recipe(recipe, set), seed, out, resume=resume, device=device)
    except KeyboardInterrupt:
        _fail(f"stopped; go on with the same command and --resume: {out} has the last epoch", 130)
    headline = result["headline"]
    for title, protocol in (("last epoch", "last"), ("best epoch on test", "best_on_test")):
        row = result[protocol]
        print(f"{headline}, {title} ({row['epoch']}): {100 * row[headline]:.2f} %")
    print(f"{out / 'result.json'}")


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


def main() -> None:
    try:
        app.cli(prog="dumlp-pin", description="Features of sets, by two MLPs and a dot product.")
    except EXPECTED as error:
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        _fail(str(message), 1)


def _fail(message: str, status: int) -> NoReturn:
    print(f"dumlp-pin: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
