"""The report: one self-contained HTML page of a run, and the overview page of a collection."""

from robustcaps.analysis.report.page import render_overview, render_report

__all__ = ["render_overview", "render_report"]
