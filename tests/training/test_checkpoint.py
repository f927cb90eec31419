"""Runs that stop, by whatever cause, and go on as if they had not."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dumlp_pin.training import run
from dumlp_pin.training.checkpoint import read_progress
from dumlp_pin.training.trainer import train
from tests.training.runs import assert_same_bits, history, python, quick, stopped_after

LESS_THAN_A_CHECKPOINT = 100_000  # bytes


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("uninterrupted")
    train(quick(), 0, out)
    return out


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run of three epochs that was stopped after the first."""
    with stopped_after(1):
        train(quick(), 0, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "changes",
    [
        ("optimizer.momentum=0",),
        ("optimizer.name=adamw", "optimizer.lr=0.002"),
        ("ema=0.9", "accumulate=2", "label_smoothing=0.2", "model.overrides.dropout=0.3"),
    ],
)
def test_resumed_run_is_the_uninterrupted_run(changes: tuple[str, ...], tmp_path: Path) -> None:
    recipe = quick("epochs=2", *changes)
    train(recipe, 3, tmp_path / "uninterrupted")
    with stopped_after(1):
        train(recipe, 3, tmp_path / "resumed")
    train(recipe, 3, tmp_path / "resumed", resume=True)
    assert_same_bits(tmp_path / "resumed", tmp_path / "uninterrupted")


@pytest.mark.parametrize("epoch", [1, 3])
def test_resumes_after_any_epoch(epoch: int, uninterrupted: Path, tmp_path: Path) -> None:
    with stopped_after(epoch):
        train(quick(), 0, tmp_path)
    assert not (tmp_path / "result.json").exists()
    train(quick(), 0, tmp_path, resume=True)
    assert_same_bits(tmp_path, uninterrupted)


def test_history_ahead_of_the_checkpoint_is_written_again(
    uninterrupted: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_before(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, "save_checkpoint", killed_before)
        with pytest.raises(KeyboardInterrupt):
            train(quick(), 0, stopped, resume=True)
    assert len(history(stopped)) == 2
    assert read_progress(stopped / "checkpoint.safetensors").epochs_done == 1
    train(quick(), 0, stopped, resume=True)
    assert_same_bits(stopped, uninterrupted)


KILL_IN_SECOND_EPOCH = """
import os, signal, sys
from pathlib import Path
from dumlp_pin.training.tasks import SetClassification
from dumlp_pin.training.trainer import train
from tests.training.runs import quick

rows, trained = SetClassification.rows, 0

def rows_or_die(task, part, index):
    global trained
    trained += part == "train"
    if trained == 8:  # of five an epoch
        os.kill(os.getpid(), signal.SIGKILL)
    return rows(task, part, index)

SetClassification.rows = rows_or_die
train(quick(), 0, Path(sys.argv[1]))
"""


def test_killed_within_an_epoch(uninterrupted: Path, tmp_path: Path) -> None:
    process = python("-c", KILL_IN_SECOND_EPOCH, str(tmp_path))
    assert process.communicate()[1] == ""
    assert process.returncode == -signal.SIGKILL
    assert len(history(tmp_path)) == 1
    train(quick(), 0, tmp_path, resume=True)
    assert_same_bits(tmp_path, uninterrupted)


# The kernel ends a process whose file grows beyond the limit, here in the midst of a write.
KILL_IN_A_WRITE = f"""
import resource, signal, sys
from pathlib import Path
from dumlp_pin.training.trainer import train
from tests.training.runs import quick

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, ({LESS_THAN_A_CHECKPOINT}, {LESS_THAN_A_CHECKPOINT}))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
train(quick(), 0, Path(sys.argv[1]), resume=True)
"""


def test_killed_within_the_write_of_a_checkpoint(uninterrupted: Path, stopped: Path) -> None:
    before = (stopped / "checkpoint.safetensors").read_bytes()
    process = python("-c", KILL_IN_A_WRITE, str(stopped))
    assert process.communicate()[1] == ""
    assert process.returncode == -signal.SIGXFSZ
    (draft,) = stopped.glob(".*")
    assert draft.name.startswith(".checkpoint")
    assert draft.stat().st_size == LESS_THAN_A_CHECKPOINT
    assert (stopped / "checkpoint.safetensors").read_bytes() == before
    train(quick(), 0, stopped, resume=True)
    assert list(stopped.glob(".*")) == []
    assert_same_bits(stopped, uninterrupted)


@contextmanager
def no_room_for_a_checkpoint() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LESS_THAN_A_CHECKPOINT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_loses_nothing(uninterrupted: Path, stopped: Path) -> None:
    before = (stopped / "checkpoint.safetensors").read_bytes()
    message = r"File too large: '.*/checkpoint\.safetensors'"
    with no_room_for_a_checkpoint(), pytest.raises(OSError, match=message):
        train(quick(), 0, stopped, resume=True)
    assert (stopped / "checkpoint.safetensors").read_bytes() == before
    assert list(stopped.glob(".*")) == []
    train(quick(), 0, stopped, resume=True)
    assert_same_bits(stopped, uninterrupted)


def test_a_finished_run_only_reports(uninterrupted: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.iterdir()}
    result = train(quick(), 0, uninterrupted, resume=True)
    assert result == json.loads((uninterrupted / "result.json").read_text())
    assert result["last"]["epoch"] == 3
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.iterdir()} == before


