"""What is registered: models, datasets, attacks and checks with their options, and the shipped weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.generate.markdown import code, plain, table
from robustcaps.attacks.violations import CELL_VIOLATIONS, Violation
from robustcaps.cli.commands.listing import HARNESS_PARAMETERS
from robustcaps.diagnostics.kinds.base import all_kinds
from robustcaps.models.zoo import shipped_cards
from robustcaps.options import options_schema, validate_options
from robustcaps.registry import ATTACKS, DATASETS, DIAGNOSTICS, MODELS, Entry, Registry
from robustcaps.suite.packaged import packaged_suites
from robustcaps.suite.spec import load_collection


def _entries(registry: Registry[Any], pattern: str = "*") -> list[Entry[Any]]:
    """Return the built-in entries whose name matches."""
    found = [registry.entry(name) for name in registry.names(pattern)]
    return [entry for entry in found if entry.built_in]


def _options(entry: Entry[Any], kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and description of each option."""
    for name, field in options_schema(entry.factory, HARNESS_PARAMETERS[kind]).model_fields.items():
        default = "required" if field.is_required() else code(repr(field.get_default()))
        yield code(name), default, plain(field.description or "")


def _described(kind: str, entries: list[Entry[Any]]) -> str:
    """Return a section per entry: what it is, and its options."""
    parts = []
    for entry in entries:
        parts += [f"### {code(entry.name)}", "", plain(entry.help), ""]
        options = list(_options(entry, kind))
        parts += [table(["option", "default", "meaning"], options)] if options else []
    return "\n".join(parts)


def models() -> str:
    """Return every model with its options."""
    return _described("models", _entries(MODELS))


def datasets() -> str:
    """Return every dataset with its options."""
    return _described("datasets", _entries(DATASETS))


def attacks() -> str:
    """Return our own attacks with their options."""
    own = [entry for entry in _entries(ATTACKS) if "." not in entry.name]
    return _described("attacks", own)


def attack_overview() -> str:
    """Return our own attacks, a line each: norms, goals, what they are."""
    rows = []
    for entry in _entries(ATTACKS):
        if "." not in entry.name:
            required = {"surrogate": "cnn"} if entry.name == "transfer" else {}
            attack = entry.factory(**validate_options(entry.factory, required, where=entry.name))
            goals = ", ".join(goal.__name__.lower() for goal in attack.goals)
            rows.append([f"[{code(entry.name)}](#{entry.name})", ", ".join(attack.norms), goals, plain(entry.help)])
    return table(["attack", "norms", "goals", "what it is"], rows)


def library_attacks() -> str:
    """Return the attacks of other libraries, a line each."""
    rows = []
    for entry in (*_entries(ATTACKS, "torchattacks.*"), *_entries(ATTACKS, "foolbox.*")):
        options = ", ".join(f"{name[1:-1]} = {default.strip('`')}" for name, default, _ in _options(entry, "attacks"))
        rows.append([code(entry.name), code(options)])
    return table(["attack", "options and defaults"], rows)


def checks() -> str:
    """Return every check of a verdict with its options."""
    rows = []
    for entry in _entries(DIAGNOSTICS):
        options = "; ".join(
            f"{name} = {default}: {text}" if text else f"{name} = {default}"
            for name, default, text in _options(entry, "diagnostics")
        )
        rows.append([code(entry.name), plain(entry.help), options])
    return table(["check", "flags when", "options"], rows)


def kinds() -> str:
    """Return every kind of diagnostic: its tables, and what its numbers mean."""
    rows = [[code(kind.name), plain(kind.title), plain(kind.note)] for kind in all_kinds()]
    return table(["`use`", "question", "how to read the numbers"], rows)


def violations() -> str:
    """Return the rules that an attack can break."""
    rows = [[code(each), plain(f"The attack {each.sentence}."), _consequence(each)] for each in Violation]
    return table(["violation", "what happened", "consequence"], rows)


def _consequence(violation: Violation) -> str:
    return "the cell fails" if violation in CELL_VIOLATIONS else "the sample counts as not fooled"


def weights() -> str:
    """Return the shipped weights with their accuracy and the command that made them."""
    rows = []
    for card in shipped_cards():
        low, high = (100 * end for end in card.interval)
        accuracy = f"{100 * card.accuracy:.2f} ({low:.2f}-{high:.2f})"
        robust = (
            "" if card.robust_accuracy is None else f"{100 * card.robust_accuracy:.1f} (eps {card.adversary_eps:g})"
        )
        routing = card.routing.status if card.routing else ""
        columns = [card.data, code(card.name), f"{card.parameters:,}", accuracy, f"{card.n_test:,}", robust, routing]
        rows.append([*columns, code(card.command)])
    numeric = ["parameters", "test accuracy % (Wilson 95 %)", "n", "under PGD %"]
    return table(["data", "model", *numeric, "routing", "made by"], rows, numeric=numeric)


def suites() -> str:
    """Return the suites that are part of the package."""
    rows = []
    for name, path in packaged_suites().items():
        rows.append([code(name), plain(load_collection(path).title)])
    return table(["suite", "what it measures"], rows)
