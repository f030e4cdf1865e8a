"""Routing vitals: how sharp the assignments are, and whether predictions depend on the routing at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from robustcaps.diagnostics.kinds.base import (
    DiagnosticKind,
    KindTable,
    ModelRecords,
    Statuses,
    Tables,
    diagnostic_kind,
)
from robustcaps.introspection.routing_status import (
    ALIVE_CHANGES,
    INERT_CHANGES,
    MAX_CLASS_ENTROPY,
    MAX_ENTROPY,
    routing_status,
)
from robustcaps.utils.grid import Grid, GridCell, Tone, make_grid, number, percent
from robustcaps.utils.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEYS = ["suite", "data", "model", "diagnostic"]
NETWORK, UNIFORM = "network", "uniform assignments"
MIN_MODELS_TO_COMPARE = 3
"""With so many attacked networks, accuracy is drawn against the sharpness of their routing."""
NO_ATTACK = "no attack"
MAX_NAMED = 4
"""So many networks are named in a sentence."""
TONES: dict[str, Tone] = {"alive": "good", "soft": "warning", "inert": "bad"}
NOTE = (
    "Entropy: of a child's assignments over competing parents, normalised (1: uniform, 0: one parent). Sigma: mean, "
    "over the square root of the variance floor (1: the floor alone). Dead: share of capsule types that are never "
    f"active. Alive: entropy at most {MAX_ENTROPY:g} ({MAX_CLASS_ENTROPY:g} in the class layer) in every layer, and "
    f"uniform assignments change at least {100 * ALIVE_CHANGES:.0f} % of the predictions. Inert: they change less "
    f"than {100 * INERT_CHANGES:.0f} %. Soft: neither."
)


def tabulate_layers(rows: pd.DataFrame, _models: ModelRecords = ()) -> pd.DataFrame:
    """Return one line per (model, layer): entropy, sigma, dead capsules, and whether the network's routing is alive."""
    layers = rows[rows["layer"] != NETWORK]
    columns = {name: (name, "mean") for name in ("entropy", "sigma_ratio", "dead") if name in layers}
    table = layers.groupby([*KEYS, "layer"], sort=False).agg(n=("index", "nunique"), **columns).reset_index()
    uniform = rows[rows["intervention"] == UNIFORM].groupby(KEYS, sort=False)["changed"].mean()
    changes = {key: float(share) for key, share in uniform.items()}
    status = {
        key: routing_status(dict(zip(part["layer"], part["entropy"], strict=True)), changes[key])
        for key, part in table.groupby(KEYS, sort=False)
    }
    keys = list(table[KEYS].itertuples(index=False, name=None))
    return table.assign(uniform_changes=[changes[key] for key in keys], status=[status[key] for key in keys])


def tabulate_interventions(rows: pd.DataFrame, _models: ModelRecords = ()) -> pd.DataFrame:
    """Return one line per (model, intervention): the share of predictions it changes, and the accuracy with it."""
    chosen = rows[rows["layer"] == NETWORK].astype({"right": bool, "changed": bool})
    table = chosen.groupby([*KEYS, "intervention"], sort=False).agg(
        n=("index", "nunique"), changed=("changed", "mean"), accuracy=("right", "mean")
    )
    for share in ("changed", "accuracy"):
        table[f"{share}_low"], table[f"{share}_high"] = wilson(table[share] * table["n"], table["n"])
    shares = [f"{share}{end}" for share in ("changed", "accuracy") for end in ("", "_low", "_high")]
    return table.reset_index()[[*KEYS, "intervention", "n", *shares]]


def layer_grids(table: pd.DataFrame) -> list[Grid]:
    """Return the layers for readers."""
    columns = ["data", "model", "layer", "n", "entropy", "sigma / floor", "dead %", "routing"]
    rows = [
        [
            *(str(line[name]) for name in ("data", "model", "layer", "n")),
            f"{line['entropy']:.2f}",
            number(line.get("sigma_ratio"), ".2f"),
            number(100 * line["dead"], ".0f"),
            GridCell(line["status"], tone=TONES[line["status"]]),
        ]
        for line in table.to_dict("records")
    ]
    return [make_grid(columns, rows, title="Is the routing alive?", numeric=columns[3:7])]


