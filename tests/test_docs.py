"""Every Python block of the documentation runs, in order, page by page."""

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], page.name, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#]+)", prose):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_model_is_in_the_readme() -> None:
    from dumlp_pin import create_model, list_models
    from dumlp_pin.models import count_parameters

    readme = PAGES[0].read_text(encoding="utf-8")
    for name in list_models("dumlp_pin_*"):
        assert f"| `{name}` | {count_parameters(create_model(name)):,} |" in readme


def test_the_table_of_estimators_is_what_was_measured() -> None:
    page = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")
    for row in json.loads((ROOT / "results" / "benchmarks" / "tables.json").read_text())["rows"]:
        numbers = {
            key: [scale * fold[key] for fold in row["folds"]]
            for key, scale in (("accuracy", 100), ("auc", 100), ("log_loss", 1))
        }
        shown = " | ".join(
            f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
            for values, digits in zip(numbers.values(), (1, 1, 3), strict=True)
        )
        assert f"| {row['problem']} | {row['method']} | {shown} |" in page
