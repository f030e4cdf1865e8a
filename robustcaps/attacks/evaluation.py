"""One evaluation: predict, attack, check, predict again, count; one row per (sample, target, eps)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.norms import NORMS
from robustcaps.data.base import Data, Progress, as_data
from robustcaps.errors import UserError
from robustcaps.models.inference import device_of, eval_mode, predict
from robustcaps.models.zoo import load_model
from robustcaps.utils.sample_random import Draws

COLUMNS = (
    *("suite", "model", "data", "attack", "norm", "eps", "unit", "goal", "target", "seed", "index", "label"),
    *("clean_pred", "adv_pred", "fooled", "valid", "violation", "linf", "l2", "forwards", "backwards"),
    *("queries", "surrogate", "closest"),
)
Look = Callable[[Tensor], dict[str, Any]]
"""Attacked images (n, channels, height, width) in, columns of n values out."""


def evaluate(
    model: nn.Module,
    data: Data | tuple[Tensor, Tensor],
    attack: Attack,
    *,
    seed: int = 0,
    batch_size: int = 64,
    suite: str = "",
    model_name: str | None = None,
    surrogate: Callable[[str], nn.Module] | None = None,
    look: Look | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Attack a model on data and return one row per (sample, target, eps), in that order from the slowest to fastest.

    Shared work is booked on the row it was done for first, so `forwards` and `backwards` add up to the true cost;
    `queries` are the forward passes of this model alone, without those of surrogates.
    `surrogate` loads the models that an attack crafts on; by default they are those shipped for the data.
    `look` adds columns of its own, from the images that the model is left with.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model: must be an nn.Module, not {model!r}; load one by name with load_model.")
    if not isinstance(attack, Attack):
        raise UserError(f"attack: must be an Attack, not {attack!r}; load one by name with load_attack.")
    data = as_data(data)
    if not attack.budgets:
        raise UserError(f"attack '{type(attack).__name__}' has no budget: give it one with .at(eps=...).")
    if batch_size < 1:
        raise UserError(f"batch_size: must be at least 1, not {batch_size}.")
    with eval_mode(model):
        attack.bind(surrogate or (lambda name: _load_surrogate(name, data, model)))
        batches = _batches(model, data, attack, seed, batch_size, look or (lambda _: {}))
        rows = _told(batches, row_count(data, attack), progress)
        frame = pd.concat([pd.DataFrame(row) for row in rows], ignore_index=True)
    fixed = {"suite": suite, "model": model_name or type(model).__name__, "data": data.name, "attack": attack.name}
    kind: dict[str, Any] = {
        "goal": attack.aim.goal,
        "surrogate": attack.crafted_on,
        "closest": attack.closest,
    }
    frame = frame.assign(**fixed, **kind, seed=seed)
    looked = [name for name in frame.columns if name not in COLUMNS]
    return frame.sort_values(["target", "eps", "index"], ignore_index=True, kind="stable")[[*COLUMNS, *looked]]


def row_count(data: Data, attack: Attack) -> int:
    """Return how many rows an evaluation gives: samples x targets x budgets."""
    targets = 1 if attack.aim.goal == "untargeted" else len(attack.aim.targets(data.class_names))
    return len(data) * targets * len(attack.budgets)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Some samples on their way through an attack."""

    model: CountedModel
    images: Tensor
    labels: Tensor
    indices: Tensor
    clean: Tensor
    draws: Draws


def _batches(
    model: nn.Module, data: Data, attack: Attack, seed: int, size: int, look: Look
) -> Iterator[dict[str, Any]]:
    """Yield the columns of one (batch, target, budget) after another."""
    device = device_of(model)
    for start in range(0, len(data), size):
        images = data.images[start : start + size].to(device)
        labels = data.labels[start : start + size].to(device)
        indices = torch.arange(start, start + len(images), device=device)
        counted = CountedModel(model, Counts.zeros(len(images)))
        with torch.no_grad():
            logits = counted(images)
        _check_clean(logits, data.classes)
        draws = Draws(seed, indices)
        batch = _Batch(counted, images, labels, indices, predict(logits), draws)
        names = (*data.class_names, *map(str, range(data.classes, logits.shape[1])))
        booked = Counts.zeros(len(images))
        for target, goal in attack.aim.goals(labels, names, logits, draws):
            for budget, final, columns in _sweep(batch, attack, goal):
                spent = {name: count.numpy() for name, count in vars(counted.counts.since(booked)).items()}
                booked = counted.counts.copy()
                yield {**_identity(batch, budget, target), **columns, **spent, **look(final)}


def _identity(batch: _Batch, budget: Budget, target: Tensor | None) -> dict[str, Any]:
    return {
        "norm": budget.norm,
        "eps": float(budget.eps),
        "unit": budget.unit,
        "target": -1 if target is None else target.cpu().numpy(),
        "index": batch.indices.cpu().numpy(),
        "label": batch.labels.cpu().numpy(),
        "clean_pred": batch.clean.cpu().numpy(),
    }


def _sweep(batch: _Batch, attack: Attack, goal: Goal) -> Iterator[tuple[Budget, Tensor, dict[str, Any]]]:
    """Attack the samples that do not reach the goal by themselves, for every budget, and predict on the proposals.

    A proposal that is the very image proposed for the budget before, or the clean one, has been predicted already.
    """
    rows = torch.nonzero(~goal.reached(batch.clean)).flatten()
    model, images = batch.model.select(rows), batch.images[rows]
    proposals = attack.sweep(model, images, goal.select(rows), attack.budgets, batch.draws.select(rows))
    final, predictions = batch.images.clone(), batch.clean.clone()
    for budget in attack.budgets:
        violations = np.full(len(batch.images), "", dtype=object)
        if len(rows):
            proposal = next(proposals)
            violations[rows.cpu().numpy()] = proposal.violations
            back = (proposal.images == images).flatten(1).all(1)
            predictions[rows[back]] = batch.clean[rows[back]]
            new = ((proposal.images != final[rows]).flatten(1).any(1) & ~back).nonzero().flatten()
            final[rows] = proposal.images
            if len(new):
                with torch.no_grad():
                    predictions[rows[new]] = predict(model.select(new)(proposal.images[new]))
        yield budget, final, _columns(final - batch.images, predictions, goal, violations)


def _columns(delta: Tensor, predictions: Tensor, goal: Goal, violations: np.ndarray) -> dict[str, Any]:
    valid = violations == ""
    return {
        "adv_pred": predictions.cpu().numpy(),
        "fooled": goal.reached(predictions).cpu().numpy() & valid,
        "valid": valid,
        "violation": violations.astype(str),
        "linf": NORMS["linf"].size(delta).cpu().numpy(),
        "l2": NORMS["l2"].size(delta).cpu().numpy(),
    }


def _load_surrogate(name: str, data: Data, model: nn.Module) -> nn.Module:
    """Return a zoo model trained on the data, beside the attacked one."""
    device = device_of(model)
    return load_model(name, data=data.name, device=str(device)).eval()


def _check_clean(logits: Tensor, classes: int) -> None:
    if logits.shape[1] < classes:
        raise UserError(f"the model answers with {logits.shape[1]} classes, but the data has {classes}.")
    broken = int((~torch.isfinite(logits)).any(1).sum())
    if broken:
        raise UserError(f"the model's logits are not finite on {broken} of {len(logits)} clean images.")


def _told(rows: Iterator[dict[str, Any]], total: int, progress: Progress | None) -> Iterator[dict[str, Any]]:
    """Pass the rows on and tell how many are done."""
    done = 0
    for row in rows:
        yield row
        done += len(row["index"])
        if progress:
            progress(done, total)
