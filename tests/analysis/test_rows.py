from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from robustcaps.analysis.rows import concat_rows, constant, join_tables, with_plain_texts
from robustcaps.suite.spec import WORST_CASE


def rows(attack: str, n: int = 3, **more: object) -> pd.DataFrame:
    names = {"model": "m", "attack": attack, "surrogate": ""}
    return pd.DataFrame({**names, "index": np.arange(n), "eps": 0.5, "fooled": True, **more})


def stored(frame: pd.DataFrame) -> pa.Table:
    """Return rows as the store reads them."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for place, field in enumerate(table.schema):
        if frame[field.name].dtype in ("str", "object"):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()).dictionary_encode())
    return table


def test_texts_are_categories_and_integers_are_small():
    found = join_tables([stored(rows("fgsm"))])
    assert found["attack"].dtype == "category" and WORST_CASE in found["attack"].cat.categories
    assert found["index"].dtype == np.int8
    assert (found["eps"].dtype, found["fooled"].dtype) == (np.float64, np.bool_)
    pd.testing.assert_frame_equal(with_plain_texts(found), rows("fgsm"), check_dtype=False)


def test_integers_that_do_not_fit_stay_as_they_are():
    large = join_tables([stored(rows("fgsm", queries=np.array([1, 2, 2**40])))])
    assert large["queries"].tolist() == [1, 2, 2**40]


def test_cells_with_different_names_are_joined_as_pandas_would():
    parts = [rows("fgsm"), rows("bim", 2), rows("fgsm", 1)]
    expected = pd.concat(parts, ignore_index=True)
    joined = join_tables([stored(part) for part in parts])
    assert joined["attack"].dtype == "category"
    pd.testing.assert_frame_equal(with_plain_texts(joined), expected, check_dtype=False)
    again = concat_rows([joined.iloc[:3], joined.iloc[3:]])
    assert again["attack"].dtype == "category"
    pd.testing.assert_frame_equal(again, joined)
    pd.testing.assert_frame_equal(concat_rows(parts), expected)


@pytest.mark.parametrize("kind", ["category", "str"])
def test_a_constant_has_the_categories_of_its_column(kind):
    like = pd.Series(["a", "b"], dtype=kind)
    column = pd.Series(constant(like, "b", 3))
    assert column.tolist() == ["b"] * 3 and column.dtype == like.dtype
