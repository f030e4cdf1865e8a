"""Rows of many cells in little memory: names as categories, integers in as few bytes as they need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pandas.api.types import union_categoricals

from robustcaps.suite.spec import WORST_CASE

RESERVED_CATEGORIES = {"attack": (WORST_CASE,), "surrogate": ("",), "violation": ("",)}
"""Values that tables add to a column later: they are categories from the start, so that parts can be joined."""


INTEGERS = (pa.int8(), pa.int16(), pa.int32())
"""What integers are kept in, if they fit."""


def with_small_integers(table: pa.Table) -> pa.Table:
    """Return the rows of a cell with every column of integers in as few bytes as its values need."""
    for place, field in enumerate(table.schema):
        if pa.types.is_int64(field.type):
            column = table.column(place)
            table = table.set_column(place, field.name, column.cast(_smallest_type(column)))
    return table


def _smallest_type(column: pa.ChunkedArray) -> pa.DataType:
    """Return the smallest type that holds all values of a column of integers."""
    found = pc.min_max(column).as_py()
    if found["min"] is None:
        return pa.int64()
    for kind in INTEGERS:
        limits = np.iinfo(kind.to_pandas_dtype())
        if limits.min <= found["min"] and found["max"] <= limits.max:
            return kind
    return pa.int64()


def join_tables(tables: list[pa.Table]) -> pd.DataFrame:
    """Return the rows of cells one after the other, with texts as categories and integers in few bytes.

    The list is emptied: the memory of a column is freed as soon as it has been converted.
    """
    joined = pa.concat_tables(map(with_small_integers, tables), promote_options="permissive")
    tables.clear()
    joined = joined.unify_dictionaries()
    rows: pd.DataFrame = joined.to_pandas(split_blocks=True, self_destruct=True)
    del joined
    pa.default_memory_pool().release_unused()
    for name, reserved in RESERVED_CATEGORIES.items():
        if name in rows:
            missing = [value for value in reserved if value not in rows[name].cat.categories]
            rows[name] = rows[name].cat.add_categories(missing)
    return rows


def number_groups(rows: pd.DataFrame, keys: Sequence[str]) -> NDArray[np.int64]:
    """Return for every row the number of its group, in order of appearance.

    It takes one key after the other: `groupby` with many keys holds an array of 64 bits a row for each of them.
    """
    groups: NDArray[Any] = np.zeros(len(rows), np.int64)
    for key in keys:
        codes, values = pd.factorize(rows[key])
        groups, _ = pd.factorize(groups * len(values) + codes)
    return groups


def split_by_group(rows: pd.DataFrame, keys: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Yield the rows of each group, in order of appearance; `groupby` would copy all rows at once."""
    groups = number_groups(rows, keys)
    order, start = np.argsort(groups, kind="stable"), 0
    for size in np.bincount(groups):
        yield rows.iloc[order[start : start + size]]
        start += size


def concat_rows(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return rows one after the other; categories stay categories, unlike with `pandas.concat`."""
    if len(parts) == 1:
        return parts[0].reset_index(drop=True)
    columns: dict[str, Any] = {}
    for name in parts[0].columns:
        values = [part[name] for part in parts]
        if all(isinstance(value.dtype, pd.CategoricalDtype) for value in values):
            columns[name] = union_categoricals(values)
        else:
            columns[name] = pd.concat(values, ignore_index=True)
    return pd.DataFrame(columns)


def constant(like: pd.Series, value: str, size: int) -> Any:
    """Return a column of one value, with the categories of another column if that has any."""
    if not isinstance(like.dtype, pd.CategoricalDtype):
        return np.full(size, value, dtype=object)
    return pd.Categorical.from_codes(np.full(size, like.cat.categories.get_loc(value)), dtype=like.dtype)


def with_usual_types(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows as `evaluate` returns them: texts that are no categories, and integers of 64 bits."""
    small = [name for name in rows.columns if rows[name].dtype.kind == "i"]
    return with_plain_texts(rows).astype(dict.fromkeys(small, np.int64))


def with_plain_texts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its categories as texts: tables are small, and easier to merge."""
    names = [name for name in table.columns if isinstance(table[name].dtype, pd.CategoricalDtype)]
    return table.astype(dict.fromkeys(names, str))
