"""Prepare a data set once from its published files, then load it in a moment."""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

from dumlp_pin.data import store
from dumlp_pin.data.checks import DataError
from dumlp_pin.data.download import fetch
from dumlp_pin.data.records import FaceSets, Images, PartShapes, Scenes, Shapes, Split
from dumlp_pin.data.registry import DATASETS, Dataset, get
from dumlp_pin.data.source import open_source


@dataclass(frozen=True)
class Status:
    """A data set and how many sets each split of it holds that is ready to load."""

    dataset: Dataset
    prepared: Mapping[str, int]


@overload
def load(name: Literal["digits", "mnist"], split: str) -> Images: ...
@overload
def load(name: Literal["celeba"], split: str) -> FaceSets: ...
@overload
def load(name: Literal["modelnet40"], split: str) -> Shapes: ...
@overload
def load(name: Literal["shapenetpart"], split: str) -> PartShapes: ...
@overload
def load(name: Literal["scannet"], split: str) -> Scenes: ...
@overload
def load(name: str, split: str) -> Split: ...
def load(name: str, split: str) -> Split:
    """A prepared split, mapped into memory: tensors, class names and the task.

    >>> digits = load("digits", "train")
    >>> digits.task, digits.images.shape, digits.labels.shape
    ('classification', torch.Size([1297, 8, 8]), torch.Size([1297]))
    """
    dataset = get(name)
    if split not in dataset.published:
        raise ValueError(f"{name} has no split {split!r}; it has {', '.join(dataset.published)}")
    if dataset.embedded:
        return dataset.embedded(split)
    path = store.split_path(name, split)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not there yet; run `dumlp-pin data prepare {name}` first")
    return store.read(path, dataset.record)


def prepare(
    name: str, source: str | os.PathLike[str] | None = None, *, progress: bool = False
) -> Status:
    """Read the published files, check them and write the prepared copy.

    The source is a folder or an archive; without one, the files are looked for in
    `data_root() / "downloads" / name`, and downloaded to it where that is allowed.
    """
    dataset = get(name)
    if dataset.read is None:
        raise ValueError(f"{name} ships with the package: there is nothing to prepare")
    source = _fetch(dataset, progress) if source is None else Path(source)
    differences = []
    with open_source(source, progress) as published:
        for split, count in dataset.published.items():
            record = dataset.read(published, split)
            store.write(record, source.name)
            if record.published_size() != count:
                differences.append(f"{split} {record.published_size():,} instead of {count:,}")
    if differences:
        warnings.warn(
            f"{source}: not all of the published {name}: {', '.join(differences)}", stacklevel=2
        )
    return _status(dataset)


def list_datasets() -> list[Status]:
    return [_status(dataset) for dataset in DATASETS.values()]


def _fetch(dataset: Dataset, progress: bool) -> Path:
    folder = store.data_root() / "downloads" / dataset.name
    for download in dataset.downloads:
        fetch(download, folder, progress)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{dataset.name} cannot be downloaded by a program: get {dataset.by_hand} from "
            f"{dataset.homepage} ({dataset.licence}), put it into {folder}, or say where it is "
            f"with `dumlp-pin data prepare {dataset.name} --from PATH`"
        )
    return folder


def _status(dataset: Dataset) -> Status:
    if dataset.embedded:
        return Status(dataset, dataset.published)
    prepared = {}
    for split in dataset.published:
        path = store.split_path(dataset.name, split)
        try:
            prepared[split] = int(store.read_metadata(path)["sets"])
        except (DataError, FileNotFoundError):
            continue
    return Status(dataset, prepared)
