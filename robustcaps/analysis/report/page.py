"""The pages: what they show, in the order in which they show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd

from robustcaps.analysis.claims import summarise_claims
from robustcaps.analysis.report.charts import chart_cost, chart_curves, tabulate_cost, tabulate_curves
from robustcaps.analysis.report.gallery import gallery_data
from robustcaps.analysis.report.heat_tables import target_tables, transfer_tables
from robustcaps.analysis.report.provenance import attack_losses, attack_seconds, citation, describe_suite
from robustcaps.analysis.report.ranking import list_rankings
from robustcaps.analysis.report.rendering import drawings, render
from robustcaps.analysis.tables.ranking import clean_accuracy
from robustcaps.analysis.tables.robust_auc import AUC_NOTE, auc_grids
from robustcaps.analysis.tables.summary import MEASURES, summary_grids
from robustcaps.utils.grid import Section

if TYPE_CHECKING:
    from robustcaps.analysis.results import Results

DRAWN_AS_CHARTS = {"accuracy", "targeted", "cost", "transfer", "targets", "gradients", "verdicts"}
"""The figures that the page has as charts or as shaded tables; all others are shown as they were drawn."""
WITH_PUBLISHED = {"accuracy", "targeted"}
"""Those of them that have published curves beside ours, where the suite asks for it; the charts have only ours."""
EARLY_KINDS = ("gradients", "verdict")
"""The diagnostics that say how far accuracies can be trusted; those of all others come after the gallery."""
MAX_DRAWINGS = 2_000_000
"""Characters of drawings in a page; those beyond stay in their folder."""


@dataclass(frozen=True)
class PageChart:
    """A chart of the page: its id, its caption, and its specification in Vega-Lite."""

    name: str
    caption: str
    spec: Mapping[str, Any]


@dataclass(frozen=True)
class DiagnosticPart:
    """The section of a kind of diagnostic, and its charts."""

    kind: str
    section: Section
    figures: Sequence[PageChart]


def render_report(results: Results) -> str:
    """Return the page of a run: findings, ranking, charts, matrices, diagnostics, gallery, and how it was made."""
    record, tables = results.record, results.tables
    rows = results.attacks.rows
    clean = pd.DataFrame() if rows.empty else clean_accuracy(rows)
    curves = [] if rows.empty else list(_curve_figures(results, clean, "untargeted"))
    targeted = [] if rows.empty else list(_curve_figures(results, clean, "targeted"))
    costs = [] if rows.empty else list(_cost_figures(tables["table"]))
    parts = [
        DiagnosticPart(kind, section, [_figure(*chart) for chart in charts])
        for kind, section, charts in results.sections()
    ]
    parts.sort(key=lambda part: EARLY_KINDS.index(part.kind) if part.kind in EARLY_KINDS else len(EARLY_KINDS))
    figures = [*curves, *targeted, *costs, *(figure for part in parts for figure in part.figures)]
    gallery = gallery_data(results.examples(), record["classes"])
    superseded = DRAWN_AS_CHARTS - (WITH_PUBLISHED if record["suite"]["figures"].get("published") else set())
    shown, hidden = _fitting([*drawings(results.out / "figures")], leave_out=superseded)
    inspection, more_hidden = _fitting([*drawings(results.out / "inspection")])
    return render(
        "report.html",
        with_charts=bool(figures),
        with_gallery=gallery is not None,
        record=record,
        title=record["suite"]["title"] or record["suite"]["name"],
        findings=results.findings,
        rankings=list_rankings(tables),
        curves=curves,
        targeted=targeted,
        transfer=transfer_tables(tables["transfer"]),
        targets=target_tables(tables["targets"], record["classes"]),
        parts=parts,
        early_kinds=EARLY_KINDS,
        costs=costs,
        seconds=attack_seconds(record),
        gallery=gallery,
        inspection=inspection,
        drawings=shown,
        hidden=[*hidden, *more_hidden],
        attack_sections=_attack_sections(tables),
        violations=results.violations.to_dict("records"),
        problems=results.problems,
        suite=describe_suite(record),
        citation=citation(record),
        data={"figures": {figure.name: figure.spec for figure in figures}, "gallery": gallery},
    )


def _curve_figures(results: Results, clean: pd.DataFrame, goal: str) -> Iterator[PageChart]:
    """Yield the charts of a goal's rate against eps: models under one attack, and attacks on one model."""
    rate, title = MEASURES[goal]
    curves = tabulate_curves(results.tables["table"], goal, clean, attack_losses(results.record))
    if curves.empty:
        return
    yield _figure(rate, f"{title}, by model", chart_curves(curves, line="model", fixed="attack", measure=rate))
    if len(set(curves["attack"])) > 1:
        attacks = chart_curves(curves, line="attack", fixed="model", measure=rate)
        yield _figure(f"{rate}-attacks", f"{title}, by attack", attacks)


def _cost_figures(table: pd.DataFrame) -> Iterator[PageChart]:
    """Yield the chart of accuracy against cost."""
    costs = tabulate_cost(table)
    if not costs.empty:
        eps = ", ".join(f"{eps:g}" for eps in costs["eps"].unique())
        yield _figure("cost", f"Accuracy at eps {eps} against the cost of the attack", chart_cost(costs))


def _figure(name: str, caption: str, chart: alt.TopLevelMixin) -> PageChart:
    spec: dict[str, Any] = chart.to_dict()
    kept = {key: value for key, value in spec.items() if key not in ("config", "$schema")}
    return PageChart(name, caption, {**kept, "description": caption})


def _fitting(
    drawn: Sequence[tuple[str, str]], leave_out: set[str] | frozenset[str] = frozenset()
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the drawings that fit into the page, and the names of those that do not."""
    shown, hidden, size = [], [], 0
    for name, url in drawn:
        if name in leave_out:
            continue
        size += len(url)
        if size <= MAX_DRAWINGS:
            shown.append((name, url))
        else:
            hidden.append(name)
    return shown, hidden


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
    return render(
        "overview.html",
        images="data: 'self' file:",
        title=collection["title"] or collection["name"],
        suites=suites,
        summary=summarise_claims(claims),
        claims=claims.to_dict("records"),
        counts={finding: counts.get(finding, 0) for finding in ("agrees", "differs", "undecided")},
    )
