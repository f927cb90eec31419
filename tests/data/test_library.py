import dataclasses
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dumlp_pin.data import DataError, Images, library, list_datasets, load, prepare
from dumlp_pin.data.commands import list_command, prepare_command
from dumlp_pin.data.registry import DATASETS

from .published import LAYOUTS, mnist


@pytest.fixture
def small_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if twelve and five images were all that was published."""
    small = dataclasses.replace(DATASETS["mnist"], published={"train": 12, "test": 5})
    monkeypatch.setitem(DATASETS, "mnist", small)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_prepare_then_load(layout: str, published: Callable, read: Callable, root: Path) -> None:
    name, folder = LAYOUTS[layout][0], published(layout)
    with pytest.warns(UserWarning, match="not all of the published") as caught:
        status = prepare(name, folder)
    assert len(caught) == 1
    for split in DATASETS[name].published:
        expected, found = read(layout, folder, split), load(name, split)
        assert type(found) is type(expected)
        assert found.task == status.dataset.task
        assert found.class_names == expected.class_names
        assert status.prepared[split] == len(found)
        for key, tensor in expected.tensors().items():
            assert torch.equal(found.tensors()[key], tensor)


def test_a_subset_is_one_warning_with_both_numbers(published: Callable, root: Path) -> None:
    with pytest.warns(UserWarning, match="not all") as caught:
        prepare("mnist", published("mnist"))
    assert len(caught) == 1
    assert str(caught[0].message).endswith(
        "not all of the published mnist: train 12 instead of 60,000, test 5 instead of 10,000"
    )


def test_the_whole_is_no_warning(published: Callable, root: Path, small_mnist: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare("mnist", published("mnist"))


def test_writing_into_what_was_loaded_leaves_the_copy_alone(
    published: Callable, root: Path, small_mnist: None
) -> None:
    prepare("mnist", published("mnist"))
    load("mnist", "test").labels.fill_(9)
    assert load("mnist", "test").labels.tolist() == [0, 1, 2, 3, 4]


def test_files_put_where_prepare_looks(root: Path, small_mnist: None) -> None:
    offline = dataclasses.replace(DATASETS["mnist"], downloads=(), by_hand="four files")
    folder = root / "downloads" / "mnist"
    with pytest.raises(FileNotFoundError) as caught:
        library._fetch(offline, progress=False)
    assert str(caught.value) == (
        "mnist cannot be downloaded by a program: get four files from "
        f"http://yann.lecun.com/exdb/mnist/ (CC BY-SA 3.0), put it into {folder}, or say where "
        "it is with `dumlp-pin data prepare mnist --from PATH`"
    )
    folder.mkdir(parents=True)
    mnist(folder)
    assert library._fetch(offline, progress=False) == folder


@pytest.mark.parametrize("name", ["celeba", "shapenetpart", "scannet"])
def test_what_cannot_be_downloaded_says_what_to_do(name: str, root: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        prepare(name)
    message, dataset = str(caught.value), DATASETS[name]
    for word in (dataset.by_hand, dataset.homepage, dataset.licence, str(root), "--from PATH"):
        assert word
        assert word in message
    assert "\n" not in message


def test_a_broken_source_leaves_no_copy(published: Callable, root: Path) -> None:
    folder = published("mnist")
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"broken")
    with pytest.raises(DataError):
        prepare("mnist", folder)
    assert not root.exists()


def test_an_archive_put_where_prepare_looks(published: Callable, root: Path) -> None:
    (root / "downloads" / "modelnet40").mkdir(parents=True)
    stem = root / "downloads" / "modelnet40" / "modelnet40_normal_resampled"
    shutil.make_archive(str(stem), "zip", published("modelnet40-text"))
    with pytest.warns(UserWarning, match="not all of the published modelnet40"):
        assert prepare("modelnet40").prepared == {"train": 3, "test": 1}


def test_what_ships_with_the_package() -> None:
    with pytest.raises(ValueError, match="digits ships with the package: there is nothing to"):
        prepare("digits")
    assert len(load("digits", "test")) == list_datasets()[0].prepared["test"] == 500


def test_names() -> None:
    with pytest.raises(KeyError, match="unknown data set 'minst'; did you mean 'mnist'"):
        load("minst", "train")
    with pytest.raises(ValueError, match="mnist has no split 'val'; it has train, test"):
        load("mnist", "val")


def test_load_before_prepare(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"run `dumlp-pin data prepare mnist` first"):
        load("mnist", "train")


def test_list(published: Callable, root: Path, small_mnist: None) -> None:
    before = {status.dataset.name: status.prepared for status in list_datasets()}
    assert before.pop("digits") == {"train": 1297, "test": 500}
    assert not any(before.values())
    prepare("mnist", published("mnist"))
    prepared = {status.dataset.name: status.prepared for status in list_datasets()}
    del prepared["digits"]
    assert prepared.pop("mnist") == {"train": 12, "test": 5}
    assert not any(prepared.values())
    (root / "mnist" / "test.safetensors").write_bytes(b"broken")
    prepared = {status.dataset.name: status.prepared for status in list_datasets()}
    assert prepared["mnist"] == {"train": 12}


def test_commands_print(
    published: Callable, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_command("mnist", published("mnist"))
    printed = capsys.readouterr().out
    assert "train 12 instead of 60,000" in printed
    assert "mnist train: 12 sets" in printed
    assert str(root / "mnist") in printed
    list_command()
    printed = capsys.readouterr().out
    assert all(name in printed for name in DATASETS)
    assert "train 12" in printed


def test_types() -> None:
    """`load` names the record of each data set, and the registry agrees."""
    assert DATASETS["mnist"].record is Images
    assert {name: dataset.task for name, dataset in DATASETS.items()} == {
        "digits": "classification",
        "mnist": "classification",
        "celeba": "anomaly-detection",
        "modelnet40": "classification",
        "shapenetpart": "part-segmentation",
        "scannet": "semantic-segmentation",
    }
