"""What a run leaves behind: one JSON that says what was done, on what, and what came out."""

from __future__ import annotations

import csv
import json
import math
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dumlp_pin._files import written_whole

Row = dict[str, float]


def plain(value: Any) -> Any:
    """What JSON can hold and reads back the same: lists for tuples, null for NaN.

    >>> plain({"accuracy": torch.tensor([0.5, torch.nan]), "order": ("shift", "scale")})
    {'accuracy': [0.5, None], 'order': ['shift', 'scale']}
    """
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def write_json(path: Path, content: Any) -> None:
    with written_whole(path) as draft:
        draft.write_text(json_text(content) + "\n", encoding="utf-8")


def json_text(value: Any, indent: str = "") -> str:
    """JSON with a line an entry, and each list of numbers or words on one line.

    >>> print(json_text({"seed": 0, "confusion": [[3, 1], [0, 4]]}))
    {
      "seed": 0,
      "confusion": [
        [3, 1],
        [0, 4]
      ]
    }
    """
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        entries = [f"{json.dumps(key)}: {json_text(each, inner)}" for key, each in value.items()]
        left, right = "{}"
    elif isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
        entries = [json_text(each, inner) for each in value]
        left, right = "[]"
    else:
        return json.dumps(value)
    return f"{left}\n{inner}" + f",\n{inner}".join(entries) + f"\n{indent}{right}"


def write_history(folder: Path, history: Sequence[Row]) -> None:
    """metrics.jsonl and metrics.csv, one line an epoch."""
    with written_whole(folder / "metrics.jsonl") as draft:
        draft.write_text(
            "".join(json.dumps(plain(row)) + "\n" for row in history), encoding="utf-8"
        )
    with written_whole(folder / "metrics.csv") as draft, draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(history[0]))
        writer.writeheader()
        writer.writerows(history)


def both_protocols(history: Sequence[Row], headline: str) -> dict[str, Any]:
    """The last epoch, which is honest, and beside it the best by test score, as papers report.

    >>> both_protocols([{"epoch": 1, "accuracy": 0.9}, {"epoch": 2, "accuracy": 0.8}], "accuracy")
    {'last': {'epoch': 2, 'accuracy': 0.8}, 'best_on_test': {'epoch': 1, 'accuracy': 0.9}}
    """
    return {"last": history[-1], "best_on_test": max(history, key=lambda row: row[headline])}


def find_results(folder: Path) -> dict[Path, dict[str, Any]]:
    """Every result.json below a folder, by its path."""
    results = {}
    for path in sorted(folder.rglob("result.json")):
        try:
            results[path] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
    return results


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the standard deviation of a sample; of one value there is no spread.

    >>> mean_and_spread([91.0, 93.0])
    (92.0, 1.414...)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def environment(device: torch.device) -> dict[str, Any]:
    """Hardware, versions and the commit, as far as this machine tells."""
    import dumlp_pin

    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else _processor(),
        "threads": torch.get_num_threads(),
        "dumlp_pin": dumlp_pin.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the source tree this package runs from, if it is one."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
