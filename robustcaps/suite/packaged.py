"""The suites that come with the package: `robustcaps run quick` needs no file."""

from __future__ import annotations

from pathlib import Path

from robustcaps.errors import UserError, did_you_mean

PACKAGE = Path(__file__).parent.parent
FOLDERS = (PACKAGE / "suites", PACKAGE.parent / "benchmarks")
"""Where they are in an installed package, and in a clone."""


def packaged_suites() -> dict[str, Path]:
    """Return the files of the packaged suites by name, sorted."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def find_suite(suite: Path | str) -> Path:
    """Return the file of a suite: a path to one, or the name of a packaged suite."""
    path, packaged = Path(suite), packaged_suites()
    if path.is_file() or path.name != str(suite) or path.suffix:
        return path
    if str(suite) in packaged:
        return packaged[str(suite)]
    if path.exists():
        return path
    raise UserError(f"suite '{suite}': neither a file nor a packaged suite. {did_you_mean(str(suite), packaged)}")
