"""Recipes: everything that decides a training run, as typed values read from TOML."""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from dumlp_pin._errors import nearest
from dumlp_pin.data.augment import Augmentation

T = TypeVar("T")


@dataclass(frozen=True)
class ModelRecipe:
    name: str
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataRecipe:
    name: str
    train: tuple[str, ...] = ("train",)  # the splits to train on, joined
    test: str = "test"
    points: int | None = None  # the first so many of each set, or drawn from a column of a scene
    features: int | None = None  # the first so many of each point: 3 leaves out normals
    holdout: float = 0.0  # this part of the training sets is kept aside and scored instead of test


@dataclass(frozen=True)
class OptimizerRecipe:
    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.01
    weight_decay: float = 1e-4
    momentum: float = 0.9  # of sgd; adamw has its usual betas


@dataclass(frozen=True)
class ScheduleRecipe:
    """The learning rate over the epochs: a linear warm-up, then steps or a cosine to zero."""

    name: Literal["step", "cosine"] = "step"
    milestones: tuple[int, ...] = ()  # the epochs at which steps multiply by `factor`
    factor: float = 0.1
    warmup_epochs: int = 0
    warmup_from: float = 0.0  # the part of the full rate that the warm-up starts at


@dataclass(frozen=True)
class Recipe:
    """One run, but for its seed.

    >>> recipe = load_recipe("digits", ["optimizer.lr=0.02"])
    >>> recipe.optimizer.lr
    0.02
    """

    name: str
    model: ModelRecipe
    data: DataRecipe
    epochs: int
    batch_size: int
    optimizer: OptimizerRecipe = field(default_factory=OptimizerRecipe)
    schedule: ScheduleRecipe = field(default_factory=ScheduleRecipe)
    augmentation: Augmentation = field(default_factory=Augmentation)
    label_smoothing: float = 0.0  # this much goes to the other classes together
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    accumulate: int = 1  # batches an optimizer step
    ema: float = 0.0  # decay of the averaged weights that are scored; 0 scores the weights

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("accumulate", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least {least}")
        for name in ("label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 <= {name} < 1")
        data = self.data
        if not 0 <= data.holdout < 1:
            raise ValueError(f"data.holdout is {data.holdout}, expected 0 <= holdout < 1")
        if not data.train:
            raise ValueError("data.train names no split to train on")
        if data.test in data.train and not data.holdout:
            raise ValueError(f"data.test is {data.test!r}, which data.train has: keep them apart")
        for name in ("points", "features"):
            count = getattr(data, name)
            if count is not None and count < 1:
                raise ValueError(f"data.{name} is {count}, expected at least 1")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Recipe:
        """What `to_dict` gave, through JSON too; a key that is newer than it has its default."""
        return _build(cls, table, where=f"recipe {table.get('name')}")


def shipped_recipes() -> list[str]:
    folder = files("dumlp_pin.recipes")
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if ".toml" in f.name)


def load_recipe(name_or_file: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """A shipped recipe by name, or one from a .toml file; `changes` are "key.key=value"."""
    table = _read_table(str(name_or_file), above=())
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"a change is written key=value, got {change!r}")
        table = _over(table, _nested(key.strip().split("."), _toml_value(value.strip())))
    return _build(Recipe, table, where=f"recipe {table['name']}")


def _read_table(name_or_file: str, above: tuple[str, ...]) -> dict[str, Any]:
    """One recipe's table over that of the recipe it extends; `above` are those that extend it."""
    if name_or_file in above:
        raise ValueError(f"recipes extend one another in a circle: {(*above, name_or_file)}")
    path = Path(name_or_file)
    if path.suffix == ".toml":
        if not path.is_file():
            raise FileNotFoundError(f"no recipe at {path}")
        text, name = path.read_text(encoding="utf-8"), path.stem
    else:
        shipped = shipped_recipes()
        if name_or_file not in shipped:
            raise KeyError(f"unknown recipe {name_or_file!r}{nearest(name_or_file, shipped)}")
        resource = files("dumlp_pin.recipes") / f"{name_or_file}.toml"
        text, name = resource.read_text(encoding="utf-8"), name_or_file
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name_or_file} is not TOML: {error}") from error
    base = table.pop("extends", None)
    if base is not None:
        if not isinstance(base, str):
            raise ValueError(f"{name_or_file} extends {base!r}, expected a recipe's name or file")
        if base.endswith(".toml"):
            base = str((path.parent / base).resolve())  # one name a file, or a circle has no end
        table = _over(_read_table(base, (*above, name_or_file)), table)
    return table | {"name": name}


def _over(base: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with changes; another model does not take the overrides of the one before."""
    before, after = (_model_name(table) for table in (base, change))
    if before and after and before != after:
        base = base | {"model": {}}
    return _merge(base, change)


def _model_name(table: Mapping[str, Any]) -> Any:
    model = table.get("model")
    return model.get("name") if isinstance(model, Mapping) else None


def _merge(base: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in change.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value
    return base


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = keys
    return {first: _nested(rest, value) if rest else value}


def _toml_value(text: str) -> Any:
    """What TOML reads after an equals sign; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _build(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass from a TOML table: every key known, every value of the right type."""
    hints = typing.get_type_hints(kind)
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for key in table:
        if key not in names:
            raise KeyError(f"{where} has no key {key!r}{nearest(key, names)}")
    values = {key: _convert(hints[key], value, f"{where}, {key}") for key, value in table.items()}
    try:
        return kind(**values)
    except TypeError as error:  # a required key is missing
        raise ValueError(f"{where}: {error}".replace("__init__() ", "")) from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, Union):
        if value is None:
            return None
        (hint,) = [argument for argument in arguments if argument is not type(None)]
        return _convert(hint, value, where)
    if isinstance(hint, type) and is_dataclass(hint):
        if isinstance(value, Mapping):
            return _build(hint, value, where)
    elif origin is Literal:
        if value in arguments:
            return value
        raise ValueError(f"{where}: {value!r} is unknown{nearest(str(value), arguments)}")
    elif origin is tuple:
        if isinstance(value, list | tuple):
            if arguments[-1] is Ellipsis:
                arguments = (arguments[0],) * len(value)
            if len(arguments) == len(value):
                pairs = zip(arguments, value, strict=True)
                return tuple(_convert(argument, item, where) for argument, item in pairs)
    elif origin is dict:
        if isinstance(value, Mapping):
            return dict(value)
    elif hint is float:
        if type(value) in (int, float):
            return float(value)
    elif (
        isinstance(hint, type)
        and isinstance(value, hint)
        and not (hint is int and isinstance(value, bool))
    ):
        return value
    expected = getattr(hint, "__name__", None) if origin is None else str(hint)
    raise ValueError(f"{where}: expected {expected}, got {value!r}")
