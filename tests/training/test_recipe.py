from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dumlp_pin.models import create_model
from dumlp_pin.training.recipe import Recipe, load_recipe, shipped_recipes

LEAST = """
epochs = 3
batch_size = 8
model.name = "dumlp_pin_digits"
data.name = "digits"
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    create_model(recipe.model.name, **recipe.model.overrides)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_a_file_that_says_the_least(write: Any) -> None:
    recipe = load_recipe(write("mine.toml", LEAST))
    assert (recipe.name, recipe.epochs, recipe.data.train) == ("mine", 3, ("train",))
    assert recipe.augmentation.drop is None


def test_another_model_takes_no_overrides_of_the_one_before(write: Any) -> None:
    staged = 'extends = "modelnet40"\nmodel.name = "dumlp_pin_digits"\nmodel.overrides.head = [8]'
    recipe = load_recipe(write("mine.toml", staged))
    assert recipe.model.overrides == {"head": [8]}
    recipe = load_recipe("modelnet40", ["model.name=meanpool_digits"])
    assert recipe.model.overrides == {}
    recipe = load_recipe("modelnet40", ["model.name=dumlp_pin_modelnet40"])
    assert recipe.model.overrides.keys() == {"branches", "activations"}


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("optimizer.lr=0.02", 0.02),
        ("optimizer.lr=1", 1.0),
        ("epochs = 7", 7),
        ("optimizer.name=adamw", "adamw"),
        ('optimizer.name="adamw"', "adamw"),
        ("data.train=[\"train\", 'val']", ("train", "val")),
        ("data.points=512", 512),
        ("schedule.milestones=[1, 2]", (1, 2)),
        ("schedule.milestones=[]", ()),
        ("augmentation.scale=[1, 2.5]", (1.0, 2.5)),
        ("model.overrides.head=[32, 16]", [32, 16]),
        ("model.overrides.fast=true", True),
        ("model.overrides.kind=a=b", "a=b"),
    ],
)
def test_changes(change: str, value: object) -> None:
    recipe: Any = load_recipe("digits", [change])
    *path, last = change.partition("=")[0].strip().split(".")
    for key in path:
        recipe = getattr(recipe, key)
    actual = recipe[last] if isinstance(recipe, dict) else getattr(recipe, last)
    assert actual == value
    assert type(actual) is type(value)


def test_the_last_change_counts() -> None:
    recipe = load_recipe("digits", ["epochs=1", "optimizer.lr=1", "epochs=2"])
    assert (recipe.epochs, recipe.optimizer.lr) == (2, 1.0)
    assert recipe.schedule == load_recipe("digits").schedule


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epoch=1", "recipe digits has no key 'epoch'; did you mean 'epochs'?"),
        ("optimizer.lrs=1", "recipe digits, optimizer has no key 'lrs'; did you mean 'lr'?"),
        ("data.nmae='x'", "recipe digits, data has no key 'nmae'; did you mean 'name'?"),
        ("model.names='x'", "recipe digits, model has no key 'names'; did you mean 'name'?"),
        ("schedule.steps=[1]", "recipe digits, schedule has no key 'steps'"),
        ("augmentation.scales=1", "augmentation has no key 'scales'; did you mean 'scale'?"),
        ("=1", "recipe digits has no key ''"),
    ],
)
def test_unknown_keys(change: str, message: str) -> None:
    with pytest.raises(KeyError) as caught:
        load_recipe("digits", [change])
    assert message in caught.value.args[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epochs=1.5", "recipe digits, epochs: expected int, got 1.5"),
        ("epochs=true", "recipe digits, epochs: expected int, got True"),
        ("epochs=0", "epochs is 0, expected at least 1"),
        ("accumulate=0", "accumulate is 0, expected at least 1"),
        ("ema=1", "ema is 1.0, expected 0 <= ema < 1"),
        ("label_smoothing=-0.1", "expected 0 <= label_smoothing < 1"),
        ("data.holdout=1", "expected 0 <= holdout < 1"),
        ("data.train=[]", "data.train names no split to train on"),
        ("data.test=train", "data.test is 'train', which data.train has: keep them apart"),
        ("data.points=0", "data.points is 0, expected at least 1"),
        ("data.features=-1", "data.features is -1, expected at least 1"),
        ("data.name=3", "recipe digits, data, name: expected str, got 3"),
        ("data.train='train'", r"expected tuple\[str, ...\], got 'train'"),
        ("optimizer=3", "recipe digits, optimizer: expected OptimizerRecipe, got 3"),
        ("optimizer.lr=fast", "recipe digits, optimizer, lr: expected float, got 'fast'"),
        ("optimizer.lr.x=1", "optimizer, lr: expected float, got {'x': 1}"),
        ("optimizer.name=sdg", "'sdg' is unknown; did you mean 'sgd'?"),
        ("precision=fp8", "'fp8' is unknown"),
        ("schedule.milestones=[1.5]", "schedule, milestones: expected int, got 1.5"),
        ("augmentation.scale=[1]", r"expected tuple\[float, float\], got \[1\]"),
        ("augmentation.order=['turn']", "unknown step 'turn' in order"),
        ("model.overrides=1", r"expected dict\[str, typing.Any\], got 1"),
        ("epochs", "a change is written key=value, got 'epochs'"),
    ],
)
def test_wrong_values(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")) as caught:
        load_recipe("digits", [change])
    assert "\n" not in str(caught.value)


def test_a_required_key_is_missing(write: Any) -> None:
    with pytest.raises(ValueError, match=r"recipe mine: .*missing.*'batch_size'"):
        load_recipe(write("mine.toml", LEAST.replace("batch_size = 8", "")))


def test_extends_a_shipped_recipe(write: Any) -> None:
    recipe = load_recipe(write("mine.toml", 'extends = "digits"\nepochs = 3\noptimizer.lr = 1'))
    digits = load_recipe("digits")
    assert (recipe.name, recipe.epochs, recipe.optimizer.lr) == ("mine", 3, 1.0)
    assert (recipe.schedule, recipe.model) == (digits.schedule, digits.model)


def test_extends_the_file_beside_it(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write("base.toml", LEAST)
    write("middle.toml", 'extends = "base.toml"\nepochs = 4\nema = 0.5')
    path = write("top.toml", 'extends = "middle.toml"\nepochs = 5')
    recipe = load_recipe(path)
    assert (recipe.name, recipe.epochs, recipe.ema, recipe.batch_size) == ("top", 5, 0.5, 8)
    monkeypatch.chdir(path.parent)
    assert load_recipe("top.toml") == recipe


@pytest.mark.parametrize("way", ["", "../{folder}/", "{parent}/"])
def test_recipes_in_a_circle(way: str, write: Any, tmp_path: Path) -> None:
    way = way.format(folder=tmp_path.name, parent=tmp_path)
    write("a.toml", f'extends = "{way}b.toml"')
    b = write("b.toml", f'extends = "{way}a.toml"')
    with pytest.raises(ValueError, match="recipes extend one another in a circle"):
        load_recipe(b)


def test_no_such_recipe(write: Any) -> None:
    with pytest.raises(KeyError, match="unknown recipe 'digist'; did you mean 'digits'"):
        load_recipe("digist")
    with pytest.raises(FileNotFoundError, match=r"no recipe at mine\.toml"):
        load_recipe("mine.toml")
    with pytest.raises(FileNotFoundError, match=r"no recipe at .*base\.toml"):
        load_recipe(write("mine.toml", 'extends = "base.toml"'))


@pytest.mark.parametrize("text", ["epochs =", "extends = 3", "[[model]]\nname = 'x'", "model = []"])
def test_a_file_that_is_no_recipe(text: str, write: Any) -> None:
    with pytest.raises(ValueError, match="mine") as caught:
        load_recipe(write("mine.toml", text))
    assert "\n" not in str(caught.value)
