"""Trained models: those that ship with the package by name, your own by the folder of their run.

Both are folders with what a training run leaves: `model.safetensors`, and `result.json`, which says
how the weights came about and how well they do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from dumlp_pin._errors import nearest
from dumlp_pin.data import registry
from dumlp_pin.data.records import Task
from dumlp_pin.models.registry import create_model
from dumlp_pin.training.recipe import Recipe

PREFIX = "dumlp_pin_"


@dataclass(frozen=True)
class Pretrained:
    """A trained model and what is known about it.

    >>> found = find_pretrained("digits")
    >>> found.task, found.class_names[:3], found.recipe.model.name
    ('classification', ('0', '1', '2'), 'dumlp_pin_digits')
    """

    folder: Path
    recipe: Recipe
    class_names: tuple[str, ...]
    result: dict[str, Any]  # all that the run wrote, and for weights that ship their card

    @property
    def card(self) -> dict[str, Any] | None:
        """What `dumlp_pin.cards.Card` holds, of weights that ship."""
        return self.result.get("card")

    @property
    def task(self) -> Task:
        return registry.get(self.recipe.data.name).task

    def model(self) -> Any:
        """The network with its weights, ready to evaluate."""
        recipe = self.recipe.model
        return load_weights(
            create_model(recipe.name, **recipe.overrides), self.folder / "model.safetensors"
        )


def load_weights(model: Any, path: Path) -> Any:
    """The model of the registry with the weights of a file, ready to evaluate."""
    try:
        # Weights may be kept in half precision; they are copied into those of the model.
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise FileNotFoundError(f"no weights at {path}: has the run ended?") from None
    except (SafetensorError, RuntimeError) as error:
        name, _ = model.created_as
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} does not hold weights of {name}: {reason}") from error
    return model.eval()


def find_pretrained(name: str | Path) -> Pretrained:
    """By the name of a model, with or without `dumlp_pin_`, or by the folder of a run.

    A name may have a tag after a dot, for weights that came about in another way.
    """
    folder = _folder(name)
    path = folder / "result.json"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        recipe = Recipe.from_dict(result["recipe"])
        return Pretrained(folder, recipe, tuple(result["class_names"]), result)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the result of a run: {error}") from error


def load_pretrained(name: str | Path) -> Any:
    """The trained model, ready to evaluate.

    >>> model = load_pretrained("dumlp_pin_digits")
    >>> model.training, model.num_classes
    (False, 10)
    """
    return find_pretrained(name).model()


def list_pretrained() -> list[str]:
    """The names of the trained models that ship with the package."""
    return sorted(
        folder.name for folder in shipped_folder().iterdir() if (folder / "result.json").is_file()
    )


def _folder(name: str | Path) -> Path:
    folder = Path(name)
    if (folder / "result.json").is_file():
        return folder
    for shipped in (str(name), f"{PREFIX}{name}"):
        if shipped in list_pretrained():
            return shipped_folder() / shipped
    if folder.is_dir():
        raise FileNotFoundError(f"{folder} holds no result.json, which a training run leaves")
    near = nearest(str(name), list_pretrained())
    raise KeyError(f"no trained model and no folder of a run is called {str(name)!r}{near}")


def shipped_folder() -> Path:
    """Where the trained models are that ship with the package, a folder each."""
    # The package is always unpacked: weights are mapped into memory.
    return Path(str(files("dumlp_pin"))) / "weights"
