from __future__ import annotations

import re
from pathlib import Path

import pytest

from dumlp_pin.models import count_parameters, create_model
from dumlp_pin.training.paper import TABLES, Row, Table, get_table
from dumlp_pin.training.recipe import load_recipe, shipped_recipes
from dumlp_pin.training.schedule import rate_factor

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
ROWS = [(table, row) for table in TABLES.values() for row in table.rows]
OURS = [(table, row) for table, row in ROWS if row.recipe]
SIZES = {"M": 1e6, "K": 1e3}


def row(table: str, label: str) -> Row:
    return next(row for row in get_table(table).rows if row.label == label)


def test_tables_are_numbered_as_in_the_paper() -> None:
    numbered = [f"table{number}" for number in range(1, 10)]
    assert list(TABLES) == [*numbered, "figure4"]
    assert [TABLES[name].title.partition(",")[0] for name in numbered] == [
        "MNIST",
        "CelebA set anomaly detection",
        "ModelNet40",
        "ShapeNetPart",
        "ModelNet40",
        "ModelNet40",
        "ModelNet40",
        "ShapeNetPart",
        "ScanNet",
    ]
    with pytest.raises(KeyError, match="the paper has no 'table10'; did you mean 'table1'"):
        get_table("table10")


@pytest.mark.parametrize(("table", "row"), OURS, ids=lambda each: getattr(each, "label", None))
def test_each_row_builds_a_model_with_the_printed_parameters(table: Table, row: Row) -> None:
    recipe = row.load()
    model = create_model(recipe.model.name, **recipe.model.overrides)
    if row.parameters:
        number, unit = row.parameters.split()
        decimals = len(number.partition(".")[2])
        counted = count_parameters(getattr(model, table.part) if table.part else model)
        assert f"{counted / SIZES[unit]:.{decimals}f}" == number


def test_order_and_blocks_say_what_they_build() -> None:
    model = row("table7", "order 10: 2^10").load().model
    aggregation = create_model(model.name, **model.overrides).aggregate
    assert aggregation.activations == ("softmax", *["none"] * 9)
    assert aggregation.out_features == 1024
    single = row("table7", "order 1: 1024").load().model
    assert create_model(single.name, **single.overrides).aggregate.activations == ("none",)
    for table_row in get_table("table8").rows:
        model = table_row.load().model
        stages = create_model(model.name, **model.overrides).stages
        assert f"{len(stages)} broadcasts" == table_row.label


def test_rows_of_one_recipe_share_their_runs() -> None:
    modelnet40 = load_recipe("modelnet40")
    assert row("table3", "DuMLP-Pin").load() == modelnet40
    assert row("table7", "order 2: 32^2").load() == modelnet40
    assert row("figure4", "softmax, none").load() == modelnet40
    assert row("table6", "32 x 32").load() == row("figure4", "softmax, softmax").load()
    assert row("table8", "4 broadcasts").load() == row("table4", "DuMLP-Pin-L").load()


def test_other_rows_do_not_share_a_folder() -> None:
    by_folder = {row.folder: row.load() for _, row in OURS}
    for _, each in OURS:
        assert each.load() == by_folder[each.folder]
        assert re.fullmatch("[a-z0-9_-]+", each.folder)
    assert row("table6", "16 x 64").folder == "modelnet40-16-x-64"
    assert row("table4", "DuMLP-Pin-L").folder == "shapenetpart_l"


def test_the_grid_of_activations_has_every_pair_once() -> None:
    labels = [row.label for row in get_table("figure4").rows]
    assert len({frozenset(label.split(", ")) for label in labels}) == len(labels) == 21


def test_a_quoted_row_has_no_recipe() -> None:
    quoted = row("table3", "PCT")
    assert quoted.value == 93.2
    with pytest.raises(ValueError, match="no recipe for PCT: its numbers are quoted"):
        quoted.load()


# The appendix: epochs, batch size, the epoch of the drop, the rate in the first step.
APPENDIX = {
    "mnist_s": (250, 32, 200, 0.01),
    "mnist_l": (250, 32, 200, 0.01),
    "celeba": (30, 8, 10, 0.01),
    "modelnet40": (250, 32, 200, 0.01),
    "shapenetpart_s": (400, 32, 200, 0.01),
    "shapenetpart_l": (400, 32, 200, 0.01),
    "scannet_s": (500, 32, 220, 0.0001),
    "scannet_l": (500, 32, 220, 0.0001),
}


@pytest.mark.parametrize("name", APPENDIX)
def test_recipes_are_those_of_the_appendix(name: str) -> None:
    recipe = load_recipe(name)
    epochs, batch_size, drop, first = APPENDIX[name]
    rates = [
        recipe.optimizer.lr * rate_factor(recipe.schedule, progress, recipe.epochs)
        for progress in (0, drop - 0.01, drop, epochs - 0.01)
    ]
    assert (recipe.epochs, recipe.batch_size) == (epochs, batch_size)
    assert rates == pytest.approx([first, 0.01, 0.001, 0.001])
    assert recipe.optimizer.momentum == 0.9
    assert recipe.optimizer.weight_decay == 0.0001


def test_every_shipped_recipe_is_on_its_page() -> None:
    line = r"^\| `(\w+)` \| `(\w+)` \| (\w+) \|"
    listed = re.findall(line, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    recipes = [load_recipe(name) for name in shipped_recipes()]
    assert sorted(listed) == [(each.name, each.model.name, each.data.name) for each in recipes]


def test_every_recipe_of_the_paper_is_in_a_table() -> None:
    assert {row.recipe for _, row in OURS} == set(APPENDIX)


def test_the_ends_of_a_part_segmenter_are_always_there() -> None:
    with pytest.raises(ValueError, match="first and the last broadcast are always there, got 1"):
        create_model("dumlp_pin_shapenetpart_l", broadcasts=1)
