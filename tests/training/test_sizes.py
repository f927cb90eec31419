"""How large the models are, as `dumlp-pin models` prints it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dumlp_pin import create_model, list_models
from dumlp_pin.models import count_parameters
from dumlp_pin.models.complexity import count_work
from dumlp_pin.training import sizes
from dumlp_pin.training.recipe import load_recipe
from dumlp_pin.training.sizes import Size, inputs_for
from tests.commands import Run

size_of = cache(sizes.size_of)


def test_a_peer_beside_its_printed_numbers() -> None:
    size = size_of("pointnet2_modelnet40")
    assert size.work is not None
    assert size.work.distances == 2 * (512 * 1024 + 128 * 512)  # sampled, and looked around
    assert (size.printed_parameters, size.printed_macs) == ("1.74 M", 3932)
    assert size.parameters == count_parameters(create_model("pointnet2_modelnet40"))


def test_counted_without_weights_as_with_them() -> None:
    for name in ("pointnet2_mnist", "dumlp_pin_mnist_l"):
        recipe = load_recipe("mnist_pointnet2")
        model = create_model(name)
        assert size_of(name).work == count_work(model, **inputs_for(recipe, model))


def test_of_a_detector_the_extractor_is_printed() -> None:
    size = size_of("maxpool_celeba")
    assert (size.part, size.of_part, size.printed_parameters) == ("extractor", 65_792, "65.8 K")


@pytest.mark.parametrize("name", list_models())
def test_every_model_has_a_recipe_that_says_how_large_its_sets_are(name: str) -> None:
    size = size_of(name)
    assert isinstance(size, Size)
    assert size.work is not None
    assert size.work.macs > size.parameters / 100


def test_the_page_has_what_is_counted() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", page, re.MULTILINE))
    assert listed.keys() == {name for name in list_models() if _is_listed(name)}
    for name, cells in listed.items():
        size = size_of(name)
        assert size.work is not None
        macs, distances = (f"{count / 1e6:,.1f} M" for count in size.work)
        expected = [
            f"{size.of_part or size.parameters:,}",
            size.printed_parameters or "",
            macs,
            f"{size.printed_macs:,.0f} M" if size.printed_macs else "",
            distances if size.work.distances else "",
        ]
        assert [cell.strip() for cell in cells.split("|")] == expected, name


def _is_listed(name: str) -> bool:
    return name.endswith("_plus") or size_of(name).printed_parameters is not None


def test_inputs_are_as_large_as_the_recipe_says() -> None:
    def shapes(recipe: str, name: str) -> list[tuple[int, ...]]:
        with torch.device("meta"):
            inputs = inputs_for(load_recipe(recipe), create_model(name), sets=3)
        assert all(isinstance(value, Tensor) and value.is_meta for value in inputs.values())
        return [tuple(value.shape) for value in inputs.values()]

    assert shapes("mnist_s", "dumlp_pin_mnist_s") == [(3, 784, 3)]
    assert shapes("modelnet40_pct", "pct_modelnet40") == [(3, 1024, 3)]
    assert shapes("shapenetpart_s", "pointnet_shapenetpart") == [(3, 2048, 3), (3,)]
    assert shapes("celeba", "maxpool_celeba") == [(3, 10, 3, 49, 40)]
    recipe = load_recipe("modelnet40")
    endless = replace(recipe, data=replace(recipe.data, points=None))
    with pytest.raises(ValueError, match="recipe modelnet40 does not say how many points"):
        inputs_for(endless, create_model("pct_modelnet40"))


def test_the_command(run: Run) -> None:
    out = run("models", "*_modelnet40").output
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "dumlp_pin_modelnet40 classification 291,112 0.29 M 18.5 19" in lines
    assert "pct_modelnet40 classification 2,879,080 2.88 M 2,219.6 2,286 1.3" in lines
    assert "mnist" not in out
    assert "search for neighbours take" in re.sub(r"\s+", " ", out)
