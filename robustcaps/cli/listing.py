"""The lists that `robustcaps list` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from robustcaps.errors import UserError, did_you_mean
from robustcaps.models.zoo import shipped
from robustcaps.options import options_schema
from robustcaps.registry import ATTACKS, DATASETS, DIAGNOSTICS, MODELS, Registry, load_plugin

GIVEN: dict[str, frozenset[str]] = {
    "models": frozenset({"classes", "channels", "size"}),
    "datasets": frozenset({"split", "limit", "data_dir", "progress"}),
    "attacks": frozenset(),
    "diagnostics": frozenset(),
}
"""Parameters that the harness passes itself: not options."""


def show_lists(console: Console, what: str, pattern: str, plugins: Sequence[Path]) -> None:
    """Print what is registered under names that match a pattern, kind by kind."""
    registries: dict[str, Registry[Any]] = {
        "models": MODELS,
        "datasets": DATASETS,
        "attacks": ATTACKS,
        "diagnostics": DIAGNOSTICS,
    }
    if what not in (*registries, "all"):
        raise UserError(f"list: there are no '{what}'. {did_you_mean(what, (*registries, 'all'))}")
    for path in plugins:
        load_plugin(path)
    for kind, registry in registries.items():
        if what in (kind, "all"):
            _show_kind(console, kind, registry, pattern)
    if what in ("models", "all") and pattern == "*":
        console.print(_shipped())


def _show_kind(console: Console, kind: str, registry: Registry[Any], pattern: str) -> None:
    """Print the things of a kind: the name and what it is on one line, its options indented below."""
    console.print(f"[bold underline]{kind}[/]")
    for name in registry.names(pattern):
        entry = registry.entry(name)
        origin = "" if entry.built_in else f" (plugin: {entry.source})"
        console.print(f"[bold]{escape(name)}[/]  {escape(entry.help + origin)}", soft_wrap=True, highlight=False)
        for line in _options(entry.factory, GIVEN[kind]):
            console.print(f"    {escape(line)}", soft_wrap=True, highlight=False, style="dim")
    if pattern == "*":
        for line in registry.missing():
            console.print(line, soft_wrap=True, markup=False)
    console.print()


def _options(factory: Callable[..., Any], given: frozenset[str]) -> list[str]:
    """Return a factory's options with their defaults; one that says what it is gets a line of its own."""
    fields = options_schema(factory, given).model_fields
    texts = {name: name if field.is_required() else f"{name}={field.get_default()!r}" for name, field in fields.items()}
    told = [f"{texts[name]}: {field.description}" for name, field in fields.items() if field.description]
    plain = ", ".join(texts[name] for name, field in fields.items() if not field.description)
    return [*told, plain] if plain else told


def _shipped() -> Table:
    grid = Table(title="shipped weights", title_justify="left")
    for column in ("data", "model", "parameters", "test accuracy (Wilson 95 %)"):
        grid.add_column(column)
    for card in shipped():
        low, high = card.interval
        accuracy = f"{100 * card.accuracy:.2f} % ({100 * low:.2f} to {100 * high:.2f}, n = {card.n_test})"
        grid.add_row(card.data, card.name, f"{card.parameters:,}", accuracy)
    return grid