def intervention_grids(table: pd.DataFrame) -> list[Grid]:
    """Return the interventions for readers."""
    columns = ["data", "model", "intervention", "n", "predictions changed %", "accuracy %"]
    rows = [
        [
            *(str(line[name]) for name in ("data", "model", "intervention", "n")),
            *(percent(line, share) for share in ("changed", "accuracy")),
        ]
        for line in table.to_dict("records")
    ]
    return [make_grid(columns, rows, numeric=columns[3:])]


def draw_routing(layers: pd.DataFrame, interventions: pd.DataFrame) -> Figure:
    """Draw the entropy by layer and the changed predictions by intervention: two panels per dataset.

    Args:
        layers: One line per model and layer (`results.tables["routing"]`, or routing.csv).
        interventions: One line per model and intervention (the table routing_interventions).

    Example:
        tables = rc.load_results("results/sharpness").tables
        rc.draw_routing(tables["routing"], tables["routing_interventions"])
    """
    from matplotlib.patches import Patch

    from robustcaps.utils.figure_layout import (
        make_panels,
        set_caption,
        set_title,
        set_ylabel,
    )
    from robustcaps.utils.figure_style import model_colours, white_grid

    datasets, colours = list(layers["data"].unique()), model_colours(layers)
    with white_grid():
        legend = [Patch(color=colour, label=model) for model, colour in colours.items()]
        figure, axes = make_panels([2] * len(datasets), columns=2, width=5.0, height=3.4, legend=legend, narrowest=4.0)
        for left, right, data in zip(axes[::2], axes[1::2], datasets, strict=True):
            _draw_bars(left, layers[layers["data"] == data], "layer", "entropy", colours)
            chosen = interventions[(interventions["data"] == data) & (interventions["intervention"] != "none")]
            _draw_bars(right, chosen, "intervention", "changed", colours)
            set_ylabel(left, "assignment entropy (1: uniform)")
            set_ylabel(right, "share of predictions changed")
            set_title(left, str(data))
            set_title(right, f"{data}: routing partly switched off")
        set_caption(figure, f"Is the routing alive? (n = {layers['n'].max()}; bars: Wilson 95 %)")
    return figure


def _draw_bars(axis: Axes, table: pd.DataFrame, by: str, value: str, colours: dict[Any, Any]) -> None:
    """Draw a group of bars per layer or intervention, a bar per model."""
    from robustcaps.utils.figure_layout import set_labels
    from robustcaps.utils.figure_style import scaled

    groups, models = list(table[by].unique()), list(table["model"].unique())
    width = 0.8 / len(models)
    for place, model in enumerate(models):
        lines = table[table["model"] == model]
        at = [groups.index(group) + (place + 0.5) * width - 0.4 for group in lines[by]]
        ends = None
        if f"{value}_low" in lines:
            ends = [lines[value] - lines[f"{value}_low"], lines[f"{value}_high"] - lines[value]]
        axis.bar(at, lines[value], width, yerr=ends, color=colours[model], ecolor="0.25", capsize=scaled(2))
    set_labels(axis, [str(group) for group in groups])
    axis.set_ylim(0, 1.02)
    axis.grid(visible=False, axis="x")


