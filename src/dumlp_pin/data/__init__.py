"""The data sets of the paper: `prepare` them once from the published files, then `load` them."""

from dumlp_pin.data.checks import DataError
from dumlp_pin.data.library import Status, list_datasets, load, prepare
from dumlp_pin.data.pixels import pixel_set
from dumlp_pin.data.records import FaceSets, Images, PartShapes, Scenes, Shapes, Split, Task
from dumlp_pin.data.registry import Dataset
from dumlp_pin.data.store import data_root

__all__ = [
    "DataError",
    "Dataset",
    "FaceSets",
    "Images",
    "PartShapes",
    "Scenes",
    "Shapes",
    "Split",
    "Status",
    "Task",
    "data_root",
    "list_datasets",
    "load",
    "pixel_set",
    "prepare",
]
