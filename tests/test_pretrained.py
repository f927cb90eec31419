from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dumlp_pin.cli import main
from dumlp_pin.pretrained import find_pretrained, list_pretrained, load_pretrained
from dumlp_pin.training.evaluate import evaluate
from dumlp_pin.training.trainer import train
from tests.training.runs import quick

SHIPPED = [name for name in list_pretrained() if find_pretrained(name).recipe.data.name == "digits"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(quick("model.overrides.head=[8]"), seed=0, out=folder, device="cpu")
    return folder


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_scores_what_its_result_says(name: str) -> None:
    found = find_pretrained(name)
    metrics = evaluate(found)
    for metric, value in metrics.items():
        assert f"{100 * value:.2f}" == f"{100 * found.result['last'][metric]:.2f}"


def test_the_folder_of_a_run_is_a_trained_model(run: Path) -> None:
    found = find_pretrained(run)
    assert (found.task, len(found.class_names)) == ("classification", 10)
    assert found.model().head_widths == (8,)  # the recipe's overrides are its model's
    assert evaluate(found) == {
        key: found.result["last"][key] for key in ("overall_accuracy", "mean_class_accuracy")
    }


def test_a_name_with_and_without_its_prefix_is_the_same_model() -> None:
    x = torch.randn(2, 64, 3)
    assert torch.equal(load_pretrained("digits")(x), load_pretrained("dumlp_pin_digits")(x))


def test_evaluate_prints_the_metrics(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dumlp-pin", "evaluate", str(run)])
        main()
    accuracy = json.loads((run / "result.json").read_text())["last"]["overall_accuracy"]
    assert capsys.readouterr().out.startswith(f"overall_accuracy: {100 * accuracy:.2f} %\n")


def test_errors_are_one_line_and_say_what_to_do(run: Path, tmp_path: Path) -> None:
    with pytest.raises(
        KeyError, match=r"called 'dumlp_pin_digit'; did you mean 'dumlp_pin_digits'\?"
    ):
        find_pretrained("dumlp_pin_digit")
    with pytest.raises(FileNotFoundError, match=r"holds no result.json, which a training run"):
        find_pretrained(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ValueError, match=r"result.json is not the result of a run: 'recipe'"):
        find_pretrained(tmp_path)
    (tmp_path / "result.json").write_bytes((run / "result.json").read_bytes())
    with pytest.raises(FileNotFoundError, match=r"^no weights at .*: has the run ended\?"):
        load_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not these")
    with pytest.raises(
        ValueError, match=r"^[^\n]*does not hold weights of dumlp_pin_digits[^\n]*$"
    ):
        load_pretrained(tmp_path)


def test_classes_must_be_the_same(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    names = [*result["class_names"][:9], "ten"]
    found = find_pretrained(run)
    object.__setattr__(found, "class_names", tuple(names))
    with pytest.raises(
        ValueError, match=r"^dumlp_pin_digits knows 10 classes, digits has 10 others$"
    ):
        evaluate(found)
