"""Tables as suites publish them, made of rows that clearly support a claim, clearly contradict it, or do neither."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from robustcaps.analysis.claims import judge_claims
from robustcaps.analysis.results import Results
from robustcaps.analysis.tables.robust_auc import tabulate_auc

MATRIX, VECTOR, CNN = "matrix-capsnet-small", "vector-capsnet-small", "cnn"
N = 200


def record(folder):
    """Write run.json of a suite without stored cells."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"suite": {"name": folder.name}, "cells": []}))


def write(folder, suite, name, table):
    """Write a table as a run does, into a folder as results are published: with run.json, without cells."""
    record(folder / suite)
    table.to_csv(folder / suite / f"{name}.csv", index=False, float_format="%.6g")


def load(folder):
    """Return the results of every suite in a folder by name."""
    return {path.name: Results(path) for path in sorted(folder.iterdir())}


def judged(folder, words, **where):
    """Return the only line whose claim has these words."""
    table = judge_claims(load(folder))
    kept = table["claim"].str.contains(words, regex=False)
    for column, value in where.items():
        kept &= table[column] == value
    (line,) = table[kept].to_dict("records")
    return line


def attacked(model, share, attack, *, eps=0.1, data="toys", goal="untargeted", n=N):
    """Return rows of n samples of two classes; under the attack this share of them is right, or reaches its target."""
    hit = np.arange(n) < round(share * n)
    fooled = hit if goal == "targeted" else ~hit
    names = {"suite": "s", "data": data, "model": model, "attack": attack, "goal": goal, "eps": eps}
    fixed = {"norm": "linf", "unit": "pixel", "seed": 0, "target": -1, "valid": True, "surrogate": "", "closest": False}
    costs = {"forwards": 1.0, "backwards": 1.0, "queries": 1.0, "linf": eps, "l2": eps}
    columns = {"index": np.arange(n), "label": 0, "adv_pred": np.where(fooled, 1, 0), "fooled": fooled}
    return pd.DataFrame(columns).assign(**names, **fixed, **costs)


def sweep(shares, attack, **more):
    """Return rows of models at eps 0.1, 0.2, ...: `shares` has a list per model."""
    return pd.concat(
        attacked(model, share, attack, eps=0.1 * (place + 1), **more)
        for model, values in shares.items()
        for place, share in enumerate(values)
    )


def views(model, familiar, novel, by):
    parts = []
    for seen, error in ((True, familiar), (False, novel)):
        parts.append(pd.DataFrame({"familiar": seen, "right": np.arange(1000) >= 1000 * error}))
    return pd.concat(parts).assign(suite="s", data="toys by angle", model=model, diagnostic="views", by=by)


def auc_of(shares, *, trainings=3, data="toys"):
    """Return the table of robust AUC of groups whose trainings keep about these shares of the samples."""
    models = [
        {"label": f"{group}, seed {seed}", "data": data, "group": group, "accuracy": 0.9, "routing": {"status": "soft"}}
        for group in shares
        for seed in range(trainings)
    ]
    rows = [
        attacked(f"{group}, seed {seed}", share + 0.01 * seed, "fgsm", data=data)
        for group, share in shares.items()
        for seed in range(trainings)
    ]
    return tabulate_auc(pd.concat(rows), models)


def smallest(model, mean, missed=0, attack="cw", data="mnist"):
    """Return rows of smallest perturbations around a mean, some of which were not found."""
    rows = attacked(model, missed / 100, attack, data=data, eps=10.0, n=100)
    return rows.assign(norm="l2", closest=True, l2=np.linspace(0.9, 1.1, 100) * mean)
