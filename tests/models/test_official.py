"""The authors' checkpoints: files in their format, and the published ones where a user has them."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin import create_model, data, load_official
from dumlp_pin.training.metrics import ClassificationMetrics, PartMetrics

State = dict[str, Tensor]


def their_name(ours: str, stages: int) -> str:
    """The authors' key for one of ours: the inverse of what the reader does."""
    last = stages - 1

    def stage(match: re.Match[str]) -> str:
        index, block = int(match[1]), match[2]
        if index == 0:
            return "sau_i."
        kind = "sab" if block == "aggregate" else "sau"
        return f"{kind}_e." if index == last else f"{kind}s.{index - 1}."

    key = re.sub(r"^stages\.(\d+)\.(aggregate|broadcast)\.", stage, ours)
    if not stages:
        key = key.replace("aggregate.", "sab.").replace("head.", "mlp.")
    key = key.replace("head.", "li.").replace("branches.", "mlps.")
    key = key.replace(".element.", ".mlp_e.").replace(".set.", ".mlp_s.")
    key = key.replace(".combined.", ".mlp_a.").replace(".norm.", ".comb.db.")
    key = key.replace(".from_element.", ".comb.li1.").replace(".from_set.", ".comb.li2.")
    key = re.sub(r"\.norms\.(\d+)\.", r".layers.\1.db.", key)
    bare_last = r"^mlp\.linears\.1\."
    if re.match(bare_last, key):
        return re.sub(bare_last, "mlp.layers.1.", key)
    return re.sub(r"\.linears\.(\d+)\.", r".layers.\1.li.", key)


# What the authors' networks compute, straight from their state dict.


def layer(state: State, name: str, x: Tensor) -> Tensor:
    x = F.linear(x, state[f"{name}.li.weight"], state[f"{name}.li.bias"])
    return norm(state, f"{name}.db", x)


def norm(state: State, name: str, x: Tensor) -> Tensor:
    mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    x = (x - mean) / torch.sqrt(variance + 1e-5)
    return x * state[f"{name}.weight"] + state[f"{name}.bias"]


def mlp(state: State, name: str, x: Tensor) -> Tensor:
    depth = len({key for key in state if re.match(rf"{re.escape(name)}\.layers\.\d+\.li\.w", key)})
    for index in range(depth):
        x = layer(state, f"{name}.layers.{index}", x)
        x = F.relu(x) if index < depth - 1 else x
    return x


def aggregate(state: State, name: str, x: Tensor) -> Tensor:
    weights = mlp(state, f"{name}.mlps.0", x).softmax(1)
    return (weights.mT @ mlp(state, f"{name}.mlps.1", x)).flatten(1)


def broadcast(state: State, name: str, x: Tensor, y: Tensor) -> Tensor:
    x, y = F.relu(mlp(state, f"{name}.mlp_e", x)), F.relu(mlp(state, f"{name}.mlp_s", y))
    z = F.linear(x, state[f"{name}.comb.li1.weight"], state[f"{name}.comb.li1.bias"])
    z = z + F.linear(y, state[f"{name}.comb.li2.weight"])[:, None]
    return F.relu(mlp(state, f"{name}.mlp_a", F.relu(norm(state, f"{name}.comb.db", z))))


def their_logits(state: State, x: Tensor, category: Tensor | None) -> Tensor:
    if category is None:
        hidden = F.relu(layer(state, "mlp.layers.0", aggregate(state, "sab", x)))
        return F.linear(hidden, state["mlp.layers.1.weight"], state["mlp.layers.1.bias"])
    x = broadcast(state, "sau_i", x, torch.eye(16).to(x)[category])
    for index in range(
        len({key for key in state if re.match(r"sabs\.\d+\.mlps\.0\.layers\.0\.li\.w", key)})
    ):
        x = broadcast(state, f"saus.{index}", x, aggregate(state, f"sabs.{index}", x))
    x = broadcast(state, "sau_e", x, aggregate(state, "sab_e", x))
    return F.linear(x, state["li.weight"], state["li.bias"])


