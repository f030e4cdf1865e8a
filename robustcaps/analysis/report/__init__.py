"""The report: one HTML page that needs nothing else, with the figures, the numbers and how they came about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from robustcaps.analysis.claims import glance
from robustcaps.analysis.tables.diagnoses import tabulate_verdicts
from robustcaps.analysis.tables.summary import MEASURES
from robustcaps.diagnostics.kinds.overlap import PUBLISHED


def render_report(
    record: dict[str, Any],
    table: pd.DataFrame,
    violations: pd.DataFrame,
    figures: list[Path],
    findings: list[str],
    checks: pd.DataFrame,
    gradients: pd.DataFrame,
    asked: Mapping[str, pd.DataFrame],
) -> str:
    """Return the page for a run: its record, its summary table, broken rules, its SVG figures, and what it found.

    `checks` are the rows of verdicts, `gradients` the table of gradients by loss, `asked` those of detection,
    overlap and views by name; each may be empty.
    """
    pictures = [(path.stem, _inline(path)) for path in figures if path.suffix == ".svg"]
    return _template("page.html").render(
        record=record,
        title=record["suite"]["title"] or record["suite"]["name"],
        sections=list(_sections(table)),
        violations=violations.to_dict("records"),
        figures=pictures,
        findings=findings,
        verdicts=tabulate_verdicts(checks).to_dict("records"),
        flagged=[] if checks.empty else checks[checks["flagged"]].to_dict("records"),
        gradients=gradients.to_dict("records"),
        asked={name: answers.to_dict("records") for name, answers in asked.items()},
        published_overlap=PUBLISHED,
        failed=[cell for cell in record["cells"] if cell["status"] != "finished"],
    )


def render_overview(collection: Mapping[str, Any], suites: Sequence[Mapping[str, Any]], claims: pd.DataFrame) -> str:
    """Return the page above the suites of a collection: what papers claim and what was found, then each suite."""
    found = dict(claims["finding"].value_counts())
    return _template("overview.html").render(
        title=collection["title"] or collection["name"],
        suites=suites,
        glance=glance(claims),
        claims=claims.to_dict("records"),
        counts={word: found.get(word, 0) for word in ("agrees", "differs", "undecided")},
    )


def _template(name: str) -> jinja2.Template:
    """Return a page that escapes whatever it is given."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template(name)


def _inline(path: Path) -> Markup:
    """Return a drawing as markup: it was written by our own figures, which escape what they are given."""
    text = path.read_text(encoding="utf-8")
    return Markup(text[text.index("<svg") :])  # noqa: S704


def _sections(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one grid per (dataset, norm, unit, goal): a line per model and attack, a column per eps."""
    if table.empty:
        return []
    sections = []
    for (data, norm, unit), part in table.groupby(["data", "norm", "unit"], sort=False):
        for goal, (rate, title) in MEASURES.items():
            chosen = part[part["goal"] == goal]
            if not chosen.empty:
                sweep = sorted(chosen["eps"].unique())
                lines = [
                    _line(names, group, rate, sweep) for names, group in chosen.groupby(["model", "attack"], sort=False)
                ]
                sections.append(
                    {"title": f"{data}: {title}", "budget": f"{norm}, {unit}", "sweep": sweep, "lines": lines}
                )
    return sections


def _line(names: Any, group: pd.DataFrame, rate: str, sweep: list[float]) -> dict[str, Any]:
    """Return a line of a grid: for each eps (value, low, high) or None."""
    by_eps = {row["eps"]: tuple(row[f"{rate}{end}"] for end in ("", "_low", "_high")) for _, row in group.iterrows()}
    cost = f"{group['forwards'].sum():.1f} / {group['backwards'].sum():.1f}"
    model, attack = names
    return {
        "model": model,
        "attack": attack,
        "n": int(group["n"].max()),
        "cost": cost,
        "invalid": int(group["invalid"].sum()),
        "cells": [by_eps.get(eps) for eps in sweep],
    }
