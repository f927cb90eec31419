from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dumlp_pin import create_model, data
from dumlp_pin.data.columns import IGNORED
from dumlp_pin.training.paper import TABLES
from dumlp_pin.training.recipe import Recipe, load_recipe
from dumlp_pin.training.tasks import PartSegmentation, SceneSegmentation, Task, load_task
from dumlp_pin.training.trainer import train

from ..contract import NARROW
from ..data.published import LAYOUTS

CPU = torch.device("cpu")
# The recipes of the paper on a handful of sets; few points, since cores are few too.
SMALL = {
    "mnist_s": ["batch_size=4"],
    "mnist_l": ["batch_size=4"],
    "celeba": ["batch_size=4"],
    "modelnet40": ["batch_size=2", "data.points=128", "model.overrides.num_classes=2"],
    "shapenetpart_s": ["batch_size=2", "data.points=128"],
    "shapenetpart_l": ["batch_size=2", "data.points=128"],
    "scannet_s": ["batch_size=2", "data.points=128", "schedule.warmup_epochs=0"],
    "scannet_l": ["batch_size=2", "data.points=128", "schedule.warmup_epochs=0"],
}
PEERS = sorted({row.recipe for table in TABLES.values() for row in table.rows} - {*SMALL})
FEWER = {
    "mnist": ["batch_size=12"],
    "celeba": ["batch_size=4", 'data.train=["val"]'],
    "modelnet40": ["data.points=64", "model.overrides.num_classes=2"],
    "shapenetpart": ["data.points=64"],
    "scannet": ["data.points=64"],
}


