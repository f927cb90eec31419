"""The data sets of the paper: what each is for, what its publisher counts, where it comes from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dumlp_pin._errors import nearest
from dumlp_pin.data import celeba, digits, mnist, modelnet40, scannet, shapenetpart
from dumlp_pin.data.download import Download
from dumlp_pin.data.records import FaceSets, Images, PartShapes, Scenes, Shapes, Split, Task
from dumlp_pin.data.source import Source


@dataclass(frozen=True, kw_only=True)
class Dataset:
    name: str
    record: type[Split]
    published: Mapping[str, int]  # split -> sets, or images where sets are drawn from them
    homepage: str
    licence: str
    read: Callable[[Source, str], Split] | None = None  # from published files, or ...
    embedded: Callable[[str], Split] | None = None  # ... what ships with the package
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""  # what to fetch, for a data set that cannot be downloaded by a program

    @property
    def task(self) -> Task:
        return self.record.task


def _mnist_file(file: str, sha256: str) -> Download:
    mirrors = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    )
    return Download(file, tuple(mirror + file for mirror in mirrors), sha256)


_DATASETS = (
    Dataset(
        name="digits",
        record=Images,
        published={"train": 1_297, "test": 500},
        embedded=digits.load,
        homepage="https://archive.ics.uci.edu/dataset/80",
        licence="CC BY 4.0",
    ),
    Dataset(
        name="mnist",
        record=Images,
        published={"train": 60_000, "test": 10_000},
        read=mnist.read,
        homepage="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0",
        downloads=(
            _mnist_file(
                "train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            _mnist_file(
                "train-labels-idx1-ubyte.gz",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            _mnist_file(
                "t10k-images-idx3-ubyte.gz",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            _mnist_file(
                "t10k-labels-idx1-ubyte.gz",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    Dataset(
        name="celeba",
        record=FaceSets,
        published={"train": 162_770, "val": 19_867, "test": 19_962},
        read=celeba.read,
        homepage="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        licence="non-commercial research only",
        by_hand="img_align_celeba.zip, list_attr_celeba.txt and list_eval_partition.txt",
    ),
    Dataset(
        name="modelnet40",
        record=Shapes,
        published={"train": 9_843, "test": 2_468},
        read=modelnet40.read,
        homepage="https://modelnet.cs.princeton.edu",
        licence="research only",
        downloads=(
            Download(
                "modelnet40_normal_resampled.zip",
                ("https://shapenet.cs.stanford.edu/media/modelnet40_normal_resampled.zip",),
            ),
        ),
    ),
    Dataset(
        name="shapenetpart",
        record=PartShapes,
        published={"train": 12_137, "val": 1_870, "test": 2_874},
        read=shapenetpart.read,
        homepage="https://shapenet.org",
        licence="ShapeNet terms of use: research and education only",
        by_hand=(
            "shapenetcore_partanno_segmentation_benchmark_v0_normal.zip (linked from "
            "https://github.com/charlesq34/pointnet2) or "
            "shapenet_part_seg_hdf5_data.zip (linked from https://github.com/charlesq34/pointnet)"
        ),
    ),
    Dataset(
        name="scannet",
        record=Scenes,
        published={"train": 1_201, "test": 312},
        read=scannet.read,
        homepage="http://www.scan-net.org",
        licence="ScanNet terms of use: research only, signed agreement",
        by_hand=(
            "scannet_train.pickle and scannet_test.pickle (scannet_data_pointnet2.zip, "
            "linked from https://github.com/charlesq34/pointnet2/tree/master/scannet)"
        ),
    ),
)
DATASETS: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _DATASETS}


def get(name: str) -> Dataset:
    if name not in DATASETS:
        raise KeyError(f"unknown data set {name!r}{nearest(name, DATASETS)}")
    return DATASETS[name]
