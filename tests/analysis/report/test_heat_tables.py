from __future__ import annotations

import pandas as pd

from robustcaps.analysis.report import heat_tables
from robustcaps.analysis.report.heat_tables import target_tables, transfer_tables
from robustcaps.analysis.tables.matrices import target_matrix, transfer_matrix
from tests.rows import rows

TARGETED = pd.concat(
    [
        rows(index=[0, 1], label=[0, 2], adv_pred=1, fooled=[True, False], goal="targeted", target=1, eps=eps)
        for eps in (0.1, 0.2)
    ]
)


def test_classes_have_their_names_in_the_order_of_their_numbers():
    table, _ = target_tables(target_matrix(TARGETED), {"d": ["zebra", "bird", "ant"]})
    assert table.columns == ["bird"] and [name for name, _ in table.rows] == ["zebra", "ant"]
    assert [cells[0].share for _, cells in table.rows] == [1.0, 0.0]
    assert table.keys == {"Dataset": "d, linf", "Model": "m", "Attack": "a", "eps": "0.1"}
    assert "n = 1" in table.rows[0][1][0].details


def test_without_names_classes_have_their_numbers():
    assert [name for name, _ in target_tables(target_matrix(TARGETED), {})[0].rows] == ["0", "2"]


def test_of_many_matrices_only_those_at_the_largest_eps_are_shown(monkeypatch):
    monkeypatch.setattr(heat_tables, "MAX_CELLS", 3)
    assert [table.keys["eps"] for table in target_tables(target_matrix(TARGETED), {})] == ["0.2"]


def test_transfer_leaves_out_what_was_not_tried():
    parts = [
        rows(
            index=[0, 1],
            label=0,
            adv_pred=[0, 1],
            fooled=[False, True],
            model=model,
            surrogate=surrogate,
            attack=surrogate,
        )
        for surrogate, model in (("a", "b"), ("b", "a"))
    ]
    (table,) = transfer_tables(transfer_matrix(pd.concat(parts)))
    shares = {name: [cell and cell.share for cell in cells] for name, cells in table.rows}
    assert set(table.columns) == {"a", "b"} and sorted(shares) == ["a", "b"]
    assert all(sorted(map(str, line)) == ["0.5", "None"] for line in shares.values())


def test_no_attacks_no_matrices():
    assert transfer_tables(pd.DataFrame()) == [] and target_tables(pd.DataFrame(), {}) == []
