"""The lists that `robustcaps list` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from robustcaps.errors import UserError, did_you_mean
from robustcaps.models.zoo import shipped
from robustcaps.options import options_schema
from robustcaps.registry import ATTACKS, DATASETS, MODELS, Registry, load_plugin

GIVEN: dict[str, frozenset[str]] = {
    "models": frozenset({"classes", "channels", "size"}),
    "datasets": frozenset({"split", "limit", "data_dir", "progress"}),
    "attacks": frozenset(),
}
"""Parameters that the harness passes itself: not options."""


def show_lists(console: Console, what: str, plugins: Sequence[Path]) -> None:
    """Print what is registered, kind by kind."""
    registries: dict[str, Registry[Any]] = {"models": MODELS, "datasets": DATASETS, "attacks": ATTACKS}
    if what not in (*registries, "all"):
        raise UserError(f"list: there are no '{what}'. {did_you_mean(what, (*registries, 'all'))}")
    for path in plugins:
        load_plugin(path)
    for kind, registry in registries.items():
        if what in (kind, "all"):
            console.print(_list(kind, registry))
    if what in ("models", "all"):
        console.print(_shipped())


def _list(kind: str, registry: Registry[Any]) -> Table:
    grid = Table(title=kind, title_justify="left")
    for column in ("name", "what it is", "options"):
        grid.add_column(column, no_wrap=column == "name")
    for name in registry.names():
        entry = registry.entry(name)
        origin = "" if entry.built_in else f" (plugin: {entry.source})"
        fields = options_schema(entry.factory, GIVEN[kind]).model_fields
        options = ", ".join(f"{option}={field.get_default()!r}" for option, field in fields.items())
        grid.add_row(escape(name), escape(entry.help + origin), escape(options))
    return grid


def _shipped() -> Table:
    grid = Table(title="shipped weights", title_justify="left")
    for column in ("data", "model", "parameters", "test accuracy (Wilson 95 %)"):
        grid.add_column(column)
    for card in shipped():
        low, high = card.interval
        accuracy = f"{100 * card.accuracy:.2f} % ({100 * low:.2f} to {100 * high:.2f}, n = {card.n_test})"
        grid.add_row(card.data, card.name, f"{card.parameters:,}", accuracy)
    return grid
