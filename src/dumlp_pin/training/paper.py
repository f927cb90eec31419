"""Every row of the paper's tables: what it printed, and the recipe that reproduces it.

Tables have the numbers that the paper prints, in the order in which they appear; the appendix goes
on counting:

1 MNIST, 2 CelebA, 3 ModelNet40, 4 ShapeNetPart, 5 complexity, 6 factorization, 7 decomposition
order, 8 number of broadcast blocks, 9 ScanNet. Figure 4, the ablation of activations, is a table
here; its values are lost. So is the grid search that chose the extractors of CelebA, of which the
paper tells what was tried.

The authors' numbers are means over five runs, each at its best epoch by test score; those of others
are quoted as the paper quotes them.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from dumlp_pin._errors import nearest
from dumlp_pin.training.recipe import Recipe, load_recipe


@dataclass(frozen=True)
class Row:
    """One row as printed, and how to run it here: `changes` are those of `load_recipe`."""

    label: str
    recipe: str
    value: float | None = None
    spread: float | None = None
    parameters: str | None = None  # with the digits that the paper prints
    changes: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Where runs of this row go; rows of one recipe share it."""
        words = re.findall("[a-z0-9_]+", self.label.lower()) if self.changes else []
        return "-".join([self.recipe, *words])

    def load(self) -> Recipe:
        return load_recipe(self.recipe, self.changes)


@dataclass(frozen=True)
class Table:
    name: str
    topic: str  # another name, which no printing changes
    title: str
    metric: str  # as a result names it; "macs" are counted, not trained for
    rows: tuple[Row, ...]
    unit: str = "%"
    decimals: int = 1  # of the values, as printed
    is_error: bool = False  # the paper prints what the metric leaves to 100 %
    part: str = ""  # the part of a model whose parameters are printed; all of it


def get_table(name: str) -> Table:
    """By its number in the paper or by its topic.

    >>> get_table("table3").rows[-1]
    Row(label='DuMLP-Pin', recipe='modelnet40', value=92.3, spread=0.12, parameters='0.29 M', ...)
    """
    by_topic = {table.topic: table for table in _TABLES}
    if name not in TABLES | by_topic:
        raise KeyError(f"the paper has no {name!r}{nearest(name, TABLES | by_topic)}")
    return (TABLES | by_topic)[name]


def _branches(*widths: int) -> str:
    """The change of the ablations: one MLP[6, 32, 128, k] for each k."""
    return f"model.overrides.branches={[[32, 128, width] for width in widths]}"


def _activations(*names: str) -> str:
    return f"model.overrides.activations={list(names)}".replace("'", '"')


def _factorization(first: int, second: int, parameters: str, value: float) -> Row:
    changes = (_branches(first, second), _activations("softmax", "softmax"))
    return Row(f"{first} x {second}", "modelnet40", value, None, parameters, changes)


def _order(*widths: int, parameters: str, value: float) -> Row:
    # More than one softmax makes values too small; over a single factor it would make them all 1.
    names = ["softmax", *["none"] * (len(widths) - 1)] if len(widths) > 1 else ["none"]
    powers = [
        f"{width}^{len(list(same))}".removesuffix("^1") for width, same in itertools.groupby(widths)
    ]
    label = f"order {len(widths)}: {' x '.join(powers)}"
    changes = (_branches(*widths), _activations(*names))
    return Row(label, "modelnet40", value, None, parameters, changes)


def _broadcasts(count: int, value: float) -> Row:
    change = f"model.overrides.broadcasts={count}"
    return Row(f"{count} broadcasts", "shapenetpart_l", value, changes=(change,))


# CelebA has a validation split, so a grid need not look at the test sets.
ON_VALIDATION = "data.test=val"
LAYERS = {
    "identity": [256],
    "linear": [256, 256],
    "MLP 64": [256, 64, 256],
    "MLP 128": [256, 128, 256],
    "MLP 256": [256, 256, 256],
}
HEADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FACTORS = ((2, 128), (4, 64), (8, 32))


