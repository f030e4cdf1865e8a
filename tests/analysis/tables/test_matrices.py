from __future__ import annotations

import pandas as pd

from robustcaps.analysis.tables.matrices import target_grids, target_matrix, transfer_grids, transfer_matrix
from robustcaps.utils.grid import grids_markdown
from tests.rows import attacked, rows


def test_transfer_is_a_line_per_surrogate_and_model():
    frame = pd.concat(
        [
            attacked("transfer a", 0.1, [True, True, False, True], surrogate="a", model="b"),
            attacked("transfer a", 0.1, [False, True, False, True], surrogate="a", model="c"),
            attacked("fgsm", 0.1, [True] * 4, model="c"),
        ]
    )
    matrix = transfer_matrix(frame).set_index(["surrogate", "model"])["success"]
    assert matrix.to_dict() == {("a", "b"): 0.75, ("a", "c"): 0.5}
    lines = grids_markdown(transfer_grids(transfer_matrix(frame))).splitlines()
    assert lines[0] == "d, untargeted, eps 0.1 (linf, pixel), fooled %:"
    assert lines[2] == "| attack | crafted on | b | c |"
    assert lines[4:] == ["| transfer a | a | 75.0 (30-95) | 50.0 (15-85) |"]


def test_a_transfer_matrix_has_its_rows_in_the_order_of_its_columns():
    pairs = [("a", "x"), ("a", "b"), ("b", "x"), ("b", "a")]  # tried on, crafted on
    hits = [True, True, False, True]
    frame = pd.concat(attacked(f"transfer {crafted}", 0.1, hits, surrogate=crafted, model=on) for on, crafted in pairs)
    assert list(transfer_matrix(frame)["surrogate"].unique()) == ["x", "a", "b"]


def test_targets_are_a_matrix_of_classes():
    frame = rows(
        index=[0, 1, 0, 1],
        label=[0, 1, 0, 1],
        target=[0, 0, 1, 1],
        adv_pred=[0, 1, 1, 1],
        fooled=[True, False, True, True],
        goal="targeted",
    )
    smaller = frame.assign(eps=0.05, fooled=False)
    page = grids_markdown(target_grids(target_matrix(pd.concat([smaller, frame])))).splitlines()
    assert page[0] == "m on d, a, eps 0.1 (linf), reached %:" and page[2] == "| class | to 0 | to 1 |"
    assert page[4:] == ["| 0 | 100 | 100 |", "| 1 | 0 | 100 |"]
    matrix = target_matrix(frame).set_index(["label", "target"])["success"]
    assert matrix.to_dict() == {(0, 0): 1.0, (1, 0): 0.0, (0, 1): 1.0, (1, 1): 1.0}
