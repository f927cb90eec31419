"""A fitted estimator as files: JSON for what it is, safetensors for its weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dumlp_pin._files import save_tensors, written_whole

FORMAT = 1  # raised when a reader of the old would misread the new


def write_folder(folder: Path, content: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """The JSON names its weights and is written last, so the folder never holds a mixture."""
    described = json.dumps(content, default=_number, sort_keys=True).encode()
    digest = hashlib.sha256(described)
    for name, value in sorted(weights.items()):
        digest.update(name.encode() + value.numpy().tobytes())
    name = f"weights-{digest.hexdigest()[:12]}.safetensors"
    save_tensors(folder / name, weights, {"kind": content["kind"]})
    full = {"format": FORMAT, "weights": name, **content}
    with written_whole(folder / "model.json") as draft:
        draft.write_text(json.dumps(full, indent=1, default=_number) + "\n", encoding="utf-8")
    for old in folder.glob("weights-*.safetensors"):
        if old.name != name:
            old.unlink()


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    path = folder / "model.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no estimator: there is no {path}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"it has format {content['format']}, this version reads {FORMAT}")
        return content, load_file(folder / content["weights"])
    except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        raise ValueError(f"{folder} holds no estimator that can be read: {error}") from error


def plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON can hold: a dictionary of class weights as pairs, a random generator as None."""
    plain = dict(parameters)
    if not isinstance(plain["random_state"], int | np.integer):
        plain["random_state"] = None
    if isinstance(plain.get("class_weight"), Mapping):
        plain["class_weight"] = list(map(list, plain["class_weight"].items()))
    return plain


def parameters_from(plain: Mapping[str, Any]) -> dict[str, Any]:
    parameters = dict(plain)
    if isinstance(parameters.get("class_weight"), list):
        parameters["class_weight"] = dict(parameters["class_weight"])
    return parameters


def _number(value: Any) -> Any:
    """NumPy's numbers, which a search over parameters leaves behind."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be saved as JSON")
