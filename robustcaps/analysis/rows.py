"""Rows of many cells in little memory: names as categories, counts as small integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.api.types import union_categoricals

from robustcaps.suite.spec import WORST_CASE

RESERVED_CATEGORIES = {"attack": (WORST_CASE,), "surrogate": ("",), "violation": ("",)}
"""Values that tables add to a column later: they are categories from the start, so that parts can be joined."""


def join_tables(tables: Sequence[pa.Table]) -> pd.DataFrame:
    """Return the rows of cells one after the other, with texts as categories and integers in 32 bits where they fit."""
    joined = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
    for place, field in enumerate(joined.schema):
        if pa.types.is_int64(field.type) and _fits_32_bits(joined.column(place)):
            joined = joined.set_column(place, field.name, joined.column(place).cast(pa.int32()))
    rows: pd.DataFrame = joined.to_pandas(split_blocks=True, self_destruct=True)
    for name, reserved in RESERVED_CATEGORIES.items():
        if name in rows:
            missing = [value for value in reserved if value not in rows[name].cat.categories]
            rows[name] = rows[name].cat.add_categories(missing)
    return rows


def _fits_32_bits(column: pa.ChunkedArray) -> bool:
    """Return whether all values of a column of integers fit."""
    found = pc.min_max(column).as_py()
    limits = np.iinfo(np.int32)
    return found["min"] is not None and limits.min <= found["min"] and found["max"] <= limits.max


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
    small = [name for name in rows.columns if rows[name].dtype == np.int32]
    return with_plain_texts(rows).astype(dict.fromkeys(small, np.int64))


def with_plain_texts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its categories as texts: tables are small, and easier to merge."""
    names = [name for name in table.columns if isinstance(table[name].dtype, pd.CategoricalDtype)]
    return table.astype(dict.fromkeys(names, str))
