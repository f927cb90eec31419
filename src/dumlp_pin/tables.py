"""Tables with a column that says which set a row belongs to: to sets, and from files.

pandas, polars and Arrow tables are read alike, through narwhals. Files are read by pyarrow, whole
where they fit into memory and piece by piece where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dumlp_pin._errors import nearest, need

Kind = Literal["number", "word", "flag"]
FORMATS = {".csv": "csv", ".parquet": "parquet", ".feather": "feather", ".arrow": "feather"}
# A table in memory, its rows in order of their sets, and the float32 features made of it.
COPIES = 4


@dataclass(frozen=True)
class ColumnSets:
    """B sets as columns of T values, and offsets as in a `SetBatch`.

    A column is float, NaN where a value is missing; or object, of words, where what is missing is
    no `str`. Bools are the words "true" and "false".
    """

    columns: dict[str, np.ndarray]  # (T,) each
    offsets: np.ndarray  # (B + 1,)
    ids: np.ndarray  # (B,) what a table calls its sets
    target: np.ndarray | None = None  # (T,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def labels(self) -> np.ndarray:
        """(B,) the target, which must be the same in all rows of a set."""
        assert self.target is not None
        labels = self.target[self.offsets[:-1]]
        differs = self.target != np.repeat(labels, self.sizes)
        if differs.any():
            row = int(differs.argmax())
            b = int(np.searchsorted(self.offsets, row, side="right")) - 1
            raise ValueError(
                f"set {shown(self.ids[b])} has two labels, {shown(labels[b])} and "
                f"{shown(self.target[row])}; the target is the same in all rows of a set"
            )
        return labels

    def select(self, sets: np.ndarray) -> ColumnSets:
        """Some of the sets, in the order given."""
        sizes = self.sizes[sets]
        offsets = np.concatenate(([0], sizes.cumsum()))
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[sets] - offsets[:-1], sizes)
        return ColumnSets(
            {name: column[rows] for name, column in self.columns.items()},
            offsets,
            self.ids[sets],
            None if self.target is None else self.target[rows],
        )


def shown(value: Any) -> str:
    """A value as a person wrote it, not as NumPy holds it."""
    return repr(value.item() if isinstance(value, np.generic) else value)


def is_table(x: Any) -> bool:
    """Whether x is a table of any kind; of the kinds that nobody has imported it is none."""
    if not hasattr(x, "columns"):
        return False
    return need("narwhals", "sklearn").dependencies.is_into_dataframe(x)


def sets_from_table(
    table: Any,
    set_column: str | None,
    target: str | None = None,
    features: Sequence[str] | None = None,
) -> ColumnSets:
    """The rows of a table, gathered into sets in order of first appearance.

    `features` are the columns to keep; without it, all but `set_column` and `target`. The rows of a
    set need not stand together, and keep their order.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"basket": ["b", "a", "b"], "price": [1.0, 2.0, 3.0]})
    >>> sets = sets_from_table(table, "basket")
    >>> list(sets.ids), sets.sizes.tolist(), sets.columns["price"].tolist()
    (['b', 'a'], [2, 1], [1.0, 3.0, 2.0])
    """
    frame = need("narwhals", "sklearn").from_native(table, eager_only=True)
    if set_column is None:
        raise ValueError(
            "a table needs set_column, the name of the column that says which set a row belongs "
            f"to; it has {', '.join(map(str, frame.columns[:8]))}"
        )
    if features is None:
        features = [name for name in frame.columns if name not in (set_column, target)]
    if not features:
        raise ValueError(f"no column is left for features beside {set_column!r} and {target!r}")
    for name in (set_column, *([target] if target else []), *features):
        check_column(name, frame.columns)
    if not len(frame):
        raise ValueError("the table has no rows")
    ids = frame[set_column]
    if _holds_no_words(ids):
        raise TypeError(
            f"column {set_column!r} holds {ids.dtype}; sets are named by numbers, words or dates"
        )
    if _missing(ids):
        raise ValueError(
            f"column {set_column!r} says no set for {_missing(ids)} of {len(ids)} rows"
        )
    values = ids.to_numpy()
    codes = _numbered(values)
    order = np.argsort(codes, kind="stable")
    offsets = np.concatenate(([0], np.bincount(codes).cumsum()))
    if (order[1:] > order[:-1]).all():
        order = slice(None)  # the sets stand together already, and nothing is copied
    return ColumnSets(
        {name: _column(frame[name])[order] for name in features},
        offsets,
        values[order][offsets[:-1]],
        None if target is None else _labels(frame[target])[order],
    )


def check_column(name: str, columns: Sequence[str]) -> None:
    if name not in columns:
        raise KeyError(f"the table has no column {name!r}{nearest(str(name), map(str, columns))}")


def _numbered(values: np.ndarray) -> np.ndarray:
    """(T,) which value each one is, counted in order of first appearance."""
    seen: dict[Any, int] = {}
    numbers = (seen.setdefault(value, len(seen)) for value in values.tolist())
    return np.fromiter(numbers, np.int64, len(values))


def _column(series: Any) -> np.ndarray:
    import narwhals as nw

    dtype = series.dtype
    if dtype.is_numeric():
        return series.cast(nw.Float64).to_numpy()
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return series.cast(nw.String).to_numpy().astype(object)
    if _missing(series) == len(series):
        return np.full(len(series), np.nan)
    if dtype in (nw.Boolean, nw.Object):  # pandas has bools with gaps among them as objects
        known = series.filter(~series.is_null()).to_list()
        if all(isinstance(value, bool | np.bool | str) for value in known):
            words = {True: "true", False: "false"}
            return np.array([words.get(value, value) for value in series.to_list()], dtype=object)
    raise TypeError(
        f"column {series.name!r} holds {dtype}; understood are numbers, words, categories and "
        "bools: turn a date into a number, as of days"
    )


def _labels(series: Any) -> np.ndarray:
    import narwhals as nw

    if _holds_no_words(series) or series.dtype.is_temporal():
        raise TypeError(
            f"column {series.name!r} is the target and holds {series.dtype}; understood are "
            "numbers, words and bools"
        )
    if _missing(series):
        raise ValueError(
            f"column {series.name!r} is the target and has no value in {_missing(series)} rows"
        )
    if series.dtype in (nw.Categorical, nw.Enum):
        series = series.cast(nw.String)
    return series.to_numpy()


def _holds_no_words(series: Any) -> bool:
    """Lists and the like, and bytes: what Arrow makes of text that is not in UTF-8."""
    import narwhals as nw

    return series.dtype.is_nested() or series.dtype == nw.Binary


def _missing(series: Any) -> int:
    return int(series.null_count() + (series.is_nan().sum() if series.dtype.is_float() else 0))


def read_table(
    path: Path,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Kind] | None = None,
    memory: int | None = None,
) -> Any:
    """A .csv, .parquet, .feather or .arrow file as an Arrow table.

    `columns` are the ones to read; without it, all. `types` say what a column of a CSV file holds,
    where that shall not be guessed. `memory` is how many bytes may be used; without it, what is
    free.
    """
    with _one_line(path):
        dataset = _dataset(path, types)
        for name in columns or ():
            check_column(name, dataset.schema.names)
        if not _fits(path, columns, memory):
            raise ValueError(
                f"{path} is too big for the memory of this machine: "
                "take a part of its sets, or fewer columns with --features"
            )
        if _format(path) != "csv":
            return dataset.to_table(columns)
        # Unlike a dataset, this guesses what a column holds from all of its rows.
        csv = need("pyarrow.csv", "tables")
        return csv.read_csv(path, convert_options=_conversion(types, columns))


def whole_sets(
    path: Path, set_column: str, types: Mapping[str, Kind], memory: int | None = None
) -> Iterator[Any]:
    """The columns `types` of a file as Arrow tables, none of which ends within a set.

    One table, where it fits into memory. A larger file is read once, from top to bottom; then the
    rows of a set must stand together, which is checked.
    """
    columns = list(types)
    if _fits(path, columns, memory):
        yield read_table(path, columns, types, memory)
        return
    pa = need("pyarrow", "tables")
    seen: set[Any] = set()
    rest = None
    with _one_line(path):
        dataset = _dataset(path, types)
        for name in columns:
            check_column(name, dataset.schema.names)
        for batch in dataset.to_batches(columns, batch_readahead=2, fragment_readahead=1):
            table = pa.Table.from_batches([batch])
            if rest is not None:
                table = pa.concat_tables([rest, table])
            if not len(table):
                continue
            ids = table[set_column].to_numpy()
            starts = np.concatenate(([0], 1 + np.flatnonzero(ids[1:] != ids[:-1])))
            _check_new(ids[starts[:-1]], seen, set_column, path)
            if starts[-1]:
                yield table[: starts[-1]]
            rest = table[starts[-1] :]  # the last set may go on in the next batch
    if rest is None:
        raise ValueError(f"{path} has no rows")
    _check_new(rest[set_column].to_numpy()[:1], seen, set_column, path)
    yield rest


def _check_new(ids: np.ndarray, seen: set[Any], set_column: str, path: Path) -> None:
    for value in ids.tolist():
        if value in seen:
            raise ValueError(
                f"{path} does not fit into memory, so the rows of a set must stand together, and "
                f"those of {value!r} do not: sort the file by {set_column!r}"
            )
        seen.add(value)


def _format(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"{path} is no table of a known kind: {', '.join(FORMATS)}")
    return kind


def _dataset(path: Path, types: Mapping[str, Kind] | None = None) -> Any:
    ds = need("pyarrow.dataset", "tables")
    kind = _format(path)
    if kind == "csv":
        kind = ds.CsvFileFormat(convert_options=_conversion(types))
    return ds.dataset(path, format=kind)


def _conversion(types: Mapping[str, Kind] | None, columns: Sequence[str] | None = None) -> Any:
    pa, csv = need("pyarrow", "tables"), need("pyarrow.csv", "tables")
    arrow = {"number": pa.float64(), "word": pa.string(), "flag": pa.bool_()}
    known = {name: arrow[kind] for name, kind in (types or {}).items()}
    return csv.ConvertOptions(column_types=known, include_columns=columns, strings_can_be_null=True)


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """What pyarrow cannot read is an error of one line that names the file."""
    pa = need("pyarrow", "tables")
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (pa.ArrowException, OSError) as error:
        # A dataset says first that it could not be made, then why.
        reason = str(error).splitlines()[0].rpartition(" file?: ")[2]
        raise ValueError(f"{path} cannot be read as {_format(path)}: {reason}") from error


def _fits(path: Path, columns: Sequence[str] | None, memory: int | None) -> bool:
    """Whether columns and the features made of them fit into `memory`, or into what is free."""
    with _one_line(path):
        dataset = _dataset(path)
        size, names = path.stat().st_size, dataset.schema.names
        if _format(path) != "csv":  # what is compressed there says how many rows it has
            size = max(size, 8 * dataset.count_rows() * len(names))
    share = 1 if columns is None else len(columns) / max(1, len(names))
    return COPIES * share * size <= (_free_memory() if memory is None else memory)


def _free_memory() -> float:
    """In bytes, where the operating system tells."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return math.inf