def tabulate_sharpness(layers: pd.DataFrame, attacked: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """Return test accuracy and accuracy under every untargeted attack beside the mean entropy of a model's layers."""
    sharpness = layers.groupby(["suite", "data", "model"], sort=False)["entropy"].mean().reset_index()
    untargeted = attacked[attacked["goal"] == "untargeted"]
    if models.empty:
        return untargeted.merge(sharpness, on=["suite", "data", "model"])
    clean = models.assign(attack=NO_ATTACK, norm="test split", eps=0.0, accuracy=1 - models["error"] / 100)
    clean["accuracy_low"], clean["accuracy_high"] = 1 - models["error_high"] / 100, 1 - models["error_low"] / 100
    frontier = clean.merge(sharpness, on=["data", "model"]).dropna(subset=["accuracy"])
    return pd.concat([frontier, untargeted.merge(sharpness, on=["suite", "data", "model"])], ignore_index=True)


def draw_sharpness(table: pd.DataFrame) -> Figure:
    """Draw accuracy against the entropy of the assignments: a panel per attack, a line per eps.

    Args:
        table: What `tabulate_sharpness` returns.
    """
    from matplotlib.lines import Line2D

    from robustcaps.utils.figure_layout import (
        make_panels,
        name_panels,
        set_caption,
        set_title,
        set_xlabel,
        set_ylabel,
    )
    from robustcaps.utils.figure_style import colours_of, scaled, white_grid

    panels = list(table.groupby(["data", "attack", "norm"], sort=False))
    colours = colours_of(sorted(table["eps"].unique()))
    with white_grid():
        legend = [
            Line2D([], [], color=colour, linewidth=scaled(3), label=f"eps {eps:g}") for eps, colour in colours.items()
        ]
        figure, axes = make_panels([len(panels)], columns=4, width=3.1, height=2.9, legend=legend)
        titles, common = name_panels([(data, f"{attack} ({norm})") for (data, attack, norm), _ in panels])
        for axis, (_, panel), title in zip(axes, panels, titles, strict=True):
            for eps, part in panel.groupby("eps"):
                lines = part.sort_values("entropy")
                axis.plot(lines["entropy"], lines["accuracy"], marker="o", markersize=scaled(4), color=colours[eps])
                ends = (lines["accuracy_low"], lines["accuracy_high"])
                axis.fill_between(lines["entropy"], *ends, color=colours[eps], alpha=0.12, linewidth=0)
            set_title(axis, title)
            set_xlabel(axis, "mean assignment entropy")
            axis.set_ylim(-0.02, 1.02)
            axis.invert_xaxis()
        set_ylabel(axes[0], "accuracy")
        set_caption(
            figure, "Accuracy against the sharpness of routing (sharper to the right; bands: Wilson 95 %)", common
        )
    return figure


def draw(_rows: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of the vital signs, and, of several attacked networks, of accuracy against sharpness."""
    layers = tables["routing"]
    yield "routing", draw_routing(layers, tables["routing_interventions"])
    if not tables["table"].empty:
        sharpness = tabulate_sharpness(layers, tables["table"], tables["models"])
        if sharpness["model"].nunique() >= MIN_MODELS_TO_COMPARE:
            yield "sharpness", draw_sharpness(sharpness)


def statuses(tables: Tables, models: ModelRecords) -> Statuses:
    """Return whether each network's routing is alive: as measured in this run, else as its model card says."""
    cards = {(model["data"], model["label"]): model.get("routing") or {} for model in models}
    measured = {(line["data"], line["model"]): line["status"] for line in tables["routing"].to_dict("records")}
    return {key: card["status"] for key, card in cards.items() if card} | measured


def finding(tables: Tables) -> str:
    """Return in which networks the routing is alive, soft or inert, with the share of predictions it decides."""
    interventions = tables["routing_interventions"]
    if interventions.empty:
        return ""
    known = statuses(tables, ())
    uniform = interventions[interventions["intervention"] == UNIFORM]
    several = len(set(uniform["data"])) > 1
    networks = [
        f"{line['model']}{' on ' + line['data'] if several else ''} ({known[line['data'], line['model']]}: "
        f"{100 * line['changed']:.1f} %, 95 % CI {100 * line['changed_low']:.1f} to {100 * line['changed_high']:.1f}, "
        f"n = {line['n']})"
        for line in uniform.to_dict("records")
    ]
    rest = len(networks) - MAX_NAMED
    listed = ", ".join(networks[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return (
        f"Is the routing alive? Uniform assignments change these shares of predictions: {listed}; routing that "
        f"changes less than {100 * INERT_CHANGES:.0f} % is inert."
    )


ROUTING = diagnostic_kind(
    DiagnosticKind(
        name="routing",
        measure="robustcaps.introspection.vitals:measure_routing",
        tables=(
            KindTable("routing", tabulate_layers, layer_grids),
            KindTable("routing_interventions", tabulate_interventions, intervention_grids),
        ),
        title="Is the routing alive?",
        note=NOTE,
        draw=draw,
        statuses=statuses,
        finding=finding,
        passes=60.0,  # by the definition in PyTorch, sample by sample
    )
)
