"""Figures of vote distances by routing iteration, of reconstructions, and of perturbed capsules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from robustcaps.utils.figure_style import STYLE

BINS = 25
VISIBLE_SHARE = 0.99
"""Share of the votes in the histograms; the few farthest ones would squeeze all others."""
BLOCKS_PER_ROW = 3
"""Images whose perturbations are drawn side by side."""
GREY: Any = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "nearest"}

Pictures = NDArray[np.float32]


def draw_vote_distances(
    distances: pd.DataFrame,
    images: ArrayLike,
    labels: ArrayLike,
    class_names: Sequence[str],
    captions: Sequence[str] | None = None,
) -> Figure:
    """Draw a table of `vote_distances`: a row per image, a column per iteration, a line per class capsule.

    The histogram of the label's capsule is filled and annotated with its share of all votes. All panels share bins.
    """
    true_classes: list[int] = np.asarray(labels).tolist()
    captions = captions or [class_names[label] for label in true_classes]
    colours = sns.color_palette("colorblind" if len(class_names) <= 10 else "husl", len(class_names))
    iterations = sorted(distances["iteration"].unique())
    edges = np.linspace(0, _visible_range(distances), BINS + 1)
    widths = [1.4, *[3.0] * len(iterations)]
    style: Any = {**sns.axes_style("ticks"), **STYLE}
    with mpl.rc_context(style):
        figure = Figure(figsize=(sum(widths) + 0.9, 1.9 * len(true_classes) + 1.2), layout="constrained")
        grid = figure.subplots(len(true_classes), len(widths), squeeze=False, width_ratios=widths)
        for row, (axes, picture) in enumerate(zip(grid, _to_pictures(images), strict=True)):
            _draw_picture(axes[0], picture, captions[row])
            by_iteration = distances[distances["sample"] == row].groupby("iteration")
            for axis, (_, votes) in zip(axes[1:], by_iteration, strict=True):
                _draw_histograms(axis, votes, edges, colours, true_classes[row])
            _equalise_heights(axes[1:])
        for axis, iteration in zip(grid[0, 1:], iterations, strict=True):
            axis.set_title(f"iteration {iteration}")
        for axis in grid[-1, 1:]:
            axis.set_xlabel("distance to the mean")
        figure.suptitle(
            "Votes for the class capsules, weighted by their assignment\n"
            f"filled: the true class and its share; the farthest {1 - VISIBLE_SHARE:.0%} of the votes are not shown"
        )
        handles = [
            Line2D([], [], color=colour, linewidth=3, label=name)
            for name, colour in zip(class_names, colours, strict=True)
        ]
        figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure


def draw_reconstructions(
    images: ArrayLike, reconstructions: ArrayLike, captions: Sequence[str] | None = None
) -> Figure:
    """Draw images above their reconstructions, with the mean squared error of each."""
    originals, decoded = _to_pictures(images), _to_pictures(reconstructions)
    errors = np.square(np.asarray(images) - np.asarray(reconstructions)).mean(axis=(1, 2, 3))
    captions = captions or [f"#{k}" for k in range(len(originals))]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(1.7 * len(originals), 3.4) + 0.4, 4.4), layout="constrained")
        grid = figure.subplots(2, len(originals), squeeze=False)
        for k, axes in enumerate(grid.T):
            _draw_picture(axes[0], originals[k], captions[k])
            _draw_picture(axes[1], decoded[k], f"error {errors[k]:.4f}")
        grid[0, 0].set_ylabel("original")
        grid[1, 0].set_ylabel("reconstruction")
        figure.supxlabel("error: mean square over the pixels", fontsize="medium")
    return figure


def draw_perturbations(perturbed: ArrayLike, offsets: Sequence[float], captions: Sequence[str] | None = None) -> Figure:
    """Draw the images of `perturb_capsule`: a block per image, a row per dimension, a column per offset."""
    blocks = np.asarray(perturbed, dtype=np.float32)
    n, dimensions, steps = blocks.shape[:3]
    captions = captions or [f"#{k}" for k in range(n)]
    columns = min(n, BLOCKS_PER_ROW)
    rows = -(-n // columns)
    with mpl.rc_context(STYLE):
        size = (0.36 * steps * columns + 0.7, (0.36 * dimensions + 0.9) * rows + 0.3)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for k in range(n):
            _draw_block(axes[k], blocks[k], offsets)
            axes[k].set_title(captions[k])
            axes[k].set_xlabel("added to the dimension")
            if k % columns == 0:
                axes[k].set_ylabel("dimension of the class capsule")
        for axis in axes[n:]:
            axis.set_visible(False)
    return figure


def _draw_histograms(
    axis: Axes, votes: pd.DataFrame, edges: NDArray[np.float64], colours: Sequence[Any], label: int
) -> None:
    """Draw a histogram per class capsule, the label's last and on top."""
    for capsule in sorted(votes["class"].unique(), key=lambda capsule: capsule == label):
        part = votes[votes["class"] == capsule]
        counts, _ = np.histogram(part["distance"], edges, weights=part["weight"])
        if capsule == label:
            share = part["weight"].sum() / votes["weight"].sum()
            axis.text(0.99, 0.97, f"{share:.0%}", color=colours[label], transform=axis.transAxes, ha="right", va="top")
            axis.stairs(counts, edges, fill=True, color=colours[label], alpha=0.3)
        axis.stairs(counts, edges, color=colours[capsule], linewidth=2 if capsule == label else 1)
    axis.set_xlim(0, edges[-1])
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    sns.despine(ax=axis)


