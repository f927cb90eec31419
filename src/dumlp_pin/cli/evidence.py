"""Commands that show how good models are: robustness, and report, the page of all results."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from tyro.conf import Positional

from dumlp_pin._console import table_console
from dumlp_pin.cli.app import app


@app.command
def report(results: Positional[Path], out: Path) -> None:
    """Write every table of the paper beside the results of runs here, as a page in Markdown.

    Args:
        results: The folder below which results are looked for; remarks.toml in it has what a
            person found out about a row.
        out: The page, such as docs/reproduction.md.
    """
    from dumlp_pin._files import check_file, written_whole
    from dumlp_pin.training.report import write_report

    if not results.is_dir():
        raise NotADirectoryError(f"there is no folder {results} with results")
    check_file(out)
    page = write_report(results)
    with written_whole(out) as draft:
        draft.write_text(page, encoding="utf-8")
    print(out)


@app.command
def robustness(
    models: Positional[tuple[str, ...]], out: Path | None = None, device: str | None = None
) -> None:
    """Score trained models on their test sets with fewer, moved, foreign or repeated elements.

    Args:
        models: Names of models that ship trained, such as digits, or folders of runs; of one data
            set.
        out: A .json file for the table.
        device: Where to compute, such as cpu or cuda:1; a GPU where there is one.
    """
    from dumlp_pin._files import check_file
    from dumlp_pin.training.distributed import choose_device
    from dumlp_pin.training.results import write_json
    from dumlp_pin.training.robustness import robustness as measure

    if not models:
        raise ValueError("no model is given: robustness MODEL ...")
    if out is not None:
        check_file(out)
    measured = measure(models, choose_device(device))
    table = Table("", "", *measured["models"], box=None)
    before = None
    for row in measured["rows"]:
        scores = [f"{100 * score:.2f}" for score in row["scores"].values()]
        table.add_row(row["kind"] if row["kind"] != before else "", row["level"], *scores)
        before = row["kind"]
    print(f"{measured['data']}, {measured['metric']}, %")
    table_console().print(table)
    if out is not None:
        write_json(out, measured)
        print(out)
