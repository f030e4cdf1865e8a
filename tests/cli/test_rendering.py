"""What the terminal shows of the files that were written."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from robustcaps.cli.rendering import MAX_LISTED_FILES, show_files


def shown(files: list[Path]) -> list[str]:
    output = io.StringIO()
    show_files(Console(file=output, width=200), files)
    return output.getvalue().splitlines()


def test_few_files_are_listed_one_by_one():
    files = [Path("o") / f"table.{ending}" for ending in ("csv", "md")]
    assert shown(files) == ["Written:", "  o/table.csv", "  o/table.md"]


def test_many_files_are_grouped_by_folder_and_endings():
    tables = [Path("o") / f"table-{number}.{ending}" for number in range(MAX_LISTED_FILES) for ending in ("csv", "md")]
    names = ", ".join(f"table-{number}" for number in range(MAX_LISTED_FILES))
    files = [*tables, Path("o/figures/cost.png"), Path("o/report.html")]
    assert shown(files) == ["Written:", f"  o: {names} (csv, md)", "  o/figures/cost.png", "  o/report.html"]
