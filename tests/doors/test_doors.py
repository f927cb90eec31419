"""Each way into the package as a person takes it: installed from the wheel, with just its extra."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from dumlp_pin.points.files import READERS
from tests.doors.conftest import Door, Open
from tests.points.clouds import ALL, written
from tests.points.shapes import box, labeller, namer

pytestmark = pytest.mark.doors


def missing(door: Door, *names: str) -> None:
    """The environment is as clean as it says."""
    for name in names:
        assert "No module named" in door.python(f"import {name}", status=1)


def test_python(open_door: Open) -> None:
    door = open_door("")
    missing(door, "sklearn", "pyarrow", "onnx", "trimesh", "torch_geometric", "huggingface_hub")
    said = door.python("""
import torch
from dumlp_pin import SetBatch, create_model
from dumlp_pin.pretrained import load_pretrained

model = create_model("dumlp_pin_modelnet40", in_features=3, num_classes=5).eval()
sets = SetBatch.from_list([torch.randn(100, 3), torch.randn(2000, 3), torch.randn(1, 3)])
print(tuple(model(sets).shape), load_pretrained("digits").num_classes)
""")
    assert said == "(3, 5) 10\n"
    assert "dumlp_pin_modelnet40" in door.command("models")
    accuracy = door.command("evaluate", "digits").splitlines()[0]
    assert accuracy.startswith("overall_accuracy: 9")
    assert "from the model" in door.command("export", "digits", "digits.pt2")
    said = door.python("""
import torch

program = torch.export.load("digits.pt2").module()
print(tuple(program(x=torch.rand(5, 64, 3), mask=torch.ones(5, 64, dtype=torch.bool)).shape))
""")
    assert said == "(5, 10)\n"

    # What an extra is needed for says which one.
    said = door.python("from dumlp_pin import SetClassifier", status=1)
    assert said.endswith('sklearn is not installed: pip install "dumlp-pin[sklearn]"\n')
    said = door.command("export", "digits", "digits.onnx", status=1)
    assert said == 'dumlp-pin: onnxruntime is not installed: pip install "dumlp-pin[onnx]"\n'
    (door.folder / "baskets.csv").write_text("basket,label\n1,2\n")
    fit = ("fit", "baskets.csv", "--set-column", "basket", "--target", "label", "--out", "model")
    said = door.command(*fit, status=1)
    assert said == 'dumlp-pin: sklearn is not installed: pip install "dumlp-pin[tables]"\n'


def test_scikit_learn(open_door: Open) -> None:
    door = open_door("[sklearn]")
    missing(door, "pandas", "pyarrow", "onnx")
    said = door.python("""
import pickle
import numpy as np
from sklearn.model_selection import cross_val_score
from dumlp_pin import SetClassifier

random = np.random.default_rng(0)
y = np.arange(80) % 2
X = [random.normal(scale=1 + 2 * label, size=(random.integers(20, 40), 2)) for label in y]
model = SetClassifier(max_epochs=30, random_state=0)
print(cross_val_score(model, X, y, cv=2).mean() > 0.8)
again = pickle.loads(pickle.dumps(model.fit(X, y)))
model.save("model")
print((again.predict(X) == SetClassifier.load("model").predict(X)).all())
""")
    assert said == "True\nTrue\n"


def test_tables_at_the_command_line(open_door: Open) -> None:
    door = open_door("[tables]")
    missing(door, "pandas", "polars", "onnx", "trimesh")
    random = np.random.default_rng(0)
    lines = ["basket,price,kind,label"]
    for basket in range(60):
        for _ in range(random.integers(3, 9)):
            price = random.normal() + 3 * (basket % 2)
            lines.append(f"{basket},{price:.3f},{random.choice(['tea', 'oil', ''])},{basket % 2}")
    (door.folder / "baskets.csv").write_text("\n".join(lines) + "\n")
    door.python("""
import pyarrow.csv, pyarrow.parquet

