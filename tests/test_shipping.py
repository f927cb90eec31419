"""A run becomes a model that ships: measured, halved where that costs nothing, described."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dumlp_pin import shipping
from dumlp_pin.pretrained import find_pretrained
from dumlp_pin.shipping import ship
from dumlp_pin.training.evaluate import evaluate
from dumlp_pin.training.results import write_json
from dumlp_pin.training.trainer import train

from .commands import Run
from .training.runs import quick


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds, a folder each."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        train(quick(), seed, folder / f"seed{seed}", device="cpu")
    return folder


def last(folder: Path) -> float:
    return json.loads((folder / "result.json").read_text())["last"]["overall_accuracy"]


def test_the_median_of_the_seeds_ships_in_half_precision(runs: Path, tmp_path: Path) -> None:
    folder = ship(runs, "digits.trial", ["The digits were few."], tmp_path)
    assert folder == tmp_path / "dumlp_pin_digits.trial"
    found = find_pretrained(folder)
    median = sorted((runs / f"seed{seed}" for seed in range(3)), key=last)[1]
    assert found.result["last"]["overall_accuracy"] == last(median)
    assert found.card
    assert found.card["seeds"]["last"] == [last(runs / f"seed{seed}") for seed in range(3)]
    assert found.card["metrics"] == evaluate(found)  # what was written is what was measured
    for key, value in load_file(folder / "model.safetensors").items():
        original = load_file(median / "model.safetensors")[key]
        assert value.dtype == (torch.float16 if original.ndim > 1 else original.dtype)
        torch.testing.assert_close(value.to(original.dtype), original, rtol=1e-3, atol=1e-6)

    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# dumlp_pin_digits.trial\n")
    assert f"| seed | {found.result['seed']}, the median of 3 by its last epoch |" in card
    assert "| licence of the data | CC BY 4.0 |" in card
    assert "\n- The digits were few.\n" in card
    assert f"| overall_accuracy | {100 * found.card['metrics']['overall_accuracy']:.2f} |" in card


def test_weights_stay_whole_where_halves_cost_more_than_noise(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "NOISE", -1.0)
    folder = ship(runs / "seed0", "dumlp_pin_digits", out=tmp_path)
    tensors = load_file(folder / "model.safetensors")
    for key, value in load_file(runs / "seed0" / "model.safetensors").items():
        assert torch.equal(tensors[key], value)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "matrices kept in float32" in card
    assert "| seed | 0, the only one |" in card


def test_the_command_prints_the_card(runs: Path, tmp_path: Path, run: Run) -> None:
    out = run("ship", runs / "seed1", "digits", "--out", tmp_path, "--note", "One.").output
    assert (tmp_path / "dumlp_pin_digits/README.md").read_text(encoding="utf-8") in out


def test_refuses_what_would_make_a_false_card(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^a name is lower-case words and, after a dot, a tag"):
        ship(runs, "Digits")
    with pytest.raises(FileNotFoundError, match=r"holds no result.json, which a training run"):
        ship(tmp_path, "digits")

    mixed = tmp_path / "mixed"
    shutil.copytree(runs, mixed)
    train(quick("optimizer.lr=0.02"), 3, mixed / "seed3", device="cpu")
    with pytest.raises(ValueError, match=r"seed0 and .*seed3 are runs of different recipes$"):
        ship(mixed, "digits", out=tmp_path)
    shutil.rmtree(mixed / "seed3")
    shutil.copytree(runs / "seed2", mixed / "again")
    with pytest.raises(ValueError, match=r"mixed holds a seed twice$"):
        ship(mixed, "digits", out=tmp_path)

    result = json.loads((mixed / "seed0" / "result.json").read_text())
    result["last"]["overall_accuracy"] -= 0.02
    write_json(mixed / "seed0" / "result.json", result)
    with pytest.raises(ValueError, match=r"are these the sets that it was scored on\?$"):
        ship(mixed / "seed0", "digits", out=tmp_path)
    assert not (tmp_path / "dumlp_pin_digits").exists()
