"""What a person meets at the command line: one line that says what to do, and status 1.

What is wrong in a table or a shape is tested beside what reads it; here is what they share.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dumlp_pin import SetClassifier, tables
from dumlp_pin.cli import BROKEN_PIPE, main
from dumlp_pin.points.files import READERS
from tests.commands import Run
from tests.points.clouds import written
from tests.points.shapes import KINDS, box, save_run
from tests.training.runs import python

TEN_GB = 10 * 2**30
HELD = 100 * 2**20  # bytes that Python may allocate for a file that it refuses

Fails = Callable[..., str]


@pytest.fixture
def fails(run: Run) -> Fails:
    """The one line that a command ends with, which has nothing printed before it."""

    def line_of(*words: object) -> str:
        result = run(*words, fails=True)
        assert result.output == ""
        assert result.errors.startswith("dumlp-pin: ")
        assert result.errors.count("\n") == 1
        return result.errors.removeprefix("dumlp-pin: ").rstrip("\n")

    return line_of


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that names shapes, with fresh weights."""
    folder = tmp_path_factory.mktemp("shapes")
    save_run(folder / "run", "modelnet40", {"in_features": 3, "num_classes": 2}, KINDS)
    return folder / "run"


@pytest.fixture(scope="module")
def baskets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was fitted to a table."""
    folder = tmp_path_factory.mktemp("baskets")
    lines = [f"{row // 2},{row % 7},{row % 4 // 2}" for row in range(24)]
    file = folder / "baskets.csv"
    file.write_text("basket,price,label\n" + "\n".join(lines) + "\n")
    model = SetClassifier(set_column="basket", target="label", width=2, max_epochs=1)
    model.fit(tables.read_table(file)).save(folder / "model")
    return folder / "model"


def _fit(file: Path) -> tuple[object, ...]:
    out = file.parent / "model"
    return ("fit", file, "--set-column", "basket", "--target", "label", "--out", out)


def _hide(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed."""
    for name in list(sys.modules):
        if f"{name}.".startswith(f"{module}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("module", "kind"),
    [("trimesh", ".ply mesh"), ("laspy", ".las"), ("lazrs", ".laz"), ("pyarrow", ".parquet")],
)
def test_a_missing_reader_of_shapes_is_named(
    module: str,
    kind: str,
    shapes: Path,
    tmp_path: Path,
    fails: Fails,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = written(kind, tmp_path)
    _hide(module, monkeypatch)
    line = fails("predict", shapes, file)
    assert line.startswith(module)
    assert line.endswith(' is not installed: pip install "dumlp-pin[points]"')


@pytest.mark.parametrize("module", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_way_out_is_named(
    module: str, tmp_path: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hide(module, monkeypatch)
    line = fails("export", "digits", tmp_path / "digits.onnx")
    assert line == f'{module} is not installed: pip install "dumlp-pin[onnx]"'
    assert not (tmp_path / "digits.onnx").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_cpu_is_named(
    shapes: Path, baskets: Path, tmp_path: Path, fails: Fails
) -> None:
    tower = box(tmp_path / "tower.off", 1, 5, 1)
    table = baskets.parent / "baskets.csv"
    for words in (
        ("predict", shapes, tower),
        ("search", shapes, tmp_path, "--query", tower),
        ("predict", baskets, table),
        _fit(table),
        ("evaluate", "digits"),
    ):
        line = fails(*words, "--device", "cuda")
        assert line == "device cuda was asked for, but PyTorch sees no GPU here: use cpu"


@pytest.mark.parametrize("suffix", READERS)
def test_a_shape_of_10_gb_that_is_none_is_refused_at_once(
    suffix: str, shapes: Path, tmp_path: Path, fails: Fails
) -> None:
    file = tmp_path / f"large{suffix}"
    with file.open("wb") as opened:
        opened.truncate(TEN_GB)
    line, peak = _peak(lambda: fails("predict", shapes, file))
    assert line.startswith(f"{file}: ")
    assert peak < HELD


def test_a_shape_of_10_gb_that_is_cut_off_is_refused_at_once(
    shapes: Path, tmp_path: Path, fails: Fails
) -> None:
    """A header that announces more than there is."""
    file = tmp_path / "large.npy"
    np.lib.format.open_memmap(file, "w+", np.float32, (TEN_GB // 12, 3)).flush()
    with file.open("rb+") as opened:
        opened.truncate(TEN_GB // 2)
    line, peak = _peak(lambda: fails("predict", shapes, file))
    assert line.startswith(f"{file}: broken .npy file: mmap length is greater than file size")
    assert peak < HELD


@pytest.mark.parametrize("suffix", tables.FORMATS)
def test_a_table_of_10_gb_is_refused_at_once(
    suffix: str, baskets: Path, tmp_path: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_free_memory", lambda: 8 * 2**30)
    file = tmp_path / f"large{suffix}"
    file.write_text("basket,price,label\n1,2,a\n")
    with file.open("rb+") as opened:
        opened.truncate(TEN_GB)
    line, peak = _peak(lambda: fails(*_fit(file)))
    assert peak < HELD
    broken = f"{file} cannot be read as {tables.FORMATS[suffix]}: "
    if suffix == ".csv":  # the others have no more than a few words of this text in them
        advice = "take a part of its sets, or fewer columns with --features"
        assert line == f"{file} is too big for the memory of this machine: {advice}"
    else:
        assert line.startswith(broken)
    line, peak = _peak(lambda: fails("predict", baskets, file))
    assert line.startswith(broken)
    assert peak < HELD


def test_a_few_columns_of_a_table_beyond_memory_can_be_fitted(
    baskets: Path, tmp_path: Path, run: Run, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "wide.csv"
    names = ",".join(f"x{column}" for column in range(97))
    rows = [f"{row // 2},{row % 7},{row % 4 // 2}" + ",0.123456" * 97 for row in range(24)]
    file.write_text(f"basket,price,label,{names}\n" + "\n".join(rows) + "\n")
    monkeypatch.setattr(tables, "_free_memory", lambda: file.stat().st_size)
    assert "too big" in fails(*_fit(file))
    assert run(*_fit(file), "--features", "price").lines[0].endswith(": price")


def test_what_is_empty_is_named(shapes: Path, baskets: Path, tmp_path: Path, fails: Fails) -> None:
    nothing, bare = tmp_path / "nothing.csv", tmp_path / "bare.csv"
    nothing.touch()
    bare.write_text("basket,price,label\n")
    assert fails(*_fit(bare)) == fails("predict", baskets, bare) == "the table has no rows"
    for words in (_fit(nothing), ("predict", baskets, nothing)):
        assert fails(*words).startswith(f"{nothing} cannot be read as csv: ")
    bare.write_text("x,y,z\n")
    for file in (nothing, bare):
        assert fails("predict", shapes, file) == f"{file}: holds no points"


def _peak(call: Callable[[], str]) -> tuple[str, int]:
    """What a call returns, and how many bytes it held at most."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_where_nothing_can_be_written_is_said_before_the_work(tmp_path: Path, fails: Fails) -> None:
    """Not even a look at the model comes first: there is none of that name."""
    file = tmp_path / "file"
    file.write_text("kept")
    for words in (
        ("fit", "none.csv", "--set-column", "a", "--target", "b", "--out", file),
        ("export", "none", file / "x.onnx"),
        ("robustness", "none", "--out", file / "x.json"),
        ("figure", "tsne", "none", "--out", file / "x.png"),
        ("figure", "costs", "none", "--out", file / "x.png"),
        ("report", tmp_path, "--out", file / "x.md"),
        ("reproduce", "complexity", "--out", file / "x.json"),
        ("ship", "none", "digits", "--out", file),
        ("train", "digits", "--out", file),
        ("demo", "--out", file),
    ):
        assert fails(*words) == f"{file} is a file, expected a folder"
    assert file.read_text() == "kept"


def test_no_model_of_a_pattern_is_an_error(fails: Fails) -> None:
    assert fails("models", "*none*").startswith("no model matches '*none*'; known: deepsets_celeba")


def test_no_seed_is_no_table(tmp_path: Path, fails: Fails) -> None:
    words = ("reproduce", "table3", "--results", tmp_path, "--run", "--seeds")
    assert fails(*words, 0) == "--seeds is 0, expected at least 1"


def test_ctrl_c_is_one_line_and_leaves_no_file(
    baskets: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SetClassifier, "predict_proba", interrupt)
    words = ["predict", baskets, baskets.parent / "baskets.csv", "--out", tmp_path / "a.csv"]
    monkeypatch.setattr("sys.argv", ["dumlp-pin", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, capsys.readouterr().err) == (130, "dumlp-pin: stopped\n")
    assert not list(tmp_path.iterdir())


def test_who_stops_reading_hears_no_complaint(baskets: Path) -> None:
    table = baskets.parent / "many.csv"
    table.write_text("basket,price\n" + "".join(f"{row},{row % 7}\n" for row in range(20_000)))
    process = python("-m", "dumlp_pin", "predict", str(baskets), str(table))
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("basket,label")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == BROKEN_PIPE
