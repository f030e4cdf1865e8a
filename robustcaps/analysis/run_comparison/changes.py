"""What two runs do not have in common: models, datasets, attacks, diagnostics, their settings, and versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from robustcaps.analysis.records import ATTACK

COLUMNS = ["what", "name", "setting", "first", "second"]
THINGS = {"model": "model", "data": "dataset", "attack": "attack", "diagnostic": "diagnostic"}
"""The names of a cell, and what they name."""
DIGESTS: dict[tuple[str, ...], str] = {("model", "digest"): "weights", ("data", "digest"): "samples"}
CODE = ("code",)
"""The digest of the code that a cell depends on."""
SHORT_DIGEST = 8
ABSENT, PRESENT = "absent", "present"


def list_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> pd.DataFrame:
    """Return one line per difference of two records (run.json): what is in one only, then settings, then versions."""
    lines = [*_only_in_one(first, second), *_settings(first, second), *_code(first, second), *_versions(first, second)]
    return pd.DataFrame(lines, columns=COLUMNS).drop_duplicates(ignore_index=True)


def data_digests(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of the samples of each dataset that is attacked, where the record has it."""
    found = {cell["names"]["data"]: _digest(cell) for cell in record["cells"] if cell["kind"] == ATTACK}
    return {name: digest for name, digest in found.items() if digest}


def _digest(cell: Mapping[str, Any]) -> str:
    return str(((cell.get("settings") or {}).get("data") or {}).get("digest") or "")


def _only_in_one(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for part, what in THINGS.items():
        ours, theirs = (
            list(dict.fromkeys(cell["names"][part] for cell in record["cells"] if part in cell["names"]))
            for record in (first, second)
        )
        yield from ((what, name, "", PRESENT, ABSENT) for name in ours if name not in theirs)
        yield from ((what, name, "", ABSENT, PRESENT) for name in theirs if name not in ours)


def _settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the settings of cells with the same names that are not the same."""
    ours, theirs = _cells_by_name(first), _cells_by_name(second)
    for key in ours:
        if key not in theirs:
            continue
        names = ours[key]["names"]
        before, after = (dict(_flatten(cells[key].get("settings") or {})) for cells in (ours, theirs))
        for path in dict.fromkeys([*before, *after]):
            if path == CODE:
                continue
            values = before.get(path, ABSENT), after.get(path, ABSENT)
            if values[0] != values[1]:
                part = path[0] if path[0] in THINGS else "cell"
                name = _name(names, part)
                is_digest = path[-1] == "digest"
                shown = (value[:SHORT_DIGEST] if is_digest else value for value in values)
                setting = DIGESTS.get(path[:2], ".".join(path[1:] if part in THINGS else path))
                yield (THINGS.get(part, "evaluation"), name, setting, *shown)


def _name(names: Mapping[str, str], part: str) -> str:
    """Return the name of a part of a cell; diagnostics may take fewer samples of a dataset."""
    if part == "model":
        return f"{names['model']} on {names['data']}"
    if part == "data" and "diagnostic" in names:
        return f"{names['data']} ({names['diagnostic']})"
    return names.get(part, "")


def _code(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a line if the code differs that cells with the same names depend on."""
    ours, theirs = (
        {key: (cell.get("settings") or {}).get("code") for key, cell in _cells_by_name(record).items()}
        for record in (first, second)
    )
    shared = [key for key in ours if key in theirs]
    other = [key for key in shared if ours[key] != theirs[key]]
    if other:
        yield "code", f"of {len(other)} of {len(shared)} shared cells", "", "one version", "another version"


def _cells_by_name(record: Mapping[str, Any]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """Return the cells by their names, goal and seed; the name of the suite does not count."""
    cells = {}
    for cell in record["cells"]:
        settings = cell.get("settings") or {}
        goal = (settings.get("attack") or {}).get("goal", "")
        names = tuple(value for name, value in sorted(cell["names"].items()) if name != "suite")
        cells[(cell["kind"], *names, goal, settings.get("seed"))] = cell
    return cells


def _flatten(settings: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of every value in nested settings, and the value as text."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, (*path, str(name)))
        elif isinstance(value, list):
            yield (*path, str(name)), " ".join(str(each) for each in value)
        else:
            yield (*path, str(name)), str(value)


def _versions(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    ours, theirs = ({**record["versions"], "commit": record["commit"] or ""} for record in (first, second))
    for name in dict.fromkeys([*ours, *theirs]):
        before, after = (str(versions.get(name) or ABSENT) for versions in (ours, theirs))
        if before != after:
            short = SHORT_DIGEST if name == "commit" else None
            yield "version", name, "", before[:short], after[:short]