def _equalise_heights(axes: Sequence[Axes]) -> None:
    """Give the panels of a row the same y axis, labelled in the first."""
    top = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(0, 1.1 * top)
        axis.tick_params(labelleft=axis is axes[0])
    axes[0].set_ylabel("votes")


def _visible_range(distances: pd.DataFrame) -> float:
    """Return the distance within which `VISIBLE_SHARE` of all votes lie; 1 if they all lie at the mean."""
    ordered = distances.sort_values("distance")
    reached = ordered["weight"].cumsum() >= VISIBLE_SHARE * ordered["weight"].sum()
    return float(ordered["distance"][reached].iloc[0]) or 1.0


def _draw_block(axis: Axes, block: Pictures, offsets: Sequence[float]) -> None:
    """Draw images (dimensions, offsets, channels, height, width) as one image with white lines in between."""
    dimensions, steps = block.shape[:2]
    tiles = np.stack([_to_pictures(row) for row in block])
    framed = np.pad(tiles, [(0, 0), (0, 0), (1, 0), (1, 0), (0, 0)], constant_values=1.0)
    height, width = framed.shape[2:4]
    mosaic = framed.transpose(0, 2, 1, 3, 4).reshape(dimensions * height, steps * width, -1)
    axis.imshow(mosaic, extent=(0, steps, dimensions, 0), aspect=height / width, **GREY)
    labelled = sorted({0, steps // 2, steps - 1})
    axis.set_xticks([k + 0.5 for k in labelled], [f"{offsets[k]:g}" for k in labelled])
    axis.set_yticks([k + 0.5 for k in range(dimensions)], [str(k + 1) for k in range(dimensions)])
    _hide_frame(axis)


def _draw_picture(axis: Axes, picture: Pictures, title: str) -> None:
    axis.imshow(picture, **GREY)
    axis.set_title(title)
    axis.set_xticks([])
    axis.set_yticks([])
    _hide_frame(axis)


def _hide_frame(axis: Axes) -> None:
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)


def _to_pictures(images: ArrayLike) -> Pictures:
    """Return images (n, channels, height, width) as (n, height, width, 1 or 3); a stereo pair by its left image."""
    stacked = np.asarray(images, dtype=np.float32)
    visible = stacked if stacked.shape[1] == 3 else stacked[:, :1]
    return visible.transpose(0, 2, 3, 1)
