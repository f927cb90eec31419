"""What `dumlp-pin predict` and `dumlp-pin search` do with files of points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin._errors import nearest
from dumlp_pin._predictions import write_predictions
from dumlp_pin.data import shapenetpart
from dumlp_pin.points.files import READERS
from dumlp_pin.points.ply import write_parts
from dumlp_pin.points.shapes import Axis, Shape, ShapeReader
from dumlp_pin.pretrained import Pretrained
from dumlp_pin.training.distributed import choose_device

NAMED = 3  # the most likely classes, where a person reads them


def predict_command(
    found: Pretrained,
    paths: Sequence[Path],
    out: Path | None,
    category: str | None,
    up: Axis,
    device: str | None,
) -> None:
    """Name shapes, or label the parts of one; what cannot be read is told at the side."""
    if found.task == "part-segmentation":
        _label_parts(found, paths, out, category, up, device)
        return
    if category is not None:
        raise ValueError(f"{found.recipe.model.name} names shapes, it takes no category")
    notes = Console(stderr=True)
    answers = _answers(found, ShapeReader.for_model(found, up).read_all(paths, notes), device)
    if out is None:
        for shape, logits in answers:
            print(f"{shape.path}: {_most_likely(found.class_names, logits.softmax(0))}", flush=True)
            if shape.normals == "estimated":
                notes.print(
                    f"{shape.path}: it has no normals; they are estimated",
                    highlight=False,
                    soft_wrap=True,
                )
        return
    names = ["file", "class", *(f"probability of {name}" for name in found.class_names)]
    write_predictions(
        out,
        names,
        (
            [shape.path, found.class_names[int(logits.argmax())], *_digits(logits.softmax(0))]
            for shape, logits in answers
        ),
    )


def _answers(
    found: Pretrained, shapes: Iterator[Shape], device: str | None
) -> Iterator[tuple[Shape, Tensor]]:
    """Each shape with its logits (classes,)."""
    where = choose_device(device)
    model = found.model().to(where)
    for shape in shapes:
        with torch.inference_mode():
            yield shape, model(shape.points[None].to(where))[0].cpu()


def _most_likely(class_names: Sequence[str], chances: Tensor) -> str:
    values, classes = chances.topk(min(NAMED, len(class_names)))
    pairs = zip(values.tolist(), classes.tolist(), strict=True)
    return ", ".join(f"{class_names[index]} {value:.1%}" for value, index in pairs)


def _digits(chances: Tensor) -> list[str]:
    return [f"{chance:.6g}" for chance in chances.tolist()]


def _label_parts(
    found: Pretrained,
    paths: Sequence[Path],
    out: Path | None,
    category: str | None,
    up: Axis,
    device: str | None,
) -> None:
    model, where = found.model(), choose_device(device)
    if len(paths) != 1 or out is None or out.suffix.lower() != ".ply":
        raise ValueError(
            f"{found.recipe.model.name} labels the parts of one shape, into a .ply file: "
            "predict MODEL FILE --category NAME --out LABELLED.ply"
        )
    label = _category(found.class_names, category)
    shape = ShapeReader.for_model(found, up).read(paths[0])
    first, end = shapenetpart.PART_OFFSETS[label : label + 2].tolist()
    with torch.inference_mode():
        x, categories = shape.points[None].to(where), torch.tensor([label], device=where)
        # Only the parts that the category has can be meant.
        parts = model.to(where)(x, categories)[0, :, first:end].argmax(1).cpu()
    name = found.class_names[label]
    comment = f"part 0 to {end - first - 1} of {name}, by {found.recipe.model.name}"
    write_parts(out, shape.points[:, :3].numpy(), parts.numpy(), end - first, [comment])
    counts = torch.bincount(parts, minlength=end - first).tolist()
    listed = ", ".join(f"part {part}: {count:,}" for part, count in enumerate(counts))
    print(f"{out}: {len(parts):,} points of {name}; {listed}")


def _category(known: Sequence[str], name: str | None) -> int:
    """Its number; upper and lower case are the same."""
    lower = [each.lower() for each in known]
    if name is None:
        raise ValueError(f"--category is needed, one of {', '.join(lower)}")
    if name.lower() not in lower:
        raise KeyError(f"unknown category {name!r}{nearest(name.lower(), lower)}")
    return lower.index(name.lower())


def search_command(
    found: Pretrained, folder: Path, query: Path, count: int, up: Axis, device: str | None
) -> None:
    """The shapes of a folder that are most like the query, by the cosine of their logits.

    Logits tell shapes of one kind from others better than the features before the last layers.
    """
    if found.task != "classification":
        raise ValueError(f"{found.recipe.model.name} is for {found.task}: search by a classifier")
    if not folder.is_dir():
        raise NotADirectoryError(f"there is no folder {folder}")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in READERS)
    if not paths:
        raise ValueError(f"{folder} holds no file of points: {' '.join(READERS)}")
    if count < 1:
        raise ValueError(f"--count is {count}, expected at least 1")
    reader = ShapeReader.for_model(found, up)
    ((_, wanted),) = _answers(found, iter([reader.read(query)]), device)
    likeness: dict[Path, float] = {}
    try:
        for shape, logits in _answers(found, reader.read_all(paths, Console(stderr=True)), device):
            likeness[shape.path] = float(F.cosine_similarity(wanted, logits, dim=0))
    finally:  # files that cannot be read, which is said last, do not hold up the others
        for path in sorted(likeness, key=lambda path: -likeness[path])[:count]:
            print(f"{likeness[path]:.4f} {path}")
