from __future__ import annotations

import pandas as pd

from robustcaps.analysis.figures.selection import MAX_DRAWN, describe_selection, select_drawn
from robustcaps.suite.spec import WORST_CASE


def table(models: int, attacks: int) -> pd.DataFrame:
    """Return a table in which later models are more robust and later attacks weaker."""
    return pd.DataFrame(
        {
            "model": f"m{model}",
            "attack": f"a{attack}" if attack < attacks - 1 else WORST_CASE,
            "accuracy": 0.01 * model + 0.001 * attack,
        }
        for model in range(models)
        for attack in range(attacks)
    )


def test_small_tables_are_drawn_whole():
    whole = table(MAX_DRAWN, MAX_DRAWN)
    drawn = select_drawn(whole)
    assert len(drawn) == len(whole) and describe_selection(whole, drawn) == ""


def test_of_many_the_strongest_attacks_the_worst_case_and_the_most_robust_models_are_drawn():
    whole = table(30, 40)
    drawn = select_drawn(whole)
    assert set(drawn["attack"]) == {WORST_CASE, *(f"a{place}" for place in range(MAX_DRAWN - 1))}
    assert set(drawn["model"]) == {f"m{place}" for place in range(30 - MAX_DRAWN, 30)}
    note = describe_selection(whole, drawn)
    assert "12 of 30 models" in note and "12 of 40 attacks" in note
