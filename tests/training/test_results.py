from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dumlp_pin.training.recipe import Recipe, load_recipe, shipped_recipes
from dumlp_pin.training.results import (
    both_protocols,
    environment,
    find_results,
    mean_and_spread,
    plain,
    write_history,
    write_json,
)


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_comes_back_from_json(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    write_json(tmp_path / "recipe.json", recipe.to_dict())
    assert Recipe.from_dict(json.loads((tmp_path / "recipe.json").read_text())) == recipe


def test_a_recipe_from_before_a_key_was_there_has_its_default() -> None:
    table = plain(load_recipe("mnist_s").to_dict())
    del table["ema"], table["data"]["holdout"]
    assert Recipe.from_dict(table) == load_recipe("mnist_s")
    with pytest.raises(KeyError, match="recipe mnist_s has no key 'epoch'; did you mean 'epochs'"):
        Recipe.from_dict(table | {"epoch": 3})


def test_results_are_found_below_a_folder(tmp_path: Path) -> None:
    for place in ("b/seed0", "a/deep/seed1"):
        write_json(tmp_path / place / "result.json", {"place": place})
    write_json(tmp_path / "a" / "other.json", {})
    found = find_results(tmp_path)
    assert [result["place"] for result in found.values()] == ["a/deep/seed1", "b/seed0"]
    assert find_results(tmp_path / "nowhere") == {}

    (tmp_path / "b" / "seed0" / "result.json").write_text('{"seed": ')
    with pytest.raises(ValueError, match=r"seed0/result\.json is not JSON"):
        find_results(tmp_path)


def test_mean_and_spread_of_a_sample() -> None:
    mean, spread = mean_and_spread([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert spread == pytest.approx((5 / 3) ** 0.5)
    assert mean_and_spread([7.0]) == (7.0, None)


def test_best_is_the_first_of_the_best() -> None:
    history = [{"epoch": epoch, "x": x} for epoch, x in ((1, 0.2), (2, 0.9), (3, 0.9), (4, 0.5))]
    assert both_protocols(history, "x") == {"last": history[3], "best_on_test": history[1]}


def test_history_is_written_twice_the_same(tmp_path: Path) -> None:
    rows = [{"epoch": 1, "loss": 0.1}, {"epoch": 2, "loss": 1e-7}]
    write_history(tmp_path, rows)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert (tmp_path / "metrics.csv").read_text().split() == ["epoch,loss", "1,0.1", "2,1e-07"]


def test_nan_becomes_null() -> None:
    assert plain({"iou": torch.tensor([0.5, torch.nan]), "n": (1, 2)}) == {
        "iou": [0.5, None],
        "n": [1, 2],
    }


def test_environment_is_json() -> None:
    known = environment(torch.device("cpu"))
    assert json.loads(json.dumps(known)) == known
    assert known["torch"] == torch.__version__
    assert known["device"]
