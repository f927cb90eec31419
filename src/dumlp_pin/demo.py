"""The main job on data that ships with the package: `make demo`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from dumlp_pin import data
from dumlp_pin._files import check_folder
from dumlp_pin.figures import draw_curves, draw_tsne
from dumlp_pin.models import create_model
from dumlp_pin.training.recipe import load_recipe
from dumlp_pin.training.trainer import train

RECIPES = {
    "DuMLP-Pin": "digits",
    "mean pooling": "digits_meanpool",
    "Deep Sets": "digits_deepsets",
}


def run_demo(out: Path, seed: int = 0) -> None:
    """Train DuMLP-Pin and two rivals of its size on digits as sets of pixels; print and draw."""
    check_folder(out)
    torch.set_num_threads(1)  # too small for more to pay, and one busy core would stall them all
    console = Console()
    console.print("Handwritten digits as sets of 64 pixels: 1,297 to train on, 500 to test.")
    table = Table("model", "parameters", "test accuracy", "seconds", box=None)
    histories = {}
    for title, name in RECIPES.items():
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)  # a demo starts afresh
        result = train(load_recipe(name), seed, folder)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        histories[title] = [json.loads(line) for line in lines]
        accuracy = f"{100 * result['last']['overall_accuracy']:.1f} %"
        table.add_row(title, f"{result['parameters']:,}", accuracy, f"{result['seconds']:.0f}")
    draw_curves(out / "curves.png", histories, "overall_accuracy")

    model = create_model("dumlp_pin_digits")
    model.load_state_dict(load_file(out / "digits" / "model.safetensors"))
    test = data.load("digits", "test")
    assert isinstance(test, data.Images)
    with torch.inference_mode():
        features = model.eval().forward_features(data.pixel_set(test.images))
    draw_tsne(out / "tsne.png", features, test.labels, test.class_names)

    console.print(table)
    console.print(f"Curves and a t-SNE picture of the set features: {out}/*.png", highlight=False)