def _layers(method: str, recipe: str, h: str, gamma: str) -> Row:
    """H is on every element, gamma on what is pooled."""
    changes = (f"model.overrides.element={LAYERS[h]}", f"model.overrides.after={LAYERS[gamma]}")
    return Row(f"{method}: {h}, {gamma}", recipe, changes=(*changes, ON_VALIDATION))


def _heads(heads: int) -> Row:
    changes = (f"model.overrides.heads={heads}", ON_VALIDATION)
    return Row(f"Set Transformer: heads {heads}", "celeba_set_transformer", changes=changes)


def _factors(first: int, second: int) -> Row:
    change = f"model.overrides.branches={[[128, first], [128, second]]}"
    return Row(f"DuMLP-Pin: {first} x {second}", "celeba", changes=(change, ON_VALIDATION))


ACTIVATIONS = ("softmax", "none", "relu", "elu", "squash", "squash_authors")

_TABLES = (
    Table(
        "table1",
        "mnist",
        "MNIST, error",
        "overall_accuracy",
        (
            Row("PointNet", "mnist_pointnet", 0.78, None, "3.47 M"),
            Row("PointNet++", "mnist_pointnet2", 0.51, None, "1.47 M"),
            Row("DuMLP-Pin-S", "mnist_s", 0.80, 0.053, "0.28 M"),
            Row("DuMLP-Pin-L", "mnist_l", 0.48, 0.034, "1.13 M"),
        ),
        decimals=2,
        is_error=True,
    ),
    Table(
        "table2",
        "celeba",
        "CelebA set anomaly detection, accuracy (parameters of the extractor)",
        "accuracy",
        (
            Row("Max-pooling", "celeba_maxpool", 60.4, 0.44, "65.8 K"),
            Row("Mean-pooling", "celeba_meanpool", 65.0, 0.16, "65.8 K"),
            Row("PointNet", "celeba_pointnet", 62.3, 0.22, "131.6 K"),
            Row("Deep Sets", "celeba_deepsets", 65.0, 0.35, "132.6 K"),
            Row("Set Transformer", "celeba_set_transformer", 66.4, 0.45, "263.4 K"),
            Row("DuMLP-Pin", "celeba", 66.8, 0.43, "83.3 K"),
        ),
        part="extractor",
    ),
    Table(
        "table3",
        "modelnet40",
        "ModelNet40, accuracy",
        "overall_accuracy",
        (
            Row("PointNet", "modelnet40_pointnet", 89.2, None, "3.48 M"),
            Row("Deep Sets", "modelnet40_deepsets", 90.0, 0.3, "1.34 M"),
            Row("Set Transformer", "modelnet40_set_transformer", 90.4, 1.73, "1.14 M"),
            Row("PointNet++", "modelnet40_pointnet2", 91.9, None, "1.74 M"),
            Row("PCT", "modelnet40_pct", 93.2, None, "2.88 M"),
            Row("Point Transformer", "modelnet40_point_transformer", 93.7, None, "~9.6 M"),
            Row("DuMLP-Pin", "modelnet40", 92.3, 0.12, "0.29 M"),
        ),
    ),
    Table(
        "table4",
        "shapenetpart",
        "ShapeNetPart, instance mIoU",
        "instance_miou",
        (
            Row("PointNet", "shapenetpart_pointnet", 83.7, None, "7.83 M"),
            Row("PointNet++", "shapenetpart_pointnet2", 85.1, None, "1.30 M"),
            Row("PCT", "shapenetpart_pct", 86.4, None, "3.14 M"),
            Row("Point Transformer", "shapenetpart_point_transformer", 86.6, None, "~19.2 M"),
            Row("DuMLP-Pin-S", "shapenetpart_s", 83.5, 0.06, "0.70 M"),
            Row("DuMLP-Pin-L", "shapenetpart_l", 84.8, 0.04, "0.98 M"),
        ),
    ),
    Table(
        "table5",
        "complexity",
        "ModelNet40, multiply-adds a shape of 1,024 points",
        "macs",
        (
            Row("PointNet", "modelnet40_pointnet", 440, None, "3.48 M"),
            Row("Deep Sets", "modelnet40_deepsets", 135, None, "1.34 M"),
            Row("Set Transformer", "modelnet40_set_transformer", 1284, None, "1.14 M"),
            Row("PointNet++", "modelnet40_pointnet2", 3932, None, "1.74 M"),
            Row("PCT", "modelnet40_pct", 2286, None, "2.88 M"),
            Row("Point Transformer", "modelnet40_point_transformer", 18314, None, "~9.6 M"),
            Row("DuMLP-Pin", "modelnet40", 19, None, "0.29 M"),
        ),
        unit="M",
        decimals=0,
    ),
    Table(
        "table6",
        "factorization",
        "ModelNet40, factorization, accuracy (parameters of the aggregation)",
        "overall_accuracy",
        (
            _factorization(1, 1024, "143.8 K", 91.8),
            _factorization(2, 512, "76.9 K", 92.1),
            _factorization(4, 256, "43.6 K", 91.6),
            _factorization(8, 128, "27.4 K", 91.7),
            _factorization(16, 64, "20.0 K", 91.9),
            _factorization(32, 32, "17.9 K", 92.3),
        ),
        part="aggregate",
    ),
    Table(
        "table7",
        "order",
        "ModelNet40, decomposition order, accuracy (parameters of the aggregation)",
        "overall_accuracy",
        (
            _order(1024, parameters="138.9 K", value=90.3),
            Row("order 2: 32^2", "modelnet40", 92.5, None, "17.9 K"),
            _order(16, 8, 8, parameters="18.5 K", value=92.0),
            _order(8, 8, 4, 4, parameters="22.2 K", value=91.6),
            _order(4, 4, 4, 4, 4, parameters="26.5 K", value=91.2),
            _order(*[2] * 10, parameters="50.3 K", value=91.3),
        ),
        part="aggregate",
    ),
    Table(
        "table8",
        "broadcasts",
        "ShapeNetPart, number of broadcast blocks, instance mIoU",
        "instance_miou",
        (
            Row("2 broadcasts", "shapenetpart_s", 83.5),
            _broadcasts(3, 84.7),
            Row("4 broadcasts", "shapenetpart_l", 84.9),
            _broadcasts(5, 84.6),
            _broadcasts(6, 84.2),
            _broadcasts(7, 83.2),
        ),
    ),
    Table(
        "table9",
        "scannet",
        "ScanNet, accuracy by voxel",
        "voxel_accuracy",  # as the paper's text says; the heading of its table says mIoU
        (
            Row("PointNet", "scannet_pointnet", 73.0, None, "3.54 M"),
            Row("PointNet++", "scannet_pointnet2", 84.5, None, "0.85 M"),
            Row("DuMLP-Pin-S", "scannet_s", 76.9, 0.04, "0.71 M"),
            Row("DuMLP-Pin-L", "scannet_l", 77.6, 0.06, "0.83 M"),
        ),
    ),
    Table(
        "figure4",
        "activations",
        "ModelNet40, activations of the two branches, accuracy",
        "overall_accuracy",
        # The branches have the same widths, so a pair in the other order is the same model.
        tuple(
            Row(f"{a}, {b}", "modelnet40", changes=(_activations(a, b),))
            for a, b in itertools.combinations_with_replacement(ACTIVATIONS, 2)
        ),
    ),
    Table(
        "grid",
        "celeba_grid",
        "CelebA, grid search of extractors, accuracy on the validation sets",
        "accuracy",
        (
            *(_layers("PointNet", "celeba_pointnet", h, g) for h in LAYERS for g in LAYERS),
            *(_layers("Deep Sets", "celeba_deepsets", h, g) for h in LAYERS for g in LAYERS),
            *(_heads(heads) for heads in HEADS),
            *(_factors(*factors) for factors in FACTORS),
        ),
        part="extractor",
    ),
)
TABLES = {table.name: table for table in _TABLES}
