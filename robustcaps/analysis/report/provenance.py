"""How a run was made: its settings in readable form, its cost in seconds, and how to cite it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robustcaps.analysis.records import ATTACK
from robustcaps.utils.grid import Grid, make_grid, number

SHOWN_ELSEWHERE = {
    "use",
    "name",
    "eps",
    "norm",
    "unit",
    "goal",
    "target",
    "weights",
    "train",
    "data",
    "models",
    "limit",
}
"""What a spec says that has a column of its own, or says nothing about its options."""


def attack_losses(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the loss that each attack climbs, by its name; that of the attack inside it, if it has one."""
    losses: dict[str, str] = {}
    for cell in record["cells"]:
        if cell["kind"] == ATTACK:
            attack = (cell.get("settings") or {}).get("attack") or {}
            candidates = [attack, *(attack.get("parts") or [])]
            found = [str(part["options"]["loss"]) for part in candidates if (part.get("options") or {}).get("loss")]
            losses.setdefault(cell["names"]["attack"], found[0] if found else "")
    return losses


def attack_seconds(record: Mapping[str, Any]) -> Grid | None:
    """Return how long the cells of each model and attack took; None of a run that did not record it."""
    times: dict[str, dict[str, float]] = {}
    for cell in record["cells"]:
        if cell.get("seconds") is not None:
            names = cell["names"]
            task = names.get("attack") or names.get("diagnostic", "")
            of_model = times.setdefault(names["model"], {})
            of_model[task] = of_model.get(task, 0.0) + cell["seconds"]
    if not times:
        return None
    tasks = list(dict.fromkeys(task for of_model in times.values() for task in of_model))
    rows = [[model, *(number(of_model.get(task), ".1f") for task in tasks)] for model, of_model in times.items()]
    return make_grid(["model", *tasks], rows, numeric=tasks)


def describe_suite(record: Mapping[str, Any]) -> list[Grid]:
    """Return models, datasets, attacks and diagnostics of the suite with their settings, a grid each."""
    suite, norms = record["suite"], _attack_norms(record)
    models = [
        [model["label"], model["data"], f"{model['parameters']:,}", _listed(model["options"]), model.get("command", "")]
        for model in record["models"]
    ]
    data = [
        [spec.get("name") or spec["use"], spec.get("split", ""), str(spec.get("limit") or "all"), _options(spec)]
        for spec in suite.get("data", ())
    ]
    attacks = [
        [
            spec.get("name") or spec["use"],
            spec["use"],
            spec.get("goal", ""),
            spec.get("norm") or norms.get(spec.get("name") or spec["use"], ""),
            " ".join(f"{eps:g}" for eps in _as_list(spec.get("eps"))),
            _options(spec),
        ]
        for spec in suite.get("attacks", ())
    ]
    diagnostics = [
        [
            spec.get("name") or spec["use"],
            spec["use"],
            " ".join(f"{eps:g}" for eps in _as_list(spec.get("eps"))),
            str(spec.get("limit") or "all"),
            _options(spec),
        ]
        for spec in suite.get("diagnostics", ())
    ]
    grids = [
        make_grid(
            ["model", "dataset", "parameters", "options", "trained by"], models, title="Models", numeric=["parameters"]
        ),
        make_grid(["dataset", "split", "samples", "options"], data, title="Datasets", numeric=["samples"]),
        make_grid(["attack", "method", "goal", "norm", "eps", "options"], attacks, title="Attacks"),
        make_grid(
            ["diagnostic", "kind", "eps", "samples", "options"], diagnostics, title="Diagnostics", numeric=["samples"]
        ),
    ]
    return [grid for grid in grids if grid.rows]


def _attack_norms(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the norm in which each attack was measured: a suite need not name it."""
    attacks = [cell for cell in record["cells"] if cell["kind"] == ATTACK]
    return {cell["names"]["attack"]: cell["settings"]["attack"]["norm"] for cell in attacks}


def _as_list(value: Any) -> Sequence[float]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _options(spec: Mapping[str, Any]) -> str:
    return _listed({name: value for name, value in spec.items() if name not in SHOWN_ELSEWHERE and value is not None})


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items() if value is not None)


def citation(record: Mapping[str, Any]) -> list[str]:
    """Return the lines of the BibTeX entry of the software, in the version and the year of the run."""
    version = record["versions"].get("robustcaps", "")
    fields = {
        "author": "{The robustcaps developers}",
        "title": "robustcaps: how robust capsule networks are against adversarial attacks, beside matched {CNN}s",
        "year": (record["finished_at"] or "")[:4],
        "version": version,
        "note": f"Commit {record['commit']}" if record["commit"] else "",
    }
    lines = [f"  {name:<7} = {{{value}}}," for name, value in fields.items() if value]
    return ["@software{robustcaps,", *lines, "}"]
