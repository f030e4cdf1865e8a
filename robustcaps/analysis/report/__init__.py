"""The report: one self-contained HTML page with the figures, the numbers and how they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
from markupsafe import Markup

from robustcaps.analysis.claims import summarise_claims
from robustcaps.analysis.tables.robust_auc import AUC_NOTE, auc_grids
from robustcaps.analysis.tables.summary import summary_grids
from robustcaps.utils.grid import Section
from robustcaps.utils.printable import printable

if TYPE_CHECKING:
    from robustcaps.analysis.results import Results


FIGURE_FOLDERS = ("figures", "inspection")
"""Where `run` and `figures`, and where `inspect` draw."""


def render_report(results: Results) -> str:
    """Return the page of a run: findings, figures (SVG files drawn before), numbers, and how they were made."""
    record = results.record
    drawings = [path for folder in FIGURE_FOLDERS for path in sorted((results.out / folder).glob("*.svg"))]
    return _template("page.html").render(
        record=record,
        title=record["suite"]["title"] or record["suite"]["name"],
        violations=results.violations.to_dict("records"),
        findings=results.findings,
        figures=[(path.stem, _inline(path)) for path in drawings],
        sections=[*_attack_sections(results.tables), *results.sections()],
        problems=results.problems,
    )


def _attack_sections(tables: Mapping[str, pd.DataFrame]) -> list[Section]:
    """Return robust AUC by group, if there are groups, and the summary table, as sections."""
    sections = []
    if not tables["auc"].empty:
        sections.append(Section("Robust AUC of groups of models", AUC_NOTE, auc_grids(tables["auc"])))
    if not tables["table"].empty:
        note = "Passes: forward / backward passes per sample over the whole sweep. Invalid: rows that broke a rule."
        grids = summary_grids(tables["table"], details=True)
        sections.append(Section("Accuracy and success under attack", note, grids))
    return sections


def render_overview(collection: Mapping[str, Any], suites: Sequence[Mapping[str, Any]], claims: pd.DataFrame) -> str:
    """Return the page above the suites of a collection: what papers claim and what was found, then each suite."""
    counts = dict(claims["finding"].value_counts())
    return _template("overview.html").render(
        title=collection["title"] or collection["name"],
        suites=suites,
        summary=summarise_claims(claims),
        claims=claims.to_dict("records"),
        counts={finding: counts.get(finding, 0) for finding in ("agrees", "differs", "undecided")},
    )


def _template(name: str) -> jinja2.Template:
    """Return a page that escapes every value."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_without_control_characters,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)


def _without_control_characters(value: object) -> object:
    """Return a value of a page with control characters as escapes; markup of our own stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _inline(path: Path) -> Markup:
    """Return a drawing as markup: it was written by our own figures, which escape every text."""
    text = path.read_text(encoding="utf-8")
    return Markup(text[text.index("<svg") :])  # noqa: S704
