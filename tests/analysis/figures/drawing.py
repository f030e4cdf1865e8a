"""Figures of attacks, from rows alone."""

from __future__ import annotations

from robustcaps.analysis.figures import attack_figures
from robustcaps.analysis.figures.curves import draw_accuracy, draw_targeted, has_curve
from robustcaps.analysis.tables.attack_tables import ATTACK_TABLES, AttackRows


def draw(rows, *, published=False):
    """Return the figures of these rows by name."""
    attacks = AttackRows(rows)
    tables = {table.name: table.tabulate(attacks) for table in ATTACK_TABLES}
    return {name: make() for name, make in attack_figures(attacks, tables, published=published).items()}


def draw_all_curves(table, *, published=False):
    """Return (name, figure) of every goal that a summary has curves for."""
    figures = {"accuracy": draw_accuracy, "targeted": draw_targeted}
    return [(name, make(table, published=published)) for name, make in figures.items() if has_curve(table, name)]
