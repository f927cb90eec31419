"""What `dumlp-pin export` does: a trained model to a file, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from dumlp_pin._errors import need
from dumlp_pin._files import check_file, written_whole
from dumlp_pin.export.archive import export_archive
from dumlp_pin.export.onnx import export_onnx, onnx_runner, to_onnx
from dumlp_pin.export.program import Inputs
from dumlp_pin.export.quantize import quantize
from dumlp_pin.pretrained import Pretrained, find_pretrained
from dumlp_pin.training.tasks import Batch, Task, load_task

EXPECTS = {
    "digits": "pixels as (row, column, grey): rows and columns from -1 to 1, grey from 0 to 1",
    "mnist": "pixels as (row, column, grey): rows and columns from -1 to 1, grey from 0 to 1",
    "celeba": "RGB images of 49 x 40, from -1 to 1",
    "modelnet40": "x y z centred by their mean and scaled to a largest norm of 1, then the normal",
    "shapenetpart": "x y z centred by their mean and scaled to a largest norm of 1",
    "scannet": "x y z in metres from the middle of a column 1.5 m wide, and from the lowest point",
}

CALIBRATION_SETS = 256
CALIBRATION_BATCH = 16
CALIBRATION_SEED = 0


def export_command(name: str, out: Path, int8: bool = False) -> None:
    """Export by the suffix of `out`; with `int8`, say what it costs on the test sets.

    `name` is what `find_pretrained` takes, or the folder of a fitted estimator.
    """
    if out.suffix not in (".onnx", ".pt2"):
        raise ValueError(f"the suffix of a file to export to is .onnx or .pt2, got {str(out)!r}")
    check_file(out)
    if int8 and out.suffix != ".onnx":
        raise ValueError(f"int8 is for .onnx files, got {str(out)!r}")
    if (Path(name) / "model.json").is_file():
        if int8:
            raise ValueError("int8 needs sets to measure its cost on, which a fit does not keep")
        fitted = need("dumlp_pin.estimators.program", "sklearn")
        estimator = fitted.SetEstimator.load(name)
        model, about = fitted.FittedNetwork(estimator), fitted.describe(estimator)
    else:
        found = find_pretrained(name)
        about = {"class_names": found.class_names, "expects": EXPECTS[found.recipe.data.name]}
        if int8:
            _export_int8(found, out, about)
            return
        model = found.model()
    if out.suffix == ".pt2":
        difference = export_archive(model, out)
        print(f"{out}: {_size(out)}, {difference:.0e} from the model")
    else:
        difference = export_onnx(model, out, **about)
        print(f"{out}: {_size(out)}, ONNX Runtime is {difference:.0e} from PyTorch")


def _export_int8(found: Pretrained, out: Path, about: dict[str, Any]) -> None:
    task = load_task(found.recipe, torch.device("cpu"))
    proto = to_onnx(found.model().float(), **about)
    quantized = quantize(proto, calibration_inputs(task)).SerializeToString(deterministic=True)
    plain = proto.SerializeToString(deterministic=True)
    before, after = (headline(task, onnx_runner(content)) for content in (plain, quantized))
    with written_whole(out) as draft:
        draft.write_bytes(quantized)
    print(
        f"{out}: {_size(out)} in int8, {len(plain):,} bytes in float32\n"
        f"{task.headline} on {found.result['scored_on']}: "
        f"{after:.2%} in int8, {before:.2%} in float32"
    )


def calibration_inputs(task: Task) -> Iterator[Inputs]:
    """Training sets, never those that the cost is measured on; augmented as in training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(CALIBRATION_SEED)
        for index in torch.randperm(task.size("train"))[:CALIBRATION_SETS].split(CALIBRATION_BATCH):
            yield _with_mask(task.batch("train", index))


def headline(task: Task, run: Callable[[Inputs], torch.Tensor]) -> float:
    """The metric that the paper reports, of a function from inputs to logits."""
    metrics = task.new_metrics(torch.device("cpu"))
    for index in torch.arange(task.size("test")).split(task.scoring_batch()):
        batch = task.batch("test", index)
        task.score(metrics, run(_with_mask(batch)), batch)
    return metrics.compute()[task.headline]


def _with_mask(batch: Batch) -> Inputs:
    everything = torch.ones(batch.inputs["x"].shape[:2], dtype=torch.bool)
    return batch.inputs | {"mask": everything}


def _size(path: Path) -> str:
    return f"{path.stat().st_size:,} bytes"
