from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import dumlp_pin
from dumlp_pin import pretrained
from dumlp_pin.cards import Card, card_text
from dumlp_pin.cli import main
from dumlp_pin.pretrained import (
    find_pretrained,
    list_pretrained,
    load_pretrained,
    shipped_folder,
)
from dumlp_pin.training.evaluate import evaluate
from dumlp_pin.training.trainer import train
from tests.commands import Run
from tests.training.runs import quick

SHIPPED = [
    pytest.param(name, marks=() if found.recipe.data.name == "digits" else pytest.mark.data)
    for name, found in ((name, find_pretrained(name)) for name in list_pretrained())
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(quick("model.overrides.head=[8]"), seed=0, out=folder, device="cpu")
    return folder


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_scores_what_its_card_says(name: str, run: Run) -> None:
    found = find_pretrained(name)
    assert found.card
    lines = run("evaluate", name, "--data", found.recipe.data.name).lines
    assert lines == [
        f"{metric}: {100 * value:.2f} %" for metric, value in found.card["metrics"].items()
    ]
    card = (found.folder / "README.md").read_text(encoding="utf-8")
    for line in lines:
        metric, value, _ = line.split()
        assert f"| {metric.removesuffix(':')} | {value} |" in card


@pytest.mark.parametrize("name", list_pretrained())
def test_what_ships_is_described_and_small(name: str) -> None:
    found = find_pretrained(name)
    card = Card(**found.card or {})
    text = (found.folder / "README.md").read_text(encoding="utf-8")
    assert text == card_text(name, found.result, card)
    assert (found.folder / "model.safetensors").stat().st_size < 4.5 * found.result["parameters"]
    assert load_pretrained(name).training is False


def test_a_tag_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(shipped_folder(), tmp_path / "weights")
    shutil.copytree(shipped_folder() / "dumlp_pin_digits", tmp_path / "weights/dumlp_pin_digits.b")
    monkeypatch.setattr(pretrained, "shipped_folder", lambda: tmp_path / "weights")
    for name in ("digits.b", "dumlp_pin_digits.b"):
        assert find_pretrained(name).folder.name == "dumlp_pin_digits.b"
    assert find_pretrained("digits").folder.name == "dumlp_pin_digits"


def test_the_folder_of_a_run_is_a_trained_model(trained: Path) -> None:
    found = find_pretrained(trained)
    assert (found.task, len(found.class_names)) == ("classification", 10)
    assert found.model().head_widths == (8,)  # the recipe's overrides are its model's
    assert evaluate(found) == {
        key: found.result["last"][key] for key in ("overall_accuracy", "mean_class_accuracy")
    }


def test_a_name_with_and_without_its_prefix_is_the_same_model() -> None:
    x = torch.randn(2, 64, 3)
    assert torch.equal(
        load_pretrained("digits")(x), dumlp_pin.load_pretrained("dumlp_pin_digits")(x)
    )


def test_evaluate_prints_the_metrics(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dumlp-pin", "evaluate", str(trained)])
        main()
    accuracy = json.loads((trained / "result.json").read_text())["last"]["overall_accuracy"]
    assert capsys.readouterr().out.startswith(f"overall_accuracy: {100 * accuracy:.2f} %\n")


def test_errors_are_one_line_and_say_what_to_do(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(
        KeyError, match=r"called 'dumlp_pin_digit'; did you mean 'dumlp_pin_digits'\?"
    ):
        find_pretrained("dumlp_pin_digit")
    with pytest.raises(FileNotFoundError, match=r"holds no result.json, which a training run"):
        find_pretrained(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ValueError, match=r"result.json is not the result of a run: 'recipe'"):
        find_pretrained(tmp_path)
    (tmp_path / "result.json").write_bytes((trained / "result.json").read_bytes())
    with pytest.raises(FileNotFoundError, match=r"^no weights at .*: has the run ended\?"):
        load_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not these")
    with pytest.raises(
        ValueError, match=r"^[^\n]*does not hold weights of dumlp_pin_digits[^\n]*$"
    ):
        load_pretrained(tmp_path)


def test_classes_must_be_the_same(trained: Path) -> None:
    result = json.loads((trained / "result.json").read_text())
    names = [*result["class_names"][:9], "ten"]
    found = find_pretrained(trained)
    object.__setattr__(found, "class_names", tuple(names))
    with pytest.raises(
        ValueError, match=r"^dumlp_pin_digits knows 10 classes, digits has 10 others$"
    ):
        evaluate(found)
