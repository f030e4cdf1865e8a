"""Writes docs/generated/NAME.md: the tables that pages of the manual include."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from docs.generate import catalogue, results
from docs.generate.command_line import command_line
from docs.generate.suite_keys import suite_keys

PAGES: dict[str, Callable[[], str]] = {
    "attacks": catalogue.attacks,
    "attack-overview": catalogue.attack_overview,
    "library-attacks": catalogue.library_attacks,
    "checks": catalogue.checks,
    "kinds": catalogue.kinds,
    "models": catalogue.models,
    "datasets": catalogue.datasets,
    "suites": catalogue.suites,
    "violations": catalogue.violations,
    "weights": catalogue.weights,
    "suite-keys": suite_keys,
    "command-line": command_line,
    "leaderboard": results.leaderboard,
    "claims": results.claim_summary,
    "routing-answer": results.routing_answer,
    "findings": lambda: results.findings().replace("](docs/", "](/"),
    **{f"claims-{name}": partial(results.claims_of, name) for name in results.PAPERS},
}


def write_pages(folder: Path) -> None:
    """Write all generated tables into a folder; unchanged files keep their time, so that Sphinx skips them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        path, text = folder / f"{name}.md", make().rstrip() + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