pyarrow.parquet.write_table(pyarrow.csv.read_csv("baskets.csv"), "baskets.parquet")
""")
    fit = ("fit", "baskets.parquet", "--set-column", "basket", "--target", "label")
    said = door.command(*fit, "--out", "model")
    assert "60 sets of 3 to 8 elements: price, kind" in said
    door.command("predict", "model", "baskets.csv", "--out", "answers.csv")
    rows = list(csv.DictReader((door.folder / "answers.csv").read_text().splitlines()))
    assert np.mean([row["label"] == str(int(row["basket"]) % 2) for row in rows]) > 0.8


def test_points_at_the_command_line(open_door: Open) -> None:
    door = open_door("[points]")
    missing(door, "sklearn", "onnx")
    namer(door.folder / "names", features=3)
    labeller(door.folder / "parts")
    shapes = door.folder / "shapes"
    tower = box(shapes / "tower.off", 1, 5, 1)
    box(shapes / "plate.off", 5, 1, 5)
    for place, kind in enumerate(ALL):
        (shapes / str(place)).mkdir()
        written(kind, shapes / str(place))
    files = sorted(path for path in shapes.rglob("*") if path.is_file())
    assert {path.suffix for path in files} == set(READERS)

    said = door.command("predict", "names", *files)
    assert len(said.splitlines()) == len(files)
    assert f"{tower}: tower 9" in said
    said = door.command("search", "names", "shapes", "--query", tower, "--count", len(files))
    assert said.startswith("1.0000 shapes/tower.off\n")
    assert len(said.splitlines()) == len(files)
    out = ("--category", "airplane", "--out", "labelled.ply")
    assert "256 points of Airplane" in door.command("predict", "parts", tower, *out)
    said = door.python("""
import trimesh

cloud = trimesh.load("labelled.ply")
print(len(cloud.vertices), cloud.colors.shape)
""")
    assert said == "256 (256, 4)\n"


def test_onnx(open_door: Open) -> None:
    door = open_door("[onnx]")
    missing(door, "sklearn", "pyarrow", "trimesh")
    assert "ONNX Runtime is " in door.command("export", "digits", "digits.onnx")
    assert "in int8" in door.command("export", "digits", "small.onnx", "--int8")
    said = door.python("""
import numpy as np
import onnxruntime
import torch
from dumlp_pin import SetBatch
from dumlp_pin.pretrained import load_pretrained

sets = SetBatch.from_list([torch.rand(64, 3), torch.rand(9, 3)])
x, mask = sets.to_padded()
logits = load_pretrained("digits")(sets).detach()
for name, most in (("digits.onnx", 1e-3), ("small.onnx", 1)):
    session = onnxruntime.InferenceSession(name)
    (answer,) = session.run(None, {"x": x.numpy(), "mask": mask.numpy()})
    print(np.abs(answer - logits.numpy()).max() < most * logits.abs().max().item())
""")
    assert said == "True\nTrue\n"


def test_pytorch_geometric(open_door: Open) -> None:
    door = open_door("[pyg]")
    missing(door, "sklearn", "onnx")
    said = door.python("""
import torch
from dumlp_pin.pyg import DuMLPPinAggregation
from torch_geometric.data import Batch, Data
from torch_geometric.nn import SAGEConv

layer = SAGEConv(16, 32, aggr=DuMLPPinAggregation(16, [(32, 4), (32, 4)]))
readout = DuMLPPinAggregation(32, [(32, 8), (32, 8)])
edges = torch.tensor([[2, 0, 1, 1], [1, 1, 0, 2]])
graphs = Batch.from_data_list([Data(torch.rand(3, 16), edges) for _ in range(4)])
x = layer(graphs.x, graphs.edge_index).relu()
print(tuple(readout(x, graphs.batch).shape))
""")
    assert said == "(4, 64)\n"


def test_the_hub(open_door: Open) -> None:
    door = open_door("[hub]")
    missing(door, "sklearn", "onnx")
    said = door.python("""
import torch
from dumlp_pin.hub import HubModel
from dumlp_pin.pretrained import find_pretrained

found = find_pretrained("digits")
model = found.model()
HubModel.of(model, found.class_names).save_pretrained("digits")
again = HubModel.from_pretrained("digits")
x = torch.rand(2, 64, 3)
print(torch.equal(again(x), model(x)), again.class_names == found.class_names)
""")
    assert said == "True True\n"