def inputs(name: str) -> tuple[Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    if name == "dumlp_pin_modelnet40":
        return torch.randn(4, 128, 6, generator=generator), None
    return torch.randn(4, 128, 3, generator=generator), torch.tensor([0, 3, 3, 15])


def assert_same_logits(name: str, path: Path, state: State) -> None:
    """In float64, so that only a wrong function can differ."""
    model = load_official(path, name).double()
    state = {key: value.double() for key, value in state.items()}
    x, category = inputs(name)
    given = () if category is None else (category,)
    with torch.no_grad():
        logits = model(x.double(), *given)
    torch.testing.assert_close(logits, their_logits(state, x.double(), category))


NAMES = {"dumlp_pin_modelnet40": 0, "dumlp_pin_shapenetpart_s": 2, "dumlp_pin_shapenetpart_l": 4}


@pytest.mark.parametrize(("name", "stages"), NAMES.items())
def test_a_file_in_their_format_computes_their_function(
    name: str, stages: int, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    model = create_model(name)
    for key, value in model.state_dict().items():
        if value.is_floating_point():  # as training leaves it: no norm at its start
            value.uniform_(0.5, 1.5) if "running_var" in key else value.normal_(std=0.2)
    state = {their_name(key, stages): value for key, value in model.state_dict().items()}
    path = tmp_path / "best_model.pth"
    torch.save({"epoch": 1, "metric": torch.tensor(0.5), "model": state}, path)
    assert_same_logits(name, path, state)


def test_wrong_files_are_one_line_errors(tmp_path: Path) -> None:
    name, path = "dumlp_pin_modelnet40", tmp_path / "model.pth"
    with pytest.raises(FileNotFoundError, match=r"^no checkpoint at [^\n]*model\.pth$"):
        load_official(path, name)
    with pytest.raises(KeyError, match="no checkpoint of 'dumlp_pin_digits' was published"):
        load_official(path, "dumlp_pin_digits")

    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"^[^\n]*is not a checkpoint that can be read[^\n]*$"):
        load_official(path, name)

    torch.save([1, 2], path)
    with pytest.raises(ValueError, match=r"^[^\n]*holds no state dict$"):
        load_official(path, name)

    torch.save({"model": {"sab.wrong": torch.zeros(1)}}, path)
    with pytest.raises(ValueError, match=r"^[^\n]*is not a checkpoint of dumlp_pin_modelnet40"):
        load_official(path, name)


class Malicious:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Malicious()}, "model.pth")
    with pytest.raises(ValueError, match="is not a checkpoint that can be read safely"):
        load_official("model.pth", "dumlp_pin_modelnet40")
    assert not Path("ran").exists()


def published(file: str) -> Path:
    """The authors' own files have no licence to pass them on; users have to fetch them."""
    path = Path(os.environ.get("DUMLP_PIN_OFFICIAL", ".")) / file
    if not path.is_file():
        pytest.skip(f"$DUMLP_PIN_OFFICIAL has no {file}")
    return path


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("dumlp_pin_modelnet40", "modelnet40.pth"),
        ("dumlp_pin_shapenetpart_s", "shapenetpart_s.pth"),
    ],
)
def test_published_logits(name: str, file: str) -> None:
    path = published(file)
    assert_same_logits(name, path, torch.load(path, map_location="cpu", weights_only=True)["model"])


@pytest.mark.data
@torch.inference_mode()
def test_published_part_segmentation_scores_what_it_scored() -> None:
    model = load_official(published("shapenetpart_s.pth"), "dumlp_pin_shapenetpart_s")
    test = data.load("shapenetpart", "test")
    metrics = PartMetrics(test.parts_of_category)
    for index in torch.arange(len(test)).split(64):
        points, parts = test.points[index, :, :3], test.parts[index]
        metrics.update(model(points, test.labels[index]), parts.long(), test.labels[index])
    assert abs(100 * metrics.compute()["instance_miou"] - 83.30) < 0.05


@pytest.mark.data
@torch.inference_mode()
def test_published_classification_scores_what_it_scored() -> None:
    """87.7 %, and not the paper's 92.3: the normals' signs differ from those it was trained on."""
    model = load_official(published("modelnet40.pth"), "dumlp_pin_modelnet40")
    test = data.load("modelnet40", "test")
    metrics = ClassificationMetrics(40)
    for index in torch.arange(len(test)).split(256):
        metrics.update(model(test.points[index]), test.labels[index])
    assert abs(100 * metrics.compute()["overall_accuracy"] - 87.7) < 0.2
