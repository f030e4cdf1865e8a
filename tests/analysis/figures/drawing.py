"""Figures of attacks, from rows alone."""

from __future__ import annotations

from robustcaps.analysis.figures import draw_attack_figures
from robustcaps.analysis.tables.attack_tables import ATTACK_TABLES, AttackRows


def draw(rows, *, published=False):
    """Return the figures of these rows by name."""
    attacks = AttackRows(rows)
    tables = {table.name: table.tabulate(attacks) for table in ATTACK_TABLES}
    return dict(draw_attack_figures(attacks, tables, published=published))
