"""The comparison of two out folders, and how it is shown: sentences, tables, Markdown and a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from robustcaps.analysis.collection import CollectionResults, load_results
from robustcaps.analysis.results import Results
from robustcaps.analysis.run_comparison.changes import data_digests, list_changes
from robustcaps.analysis.run_comparison.differences import HEADLINES, list_differences, most_important_first
from robustcaps.analysis.tables.comparisons import ALPHA
from robustcaps.errors import UserError
from robustcaps.utils.files import make_folder, write_atomically
from robustcaps.utils.grid import Grid, GridCell, Section, format_p, grids_markdown, make_grid
from robustcaps.utils.printable import printable

MAX_SENTENCES = 5
MAX_LINES = 20
"""Longer tables are folded away in the page, and cut in the terminal."""
PAGE, MARKDOWN = "compare.html", "compare.md"
NOTE = (
    "Second minus first, in percentage points. Paired: the same samples; 95 % intervals of a paired bootstrap, p of "
    "McNemar's exact test or, for means, of a paired t-test. Unpaired: from the tables' intervals. p by Holm."
)


@dataclass(frozen=True, eq=False)
class RunComparison:
    """What changed from a first run to a second one."""

    first: Path
    second: Path
    changes: pd.DataFrame
    """One line per model, attack, dataset, setting or version that differs."""
    differences: pd.DataFrame
    """One line per measure that both runs have: first, second, their difference with interval and p, paired or not."""
    notes: tuple[str, ...] = ()
    """What was not compared, or not sample by sample, and why."""

    @cached_property
    def significant(self) -> pd.DataFrame:
        """The significant differences: robust AUC and clean accuracy first, then cells, the largest first."""
        return self.differences[self.differences["p"] < ALPHA]

    @property
    def findings(self) -> list[str]:
        """Sentences: the most important differences first, and one line for all that are not significant."""
        count, total = len(self.significant), len(self.differences)
        if total == 0:
            return ["The runs have no cell in common."]
        sentences = [_sentence(line) for line in self.significant.head(MAX_SENTENCES).to_dict("records")]
        if count > MAX_SENTENCES:
            sentences.append(f"{count - MAX_SENTENCES} more significant differences are in the table.")
        if count < total:
            rest = self.differences[~(self.differences["p"] < ALPHA)]
            same = int((rest["difference"] == 0).sum())
            largest = 100 * rest["difference"].abs().max()
            others = f", the largest difference is {largest:.1f} points" if same < len(rest) else ""
            sentences.append(
                f"No significant difference in {len(rest)} of {total} comparisons: {same} are exactly equal{others}."
            )
        return sentences

    def sections(self) -> list[Section]:
        """Return changes and differences for readers."""
        headlines = self.differences[self.differences["measure"].isin(HEADLINES)]
        cells = self.differences[~self.differences["measure"].isin(HEADLINES)]
        significant = cells[cells["p"] < ALPHA]
        sections = []
        if len(headlines):
            sections.append(
                Section("Robust AUC and clean accuracy", NOTE, [_difference_grid(headlines, of_cells=False)])
            )
        if len(cells):
            shown = [_difference_grid(significant.head(MAX_LINES))] if len(significant) else []
            title = f"Cells that differ significantly ({len(significant)} of {len(cells)})"
            every = _difference_grid(cells, title=f"All {len(cells)} cells that both runs have")
            sections.append(Section(title, "", shown, folded=[every]))
        if len(self.changes):
            grids = [_change_grid(self.changes)]
            sections.append(Section("Settings and versions", "Of cells with the same names.", grids))
        return sections

    def grids(self) -> list[Grid]:
        """Return the tables for the terminal and for Markdown, without those that a page folds away."""
        return [
            make_grid(grid.columns, grid.rows, title=f"{section.title}:", note=section.note, numeric=grid.numeric)
            for section in self.sections()
            for grid in section.grids
        ]

    def markdown(self) -> str:
        """Return the comparison as Markdown."""
        lines = [f"# {printable(self.title)}\n", *(f"- {printable(text)}" for text in [*self.findings, *self.notes])]
        return "\n".join(lines) + f"\n\n{grids_markdown(self.grids())}"

    @property
    def title(self) -> str:
        """What is compared."""
        return f"From {self.first} to {self.second}"

    def html(self) -> str:
        """Return the comparison as a page."""
        from robustcaps.analysis.report.rendering import render  # noqa: PLC0415  jinja2 is needed here only

        return render(
            "compare.html", title=self.title, findings=self.findings, notes=self.notes, sections=self.sections()
        )

    def write(self, out: Path | str | None = None) -> list[Path]:
        """Write compare.html and compare.md into a folder, by default that of the second run; return the files."""
        folder = self.second if out is None else Path(out)
        make_folder(folder)
        for name, text in ((PAGE, self.html()), (MARKDOWN, self.markdown())):
            write_atomically(folder / name, text)
        return [folder / PAGE, folder / MARKDOWN]


def compare(first: Path | str, second: Path | str) -> RunComparison:
    """Return what changed from one run to another, or from one collection of suites to another.

    Args:
        first: The out folder of a run, or a folder with published tables.
        second: The same of a later run.

    Returns:
        A `RunComparison`: `findings`, the tables `changes` and `differences`, and `write()` for a page.

    Example:
        comparison = rc.compare("out/before", "out/after")
        comparison.differences.query("p < 0.05")
    """
    paths = Path(first), Path(second)
    if paths[0].resolve() == paths[1].resolve():
        raise UserError(f"compare: {first} and {second} are the same folder.")
    pairs, notes = _pair_runs(*(load_results(path) for path in paths))
    changes, differences = [], []
    for ours, theirs in pairs:
        changes.append(list_changes(ours.record, theirs.record))
        same, unpaired = _same_samples(ours, theirs)
        notes += unpaired
        differences.append(list_differences(ours, theirs, same))
    return RunComparison(
        *paths,
        pd.concat(changes, ignore_index=True).drop_duplicates(ignore_index=True),
        most_important_first(pd.concat(differences, ignore_index=True)),
        tuple(notes),
    )


def _pair_runs(
    first: Results | CollectionResults, second: Results | CollectionResults
) -> tuple[list[tuple[Results, Results]], list[str]]:
    """Return the runs to compare with each other, and a note on suites of collections that only one has."""
    if isinstance(first, Results) and isinstance(second, Results):
        return [(first, second)], []
    if isinstance(first, Results) or isinstance(second, Results):
        single, other = (first, second) if isinstance(first, Results) else (second, first)
        raise UserError(f"compare: {other.out} is a collection of suites, {single.out} a single run.")
    shared = [name for name in first.suites if name in second.suites]
    if not shared:
        raise UserError(f"compare: {first.out} and {second.out} have no suite in common.")
    notes = [
        f"Only in {here.out}: {', '.join(missing)}."
        for here, there in ((first, second), (second, first))
        if (missing := [name for name in here.suites if name not in there.suites])
    ]
    return [(first.suites[name], second.suites[name]) for name in shared], notes


def _same_samples(first: Results, second: Results) -> tuple[list[str], list[str]]:
    """Return the datasets with the same samples in both runs, and notes on what is compared from tables instead."""
    published = [str(results.out) for results in (first, second) if not results.has_rows]
    missing = [
        f"{results.out}: {len(results.problems)} cells are missing." for results in (first, second) if results.problems
    ]
    if published:
        return [], [*missing, f"Compared from tables, not sample by sample: {', '.join(published)} has no cells."]
    ours, theirs = (data_digests(results.record) for results in (first, second))
    shared = [name for name in ours if name in theirs]
    other = [name for name in shared if ours[name] != theirs[name]]
    note = [f"Compared from tables, not sample by sample: the samples of {', '.join(other)} differ."] if other else []
    return [name for name in shared if name not in other], [*missing, *note]


def _sentence(line: Mapping[Any, Any]) -> str:
    """Return a difference as a sentence."""
    attack = "" if line["measure"] in HEADLINES else f" under {line['attack']} at eps {line['eps']:g}"
    setting = "" if pd.isna(line["norm"]) else f" ({line['norm']})"
    seed = "" if pd.isna(line["seed"]) or line["seed"] == 0 else f", seed {line['seed']:g}"
    direction = "rose" if line["difference"] > 0 else "fell"
    low, high = (f"{100 * line[f'difference_{end}']:+.1f}" for end in ("low", "high"))
    return (
        f"The {line['measure']} of {line['model']} on {line['data']}{attack}{setting} {direction} from "
        f"{100 * line['first']:.1f} % to {100 * line['second']:.1f} % (95 % CI of the difference {low} to {high}; "
        f"{format_p(line['p'])}, n = {line['n']:g}{seed}{'' if line['paired'] else ', unpaired'})."
    )


def _difference_grid(table: pd.DataFrame, *, title: str = "", of_cells: bool = True) -> Grid:
    """Return differences for readers, significant ones in bold."""
    numbers = ["first %", "second %", "difference", "n"]
    columns = ["measure", "data", "model", *(["attack", "eps"] if of_cells else ["norm"]), *numbers, "p"]
    rows = [list(_difference_cells(line, of_cells)) for line in table.to_dict("records")]
    return make_grid(columns, rows, title=title, numeric=numbers)


def _difference_cells(line: Mapping[Any, Any], of_cell: bool) -> Iterator[GridCell | str]:
    yield from (str(line[name]) for name in ("measure", "data", "model"))
    if of_cell:
        yield from (str(line["attack"]), f"{line['eps']:g} {line['norm']}")
    else:
        yield "" if pd.isna(line["norm"]) else str(line["norm"])
    yield from (f"{100 * line[side]:.1f}" for side in ("first", "second"))
    interval = " to ".join(f"{100 * line[f'difference_{end}']:+.1f}" for end in ("low", "high"))
    yield GridCell(f"{100 * line['difference']:+.1f}", interval)
    yield f"{line['n']:g}"
    yield GridCell(format_p(line["p"]) + ("" if line["paired"] else ", unpaired"), bold=line["p"] < ALPHA)


def _change_grid(changes: pd.DataFrame) -> Grid:
    columns = ["what", "name", "setting", "first", "second"]
    return make_grid(columns, [[str(line[name]) for name in columns] for line in changes.to_dict("records")])
