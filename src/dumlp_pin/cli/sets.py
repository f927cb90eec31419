"""Commands for sets of your own: fit, predict, search."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from dumlp_pin._errors import need
from dumlp_pin.cli.app import app


@app.command
def fit(
    table: Positional[Path],
    set_column: str,
    target: str,
    out: Path,
    task: Literal["classification", "regression", "anomaly"] | None = None,
    features: tuple[str, ...] = (),
    seed: int = 0,
    device: str | None = None,
    verbose: bool = False,
) -> None:
    """Fit a model to a table with one row an element.

    Args:
        table: A .csv, .parquet, .feather or .arrow file.
        set_column: The column that says which set a row belongs to.
        target: The column to learn, the same in all rows of a set; for an anomaly, true in one.
        out: The folder for the model.
        task: What to learn; by the target's values, if it is not said.
        features: The columns to learn from; all others, if none is named.
        seed: The seed of weights and batches.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
        verbose: Print a line an epoch.
    """
    need("dumlp_pin.estimators", "tables")
    from dumlp_pin.estimators.command import fit_command

    fit_command(
        table,
        set_column,
        target,
        out,
        task=task,
        features=features,
        seed=seed,
        device=device,
        verbose=verbose,
    )


@app.command
def predict(
    model: Positional[str],
    files: Positional[tuple[Path, ...]],
    out: Path | None = None,
    category: str | None = None,
    up: Literal["x", "y", "z"] = "y",
    device: str | None = None,
) -> None:
    """Answer for the sets of a table, or for shapes in files of points.

    Args:
        model: The folder of a model that was fitted to a table; or, for shapes, the name of one
            that ships trained, such as modelnet40, or the folder of a run.
        files: A table; or files of points: off obj ply stl pcd xyz txt csv npy npz parquet las laz.
        out: A .csv file for the answers, on the screen without it; a .ply file for parts of shapes.
        category: What kind of object it is, where the model labels its parts.
        up: The axis of the files that points up.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
    """
    if (Path(model) / "model.json").is_file():
        need("dumlp_pin.estimators", "tables")
        from dumlp_pin.estimators.command import predict_command as predict_table

        if len(files) != 1:
            raise ValueError(f"a model of tables takes one table, got {len(files)} files")
        predict_table(Path(model), files[0], out, device)
        return
    from dumlp_pin.points.command import predict_command as predict_shapes
    from dumlp_pin.pretrained import find_pretrained

    if not files:
        raise ValueError("no file is given: predict MODEL FILE ...")
    predict_shapes(find_pretrained(model), files, out, category, up, device)


@app.command
def search(
    model: Positional[str],
    folder: Positional[Path],
    query: Path,
    count: int = 10,
    up: Literal["x", "y", "z"] = "y",
    device: str | None = None,
) -> None:
    """Find the shapes of a folder that are most like one.

    Args:
        model: The name of a model that ships trained, such as modelnet40, or the folder of a run.
        folder: Where to look, in the folders below it too.
        query: The file of the shape to look for.
        count: How many to list, the most alike first.
        up: The axis of the files that points up.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
    """
    from dumlp_pin.points.command import search_command
    from dumlp_pin.pretrained import find_pretrained

    search_command(find_pretrained(model), folder, query, count, up, device)
