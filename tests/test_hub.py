"""Models to the Hugging Face Hub and back; the Hub here is a folder, or its cache on the disk."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dumlp_pin import create_model, list_models
from dumlp_pin.hub import HubModel
from dumlp_pin.models import Stage
from dumlp_pin.pretrained import load_pretrained

SMALL: dict[str, Any] = {
    "num_classes": 4,
    "branches": [(8, 3), (8, 3)],
    "stages": [Stage([(8, 2), (8, 2)], (6, 8), (4, 8), (8,))],
}


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    model = create_model("dumlp_pin_modelnet40", **SMALL)
    model(torch.randn(4, 9, 6))  # the running estimates of batch norm are no longer the first ones
    return model.eval()


def test_what_is_saved_comes_back(model: Any, tmp_path: Path) -> None:
    HubModel.of(model, ["a", "b", "c", "d"]).save_pretrained(tmp_path)
    found = HubModel.from_pretrained(tmp_path)
    x = torch.randn(3, 7, 6)
    mask = torch.arange(7) < torch.tensor([[7], [2], [1]])
    assert torch.equal(found(x, mask=mask), model(x, mask=mask))
    assert found.class_names == ("a", "b", "c", "d")
    assert found.model.created_as[0] == "dumlp_pin_modelnet40"
    assert not found.model.training
    # And so does what was loaded, saved once more.
    found.save_pretrained(tmp_path / "again")
    again = HubModel.from_pretrained(tmp_path / "again")
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize(
    "name", [name for name in list_models("dumlp_pin_*") if not name.endswith("celeba")]
)
def test_a_model_with_a_fresh_head_comes_back(name: str, tmp_path: Path) -> None:
    model = create_model(name)
    model.reset_head(num_classes=7)
    HubModel.of(model).save_pretrained(tmp_path)
    found = HubModel.from_pretrained(tmp_path).model
    assert found.num_classes == 7
    assert all(map(torch.equal, found.state_dict().values(), model.state_dict().values()))


def test_files_are_those_that_the_hub_expects(model: Any, tmp_path: Path) -> None:
    HubModel.of(model, ["a", "b", "c", "d"]).save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["name"] == "dumlp_pin_modelnet40"
    assert config["overrides"]["stages"][0]["set"] == [4, 8]
    card = (tmp_path / "README.md").read_text()
    assert "library_name: dumlp-pin" in card
    assert "It tells apart: a, b, c, d." in card


def test_a_repository_is_read_from_the_cache(tmp_path: Path) -> None:
    """As it stands on the disk when it was downloaded before."""
    repository = tmp_path / "models--somebody--digits"
    shipped = load_pretrained("digits")
    HubModel.of(shipped).save_pretrained(repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    found = HubModel.from_pretrained("somebody/digits", cache_dir=tmp_path, local_files_only=True)
    x = torch.randn(2, 64, 3)
    assert torch.equal(found(x), shipped(x))


def test_errors_say_in_one_line_what_is_wrong(model: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^the Hub takes models of the registry, .* Linear is no"):
        HubModel.of(nn.Linear(2, 2))
    with pytest.raises(
        ValueError, match=r"holds no config.json that names a model of the registry$"
    ):
        HubModel.from_pretrained(tmp_path)
    HubModel.of(model).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not these")
    with pytest.raises(ValueError, match=r"^[^\n]*does not hold weights of dumlp_pin_modelnet40"):
        HubModel.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"^no weights at"):
        HubModel.from_pretrained(tmp_path)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dumlp_pin.hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = r'^huggingface_hub is not installed: pip install "dumlp-pin\[hub\]"$'
    with pytest.raises(ModuleNotFoundError, match=message):
        importlib.import_module("dumlp_pin.hub")
