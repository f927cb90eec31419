"""Commands that draw: a trained model at its test sets, and the results of many runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from tyro.conf import Positional

from dumlp_pin.cli.app import app

if TYPE_CHECKING:
    from dumlp_pin.figures.trained import Trained

figure_app = tyro.extras.SubcommandApp()
app.command(figure_app, name="figure", help="Draw a picture of a trained model or of results.")


def _check_picture(out: Path) -> None:
    from dumlp_pin._files import check_file

    if out.suffix.lower() != ".png":
        raise ValueError(f"pictures are written as .png, got {str(out)!r}")
    check_file(out)


def _trained(model: str, device: str | None, out: Path) -> Trained:
    from dumlp_pin.figures.trained import Trained
    from dumlp_pin.pretrained import find_pretrained
    from dumlp_pin.training.distributed import choose_device

    _check_picture(out)
    return Trained(find_pretrained(model), choose_device(device))


@figure_app.command
def tsne(model: Positional[str], out: Path, sets: int = 2000, device: str | None = None) -> None:
    """Features of test sets in the plane, a colour a class.

    Args:
        model: The name of a model that ships trained, such as digits, or the folder of a run.
        out: The .png file.
        sets: How many test sets, drawn by chance.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
    """
    from dumlp_pin.figures.trained import picture_tsne

    picture_tsne(_trained(model, device, out), out, sets)
    print(out)


@figure_app.command
def retrieval(
    model: Positional[str], out: Path, queries: int = 6, device: str | None = None
) -> None:
    """Test sets and the five that are most like each, those of another class in red.

    Args:
        model: The name of a model that ships trained, such as modelnet40, or the folder of a run.
        out: The .png file.
        queries: How many queries, each of another class, drawn by chance.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
    """
    from dumlp_pin.figures.trained import picture_retrieval

    share = picture_retrieval(_trained(model, device, out), out, queries)
    print(f"{out}: of all test sets, {100 * share:.2f} % of the five nearest share the class")


@figure_app.command
def parts(model: Positional[str], out: Path, device: str | None = None) -> None:
    """A shape of each category, its true parts beside the predicted ones.

    Args:
        model: The folder of a run that labels parts.
        out: The .png file.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
    """
    from dumlp_pin.figures.trained import picture_parts

    picture_parts(_trained(model, device, out), out)
    print(out)


@figure_app.command
def anomalies(model: Positional[str], out: Path, sets: int = 4, device: str | None = None) -> None:
    """Sets of faces with the chance of each to be the odd one out. Keep it: faces are private.

    Args:
        model: The folder of a run that finds anomalies.
        out: The .png file.
        sets: How many sets, drawn by chance.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
    """
    from dumlp_pin.figures.trained import picture_anomalies

    picture_anomalies(_trained(model, device, out), out, sets)
    print(f"{out}: it shows faces, under the licence of their data set; do not publish it")


@figure_app.command
def attention(model: Positional[str], out: Path, index: int = 0, device: str | None = None) -> None:
    """Which elements of a set the softmax attends to, a panel for each of its columns.

    Args:
        model: The name of a model that ships trained, such as digits, or the folder of a run.
        out: The .png file.
        index: Which of the test sets.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
    """
    from dumlp_pin.figures.trained import picture_attention

    picture_attention(_trained(model, device, out), out, index)
    print(out)


@figure_app.command
def activations(results: Positional[Path], out: Path) -> None:
    """What the activations of the branches do to the accuracy: the paper's Figure 4.

    Args:
        results: The folder below which results are looked for.
        out: The .png file.
    """
    from dumlp_pin.figures.compared import picture_activations

    _check_picture(out)
    picture_activations(results, out)
    print(out)


@figure_app.command
def broadcasts(results: Positional[Path], out: Path) -> None:
    """The score on ShapeNetPart by the number of broadcast blocks, beside the paper's.

    Args:
        results: The folder below which results are looked for.
        out: The .png file.
    """
    from dumlp_pin.figures.compared import picture_broadcasts

    _check_picture(out)
    picture_broadcasts(results, out)
    print(out)


@figure_app.command
def costs(results: Positional[Path], out: Path) -> None:
    """Accuracy on ModelNet40 against parameters, multiply-adds and training time.

    Args:
        results: The folder below which results are looked for.
        out: The .png file.
    """
    from dumlp_pin.figures.compared import picture_costs

    _check_picture(out)
    picture_costs(results, out)
    print(out)
