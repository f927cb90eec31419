from __future__ import annotations

from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from dumlp_pin.tables import ColumnSets, is_table, read_table, sets_from_table, whole_sets

BASKETS: dict[str, list[Any]] = {
    "basket": ["b", "a", "b", "a", "c"],
    "price": [1.5, 2.0, None, 4.0, 5.0],
    "count": [1, 2, 3, 4, 5],
    "kind": ["fruit", None, "bread", "fruit", "milk"],
    "sale": [True, False, None, True, False],
    "label": ["big", "small", "big", "small", "big"],
}


def _pandas() -> pd.DataFrame:
    return pd.DataFrame(BASKETS).astype({"kind": "category", "count": "Int64"})


TABLES = {
    "pandas": _pandas,
    "polars": lambda: pl.DataFrame(BASKETS),
    "arrow": lambda: pa.table(BASKETS),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_every_kind_become_the_same_sets(kind: str) -> None:
    table = TABLES[kind]()
    assert is_table(table)
    sets = sets_from_table(table, "basket", target="label")
    assert (list(sets.ids), sets.offsets.tolist()) == (["b", "a", "c"], [0, 2, 4, 5])
    np.testing.assert_array_equal(sets.columns["price"], [1.5, np.nan, 2.0, 4.0, 5.0])
    np.testing.assert_array_equal(sets.columns["count"], [1.0, 3.0, 2.0, 4.0, 5.0])
    words = [word if isinstance(word, str) else None for word in sets.columns["kind"]]
    assert words == ["fruit", "bread", None, "fruit", "milk"]
    flags = [word if isinstance(word, str) else None for word in sets.columns["sale"]]
    assert flags == ["true", None, "false", "true", "false"]
    assert list(sets.labels()) == ["big", "small", "big"]


@pytest.mark.parametrize("kind", TABLES)
def test_a_column_that_is_not_there_is_named_with_its_neighbour(kind: str) -> None:
    with pytest.raises(KeyError, match="no column 'baskt'; did you mean 'basket'"):
        sets_from_table(TABLES[kind](), "baskt")
    with pytest.raises(KeyError, match="no column 'prize'; did you mean 'price'"):
        sets_from_table(TABLES[kind](), "basket", features=["prize"])
    with pytest.raises(ValueError, match=r"needs set_column.* it has basket, price, count, kind"):
        sets_from_table(TABLES[kind](), None)


def test_what_a_table_cannot_say_is_an_error_of_one_line() -> None:
    table = pl.DataFrame(BASKETS)
    two_labels = table.with_columns(label=pl.Series(["big", "small", "big", "big", "big"]))
    with pytest.raises(ValueError, match="set 'a' has two labels, 'small' and 'big'"):
        sets_from_table(two_labels, "basket", "label").labels()
    with pytest.raises(ValueError, match="'kind' says no set for 1 of 5 rows"):
        sets_from_table(table, "kind")
    with pytest.raises(ValueError, match="'price' is the target and has no value in 1 row"):
        sets_from_table(table, "basket", "price")
    with pytest.raises(ValueError, match="the table has no rows"):
        sets_from_table(table[:0], "basket")
    with pytest.raises(ValueError, match="no column is left for features beside 'basket'"):
        sets_from_table(table[["basket", "label"]], "basket", "label")
    dated = table.with_columns(when=pl.Series([date(2026, 1, 1)] * 5))
    with pytest.raises(TypeError, match=r"'when' holds Date.*turn a date into a number"):
        sets_from_table(dated, "basket")


@pytest.mark.parametrize("values", [[[1], [2]], [b"\xdf", b"a"]])
def test_what_names_no_sets_and_is_no_target_is_refused(values: list) -> None:
    words = pa.table({"set": ["a", "b"], "x": [1.0, 2.0], "other": values})
    with pytest.raises(TypeError, match=r"^column 'other' holds \w+.*; sets are named by numbers"):
        sets_from_table(words, "other")
    with pytest.raises(TypeError, match=r"^column 'other' is the target and holds \w+.*; underst"):
        sets_from_table(words, "set", "other")


def test_a_date_may_name_a_set_but_is_no_target() -> None:
    days = [date(2022, 3, 8), date(2022, 3, 9)]
    table = pa.table({"day": days, "x": [1.0, 2.0], "y": ["a", "b"]})
    assert len(sets_from_table(table, "day", "y")) == 2
    with pytest.raises(TypeError, match=r"^column 'day' is the target and holds Date; understood"):
        sets_from_table(table, "y", "day")


def test_a_column_without_any_value_is_one_of_missing_numbers() -> None:
    table = pa.table({"id": [1, 1], "nothing": pa.nulls(2)})
    assert np.isnan(sets_from_table(table, "id").columns["nothing"]).all()


def test_sets_are_selected_in_the_order_asked_for() -> None:
    sets = sets_from_table(pl.DataFrame(BASKETS), "basket", "label").select(np.array([2, 0]))
    assert (list(sets.ids), sets.sizes.tolist()) == (["c", "b"], [1, 2])
    assert sets.columns["count"].tolist() == [5.0, 1.0, 3.0]
    assert list(sets.labels()) == ["big", "big"]


# Files.

WRITERS = {
    ".csv": pyarrow.csv.write_csv,
    ".parquet": pyarrow.parquet.write_table,
    ".feather": pyarrow.feather.write_feather,
    ".arrow": pyarrow.feather.write_feather,
}


@pytest.fixture(params=WRITERS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"baskets{request.param}"
    WRITERS[request.param](pa.table(BASKETS), str(path))
    return path


def test_files_of_every_kind_hold_the_same_table(file: Path) -> None:
    same(sets_from_table(read_table(file), "basket"), sets_from_table(pa.table(BASKETS), "basket"))


def test_only_the_columns_asked_for_are_read(file: Path) -> None:
    assert nw.from_native(read_table(file, ["price", "basket"])).columns == ["price", "basket"]
    with pytest.raises(KeyError, match="no column 'prize'; did you mean 'price'"):
        read_table(file, ["prize"])


def test_a_csv_column_is_what_it_was_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "codes.csv"
    path.write_text("id,code,on\n007,12,1\n008,13,0\n")
    assert read_table(path)["code"].type == pa.int64()
    table = read_table(path, types={"id": "word", "code": "word", "on": "flag"})
    assert table.to_pydict() == {"id": ["007", "008"], "code": ["12", "13"], "on": [True, False]}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere.csv"):
        read_table(tmp_path / "nowhere.csv")
    (tmp_path / "table.xlsx").touch()
    with pytest.raises(ValueError, match=r"no table of a known kind: .csv, .parquet, .feather"):
        read_table(tmp_path / "table.xlsx")
    for suffix in (".parquet", ".feather"):
        broken = tmp_path / f"broken{suffix}"
        broken.write_bytes(b"this is no table at all")
        with pytest.raises(ValueError, match=rf"broken{suffix} cannot be read as") as error:
            read_table(broken)
        assert "\n" not in str(error.value)
    ragged = tmp_path / "ragged.csv"
    ragged.write_text("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match=r"ragged.csv cannot be read as csv: .*Expected 2 columns"):
        read_table(ragged)


def test_a_file_beyond_memory_is_refused_before_it_is_read(file: Path) -> None:
    with pytest.raises(ValueError, match="too big for the memory of this machine"):
        read_table(file, memory=100)


# Pieces of files.


def _many(path: Path, sets: int = 40) -> Any:
    sizes = np.random.default_rng(0).integers(2, 6, sets)
    ids = np.repeat([f"set {index}" for index in range(sets)], sizes)
    table = pa.table({"id": ids, "value": np.arange(float(len(ids)))})
    pyarrow.parquet.write_table(table, path, row_group_size=7)
    return table


def test_pieces_of_a_file_beyond_memory_never_end_within_a_set(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    table = _many(path)
    pieces = list(whole_sets(path, "id", {"id": "word", "value": "number"}, memory=1))
    assert len(pieces) > 5
    assert pa.concat_tables(pieces).equals(table)
    edges = [(before["id"][-1], after["id"][0]) for before, after in pairwise(pieces)]
    assert all(last != first for last, first in edges)
    (whole,) = whole_sets(path, "id", {"id": "word", "value": "number"})
    assert whole.equals(table)


def test_sets_that_are_torn_apart_in_a_file_beyond_memory_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "torn.parquet"
    table = _many(path)
    types: Any = {"id": "word", "value": "number"}
    # The last row belongs to the first set.
    torn = pa.concat_tables([table[1:], table[:1]])
    pyarrow.parquet.write_table(torn, path, row_group_size=7)
    with pytest.raises(ValueError, match="those of 'set 0' do not: sort the file by 'id'"):
        list(whole_sets(path, "id", types, memory=1))
    (whole,) = whole_sets(path, "id", types)  # in memory they are gathered
    assert len(sets_from_table(whole, "id")) == 40


def test_an_empty_file_has_no_pieces(tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"
    pyarrow.parquet.write_table(pa.table({"id": pa.array([], pa.string())}), path)
    with pytest.raises(ValueError, match=r"empty.parquet has no rows"):
        list(whole_sets(path, "id", {"id": "word"}, memory=-1))


def same(one: ColumnSets, other: ColumnSets) -> None:
    assert list(one.ids) == list(other.ids)
    assert one.offsets.tolist() == other.offsets.tolist()
    assert list(one.columns) == list(other.columns)
    for name, column in one.columns.items():
        np.testing.assert_array_equal(column, other.columns[name])
