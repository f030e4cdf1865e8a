"""Rows as evaluations give them, to sum up."""

from __future__ import annotations

import pandas as pd


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
