"""robustcaps list."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from robustcaps.cli.escaping import escape
from robustcaps.cli.options import Plugins, console, examples, load_plugins
from robustcaps.errors import UserError, did_you_mean
from robustcaps.registry import ATTACKS, DATASETS, DIAGNOSTICS, KINDS, MODELS, Registry

HARNESS_PARAMETERS: dict[str, frozenset[str]] = {
    "models": frozenset({"classes", "channels", "size"}),
    "datasets": frozenset({"split", "limit", "data_dir", "progress"}),
    "attacks": frozenset(),
    "diagnostics": frozenset(),
}
"""Parameters that the harness passes itself: not options."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    calls = ("robustcaps list", "robustcaps list suites", "robustcaps list attacks 'foolbox.*'")
    app.command("list", epilog=examples(*calls))(list_registered)


def list_registered(
    what: Annotated[str, typer.Argument(help="models, datasets, attacks, diagnostics, suites or all.")] = "all",
    pattern: Annotated[
        str, typer.Argument(help="Only names that match, e.g. 'foolbox.*'.", show_default="all names")
    ] = "*",
    plugin: Plugins = None,
) -> None:
    """List models, datasets, attacks and diagnostics with their options, and the packaged suites."""
    registries: dict[str, Registry[Any]] = {
        "models": MODELS,
        "datasets": DATASETS,
        "attacks": ATTACKS,
        "diagnostics": DIAGNOSTICS,
    }
    choices = (*registries, "suites", "all")
    if what not in choices:
        raise UserError(f"list: there are no '{what}'. {did_you_mean(what, choices)}")
    load_plugins(plugin)
    for name, registry in registries.items():
        if what in (name, "all"):
            _show_registry(console, name, registry, pattern)
    if what in ("diagnostics", "all") and pattern == "*":
        kinds = ", ".join(KINDS.names_in_order())
        console.print(f"Kinds of diagnostics for suites ([[diagnostics]] use = ...): {kinds}", markup=False)
    if what in ("suites", "all"):
        _show_suites(console, pattern)
    if what in ("models", "all") and pattern == "*":
        _show_shipped_weights(console)


def _show_registry(console: Console, kind: str, registry: Registry[Any], pattern: str) -> None:
    """Print the entries of a registry: name and description on one line, options indented below."""
    console.print(f"[bold underline]{kind}[/]")
    for name in registry.names(pattern):
        entry = registry.entry(name)
        origin = "" if entry.built_in else f" (plugin: {entry.source})"
        console.print(f"[bold]{escape(name)}[/]  {escape(entry.help + origin)}", soft_wrap=True, highlight=False)
        for line in _options(entry.factory, HARNESS_PARAMETERS[kind]):
            console.print(f"    {escape(line)}", soft_wrap=True, highlight=False, style="dim")
    if pattern == "*":
        for line in registry.missing():
            console.print(line, soft_wrap=True, markup=False)
    console.print()


def _show_suites(console: Console, pattern: str) -> None:
    """Print the packaged suites with their titles."""
    from robustcaps.suite.packaged import packaged_suites
    from robustcaps.suite.spec import load_collection

    console.print("[bold underline]suites[/]")
    for name, path in packaged_suites().items():
        if fnmatch.fnmatch(name, pattern):
            title = load_collection(path).title
            console.print(f"[bold]{escape(name)}[/]  {escape(title)}", soft_wrap=True, highlight=False)
    console.print()


def _options(factory: Callable[..., Any], harness: frozenset[str]) -> list[str]:
    """Return a factory's options with their defaults; one with a description gets a line of its own."""
    from robustcaps.options import options_schema

    fields = options_schema(factory, harness).model_fields
    texts = {name: name if field.is_required() else f"{name}={field.get_default()!r}" for name, field in fields.items()}
    described = [f"{texts[name]}: {field.description}" for name, field in fields.items() if field.description]
    plain = ", ".join(texts[name] for name, field in fields.items() if not field.description)
    return [*described, plain] if plain else described


def _show_shipped_weights(console: Console) -> None:
    """Print the shipped weights: their test accuracy, and whether the routing of capsules is alive."""
    from robustcaps.cli.rendering import show_grid
    from robustcaps.models.zoo import shipped_cards
    from robustcaps.utils.grid import make_grid

    columns = ["data", "model", "parameters", "test accuracy % (Wilson 95 %)", "n", "routing"]
    rows = []
    for card in shipped_cards():
        low, high = card.interval
        accuracy = f"{100 * card.accuracy:.2f} ({100 * low:.2f}-{100 * high:.2f})"
        routing = card.routing.status if card.routing else ""
        rows.append([card.data, card.name, f"{card.parameters:,}", accuracy, f"{card.n_test:,}", routing])
    show_grid(console, make_grid(columns, rows, title="shipped weights", numeric=columns[2:5]))
