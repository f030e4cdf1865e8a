"""Rows as evaluations give them, to sum up."""

from __future__ import annotations

import pandas as pd

from robustcaps.analysis.tables.summary import summarise


def rows(**columns):
    """Rows with these columns; what is not said is of one sweep of one attack on one model."""
    fixed = {"suite": "s", "data": "d", "model": "m", "attack": "a", "norm": "linf", "unit": "pixel", "seed": 0}
    frame = pd.DataFrame(columns)
    defaults = {"goal": "untargeted", "eps": 0.1, "target": -1, "valid": True, "violation": "", "forwards": 2.0}
    costs = {"backwards": 1.0, "queries": 2.0, "linf": 0.1, "l2": 1.0}
    kind = {"surrogate": "", "closest": False, "clean_pred": 0}
    for name, value in {**fixed, **defaults, **costs, **kind}.items():
        if name not in frame:
            frame[name] = value
    return frame


def attacked(attack, eps, fooled, **more):
    """Four samples of class 0, the last of which is misclassified anyway."""
    predictions = [1 if hit else 0 for hit in fooled]
    names = {"attack": attack, "eps": eps, "clean_pred": [0, 0, 0, 1], **more}
    return rows(index=range(4), label=[0] * 4, adv_pred=predictions, fooled=fooled, **names)


def sweep(goal):
    """The summary of two models under one attack at three eps."""
    parts = [
        rows(index=[0, 1], label=[0, 1], adv_pred=[0, 0], fooled=[False, True], eps=eps, model=model, goal=goal)
        for eps in (0.0, 0.1, 0.2)
        for model in ("cnn", "caps")
    ]
    return summarise(pd.concat(parts))


def found(sizes, **more):
    """Samples with the smallest perturbation of each; None: it was not fooled."""
    fooled = [size is not None for size in sizes]
    kind = {"attack": "cw", "eps": 9.0, "norm": "l2", "closest": True, "l2": [size or 0.0 for size in sizes]}
    predictions = [int(hit) for hit in fooled]
    return rows(index=range(len(sizes)), label=0, adv_pred=predictions, fooled=fooled, **{**kind, **more})