@pytest.fixture(scope="module", autouse=True)
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every data set of the paper, a few sets each, by way of its published files."""
    folder = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUMLP_PIN_DATA", str(tmp_path_factory.mktemp("root")))
        for layout in ("mnist", "celeba", "modelnet40-hdf5", "shapenetpart-hdf5", "scannet"):
            name, write, _ = LAYOUTS[layout]
            (folder / layout).mkdir()
            write(folder / layout)
            with pytest.warns(UserWarning, match="not all of the published"):
                data.prepare(name, folder / layout)
        yield


def recipe(name: str, *changes: str) -> Recipe:
    return load_recipe(name, [*SMALL[name], *changes])


def task(name: str, *changes: str) -> Task:
    torch.manual_seed(0)
    return load_task(recipe(name, *changes), CPU)


def every(task: Task, part: str) -> Tensor:
    assert part in ("train", "test")
    return torch.arange(task.size(part))


@pytest.mark.parametrize("name", SMALL)
def test_each_recipe_trains(name: str, tmp_path: Path) -> None:
    result = train(recipe(name, "epochs=3"), 0, tmp_path, device="cpu")
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) == 3
    assert min(losses[1:]) < losses[0]
    assert 0 <= result["last"][result["headline"]] <= 1


@pytest.mark.parametrize("name", PEERS)
def test_each_recipe_of_a_peer_trains(name: str, tmp_path: Path) -> None:
    """Its network is narrow here, but for those of CelebA, which share theirs with ours."""
    small = load_recipe(name, ["epochs=1", *FEWER[name.partition("_")[0]]])
    model = small.model
    overrides = model.overrides | NARROW.get(model.name, {})
    small = replace(small, model=replace(model, overrides=overrides))
    result = train(small, 0, tmp_path, device="cpu")
    assert 0 <= result["last"][result["headline"]] <= 1
    assert math.isfinite(result["last"]["loss"])
    torch.manual_seed(0)
    fresh = create_model(model.name, **overrides).state_dict()
    trained = load_file(tmp_path / "model.safetensors")
    assert trained.keys() == fresh.keys()
    of_head = [key for key in fresh if key.startswith("head.") and key.endswith("weight")]
    assert of_head
    for key in of_head:
        assert not torch.equal(trained[key], fresh[key])


def test_images_become_sets_of_pixels() -> None:
    mnist = task("mnist_s")
    batch = mnist.batch("train", torch.tensor([3, 1]))
    images = data.load("mnist", "train").images[[3, 1]]
    assert torch.equal(batch.inputs["x"], data.pixel_set(images))
    assert batch.target.tolist() == [3, 1]


def test_only_training_sets_are_augmented() -> None:
    modelnet40 = task("modelnet40")
    for part, changed in (("train", True), ("test", False)):
        assert part in ("train", "test")
        stored = data.load("modelnet40", part).points[:, :128]
        x = modelnet40.batch(part, every(modelnet40, part)).inputs["x"]
        assert x.shape == stored.shape
        assert torch.equal(x, stored) is not changed


def test_splits_are_joined_and_points_cut_with_their_parts() -> None:
    parts = task("shapenetpart_s", "augmentation.shift=0", "augmentation.scale=[1, 1]")
    assert isinstance(parts, PartSegmentation)
    assert parts.size("train") == 4
    batch = parts.batch("train", torch.tensor([0, 3]))
    train_split, val = data.load("shapenetpart", "train"), data.load("shapenetpart", "val")
    assert torch.equal(batch.inputs["x"][0], train_split.points[0, :128])
    assert torch.equal(batch.inputs["x"][1], val.points[1, :128])
    assert torch.equal(batch.target[1], val.parts[1, :128].long())
    assert batch.inputs["category"].tolist() == [0, 11]
    assert parts.parts_of_category[:2] == [[0, 1, 2, 3], [4, 5]]


def test_faces_of_a_set_are_its_members() -> None:
    celeba = task("celeba")
    batch = celeba.batch("test", torch.tensor([0]))
    split = data.load("celeba", "test")
    faces = split.images[split.members[0]]
    assert batch.inputs["x"].shape == (1, 10, 3, 49, 40)
    assert torch.allclose((batch.inputs["x"][0] + 1) * 127.5, faces.float(), atol=1e-4)
    assert batch.target.tolist() == split.labels[:1].tolist()


def test_smoothing_goes_to_the_other_classes() -> None:
    modelnet40 = task("modelnet40")
    logits, target = torch.randn(6, 40), torch.arange(6)
    log = logits.log_softmax(-1)
    true = log[torch.arange(6), target]
    expected = -(0.8 * true + 0.2 / 39 * (log.sum(-1) - true)).mean()
    torch.testing.assert_close(modelnet40.loss(logits, target), expected)


@pytest.mark.parametrize("name", ["mnist_s", "shapenetpart_s", "scannet_s"])
def test_a_holdout_is_the_same_in_every_run_and_leaves_the_rest(name: str) -> None:
    whole, first = task(name), task(name, "data.holdout=0.4")
    torch.manual_seed(1)
    second = load_task(recipe(name, "data.holdout=0.4"), CPU)
    held = first.batch("test", every(first, "test"))
    assert torch.equal(held.target, second.batch("test", every(second, "test")).target)
    assert first.size("train") < whole.size("train")
    if name != "scannet_s":  # there a scene to score is several columns
        assert first.size("train") + first.size("test") == whole.size("train")
        assert first.size("test") == round(0.4 * whole.size("train"))


def test_a_holdout_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="of 12 sets leaves nothing on one side"):
        task("mnist_s", "data.holdout=0.01")
    with pytest.raises(ValueError, match="celeba has a validation split of its own"):
        task("celeba", "data.holdout=0.5")


def test_scenes_are_scored_where_they_count() -> None:
    scannet = task("scannet_s")
    assert isinstance(scannet, SceneSegmentation)
    batch = scannet.batch("test", every(scannet, "test"))
    counts = batch.target != IGNORED
    assert not counts.all()  # of columns side by side each has a margin
    assert counts.any(1).all()
    right = torch.nn.functional.one_hot(batch.target.clamp(min=0), 21).float()
    wrong_in_margins = right.where(counts[..., None], right.roll(1, -1))
    wrong = right.roll(1, -1)
    for logits, accuracy in ((right, 1.0), (wrong_in_margins, 1.0), (wrong, 0.0)):
        metrics = scannet.new_metrics(CPU)
        scannet.score(metrics, logits, batch)
        assert metrics.compute()[scannet.headline] == accuracy


def test_scenes_are_cut_anew_in_training_and_once_to_be_scored() -> None:
    scannet = task("scannet_s", "augmentation.drop=0")
    again = load_task(scannet.recipe, CPU)
    scenes = torch.tensor([0, 2])
    first, second = (scannet.batch("train", scenes).inputs["x"] for _ in range(2))
    assert first.shape == (2, 128, 3)
    assert not torch.equal(first, second)
    tests = [each.batch("test", every(each, "test")).inputs["x"] for each in (scannet, again)]
    assert torch.equal(*tests)


def test_margins_do_not_count_in_the_loss() -> None:
    scannet = task("scannet_s")
    batch = scannet.batch("test", every(scannet, "test"))
    logits = torch.randn(*batch.target.shape, 21)
    changed = logits.where((batch.target != IGNORED)[..., None], torch.randn_like(logits))
    assert not torch.equal(changed, logits)
    assert torch.equal(scannet.loss(logits, batch.target), scannet.loss(changed, batch.target))


def test_points_drawn_from_a_scene_must_be_said() -> None:
    table = recipe("scannet_s").to_dict()
    table["data"]["points"] = None
    with pytest.raises(ValueError, match=r"data\.points must say how many points"):
        load_task(Recipe.from_dict(table), CPU)


@pytest.mark.parametrize("name", SMALL)
def test_a_share_of_no_sets_is_a_batch(name: str) -> None:
    """Of the last batch a process may get nothing."""
    each = task(name)
    some, none = (each.batch("train", torch.arange(count)) for count in (2, 0))
    for key in some.inputs:
        assert none.inputs[key].shape == (0, *some.inputs[key].shape[1:])
    assert none.target.shape == (0, *some.target.shape[1:])


def test_every_set_has_its_turn() -> None:
    mnist = task("mnist_s")
    halves = (mnist.batch("train", index) for index in every(mnist, "train").split(5))
    targets = itertools.chain.from_iterable(batch.target.tolist() for batch in halves)
    assert list(targets) == [index % 10 for index in range(12)]