@pytest.mark.parametrize("left", ["checkpoint.safetensors", "result.json"])
def test_a_fresh_run_never_replaces_another(left: str, tmp_path: Path) -> None:
    (tmp_path / left).write_text("work of days")
    with pytest.raises(FileExistsError, match="holds a run: go on with --resume"):
        train(quick(), 0, tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["work of days"]


@pytest.mark.parametrize(
    ("changes", "seed", "message"),
    [
        ((), 1, "holds a run with seed 0, asked for 1"),
        (("epochs=4",), 0, "holds a run with epochs = 3, asked for 4"),
        (("optimizer.lr=0.1",), 0, "holds a run with optimizer = .*'lr': 0.05.*, asked for"),
        (("model.name=deepsets_digits",), 0, "holds a run with model = .*dumlp_pin_digits"),
        (("model.overrides.dropout=0.1",), 0, "holds a run with model = "),
    ],
)
def test_another_run_is_not_resumed(
    changes: tuple[str, ...], seed: int, message: str, uninterrupted: Path
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        train(quick(*changes), seed, uninterrupted, resume=True)
    assert "\n" not in str(caught.value)


def test_a_result_that_is_broken_is_named(uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted, tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"run/result\.json is not JSON: "):
        train(quick(), 0, tmp_path / "run", resume=True)


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing to resume: no checkpoint at"):
        train(quick(), 0, tmp_path / "new", resume=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("length", [0, 7, 5_000, LESS_THAN_A_CHECKPOINT])
def test_truncated_checkpoint(length: int, stopped: Path) -> None:
    checkpoint = stopped / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:length])
    with pytest.raises(ValueError, match="is broken, or not a checkpoint") as caught:
        train(quick(), 0, stopped, resume=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("metadata", [None, {}, {"progress": "{"}, {"progress": "{}"}])
def test_foreign_checkpoint(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "checkpoint.safetensors", metadata)
    with pytest.raises(ValueError, match="is broken, or not a checkpoint"):
        train(quick(), 0, tmp_path, resume=True)


def test_checkpoint_of_another_version_of_the_model(stopped: Path) -> None:
    checkpoint = stopped / "checkpoint.safetensors"
    tensors = load_file(checkpoint)
    with safe_open(checkpoint, framework="pt") as file:
        metadata = file.metadata()
    tensors["model.head.linears.2.weight"] = tensors.pop("model.head.linears.1.weight")
    save_file(tensors, checkpoint, metadata)
    with pytest.raises(ValueError, match=r"another version of this model: .*linears\.2") as caught:
        train(quick(), 0, stopped, resume=True)
    assert "\n" not in str(caught.value)
