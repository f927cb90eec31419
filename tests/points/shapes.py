"""Folders of runs with small models of shapes, and meshes for them to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from dumlp_pin import create_model
from dumlp_pin._files import save_tensors
from dumlp_pin.data import shapenetpart
from dumlp_pin.training.recipe import DataRecipe, ModelRecipe, Recipe
from tests.points.clouds import SIDES

KINDS = ("tower", "plate")


def save_run(folder: Path, data: str, overrides: dict[str, Any], class_names: Any) -> Any:
    """A fresh model in the folder of a run; the model, to be trained and saved again."""
    names = {"modelnet40": "dumlp_pin_modelnet40", "shapenetpart": "dumlp_pin_shapenetpart_s"}
    model = create_model(names[data], **overrides)
    recipe = Recipe(
        name="small",
        model=ModelRecipe(names[data], overrides),
        data=DataRecipe(data, points=256),
        epochs=1,
        batch_size=1,
    )
    result = {"recipe": recipe.to_dict(), "class_names": list(class_names)}
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    save_tensors(folder / "model.safetensors", model.state_dict(), {})
    return model


def namer(folder: Path, features: int) -> None:
    """Trained for a moment to tell towers from plates, of points in the unit sphere."""
    torch.manual_seed(0)
    overrides = {
        "in_features": features,
        "num_classes": 2,
        "branches": [[16, 4], [16, 4]],
        "head": [16],
    }
    model = save_run(folder, "modelnet40", overrides, KINDS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(30):
        label = torch.randint(2, (32,))
        size = torch.where(label[:, None, None] == 0, torch.tensor([0.2, 1, 0.2]), 1.0)
        size[label == 1] = torch.tensor([1, 0.2, 1])
        points = size * (2 * torch.rand(32, 256, 3) - 1)
        points /= points.norm(dim=2).amax(1)[:, None, None]
        normals = F.normalize(torch.randn(32, 256, 3), dim=2)
        loss = F.cross_entropy(model(torch.cat((points, normals), 2)[..., :features]), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_tensors(folder / "model.safetensors", model.state_dict(), {})


def labeller(folder: Path) -> None:
    torch.manual_seed(0)
    save_run(folder, "shapenetpart", {}, shapenetpart.CATEGORIES)


def box(path: Path, x: float, y: float, z: float) -> Path:
    """An .off file of a box of these sizes."""
    corners = [(i * x, j * y, k * z) for i in (0, 1) for j in (0, 1) for k in (0, 1)]
    lines = [" ".join(map(str, corner)) for corner in corners]
    lines += [" ".join(map(str, (4, *side))) for side in SIDES]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("OFF\n8 6 0\n" + "\n".join(lines) + "\n")
    return path


def read_labelled(path: Path) -> tuple[bytes, np.ndarray]:
    """The header of a labelled .ply file, and its records."""
    header, _, body = path.read_bytes().partition(b"end_header\n")
    kinds = [(axis, "<f8") for axis in "xyz"]
    kinds += [(colour, "u1") for colour in ("red", "green", "blue")]
    return header, np.frombuffer(body, [*kinds, ("part", "<i4")])
