"""Evaluation of an attack on a model: one row per (sample, target, eps)."""

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
ExtraColumns = Callable[[Tensor], dict[str, Any]]
"""Adversarial images (n, channels, height, width) -> additional columns of n values each."""


def evaluate(
    model: nn.Module,
    data: Data | tuple[Tensor, Tensor],
    attack: Attack,
    *,
    seed: int = 0,
    batch_size: int = 64,
    suite: str = "",
    model_name: str | None = None,
    load_surrogate: Callable[[str], nn.Module] | None = None,
    extra_columns: ExtraColumns | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Attack a model on data and return one row per (sample, target, eps), sorted by target, eps and sample.

    Work that budgets share is counted in the first row it was done for, so that `forwards` and `backwards` add up to
    the true cost; `queries` are the forward passes of the attacked model without those of surrogates.

    Args:
        model: Any module from images in [0,1] to logits.
        data: A dataset, or a pair (images, labels).
        attack: The attack with its budgets, see `load_attack`.
        seed: Seed of the attack's random numbers.
        batch_size: Samples per batch; only rows of torchattacks and foolbox attacks depend on it.
        suite: Value of the `suite` column.
        model_name: Value of the `model` column; the name of the class by default.
        load_surrogate: Loads surrogate models by name; by default those shipped for the dataset.
        extra_columns: Computes additional columns from the adversarial images.
        progress: Called with the number of finished rows and their total.
    """
    _check_arguments(model, attack, batch_size)
    data = as_data(data)
    with eval_mode(model):
        attack.load_surrogates(load_surrogate or (lambda name: _load_shipped_surrogate(name, data, model)))
        batches = _evaluate_batches(model, data, attack, seed, batch_size, extra_columns or (lambda _: {}))
        parts = _with_progress(batches, row_count(data, attack), progress)
        frame = pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)
    fixed = {"suite": suite, "model": model_name or type(model).__name__, "data": data.name, "attack": attack.name}
    properties: dict[str, Any] = {
        "goal": attack.goal_spec.goal,
        "surrogate": attack.surrogate_label,
        "closest": attack.minimises_norm,
    }
    frame = frame.assign(**fixed, **properties, seed=seed)
    extra = [name for name in frame.columns if name not in COLUMNS]
    return frame.sort_values(["target", "eps", "index"], ignore_index=True, kind="stable")[[*COLUMNS, *extra]]


def _check_arguments(model: object, attack: object, batch_size: int) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"model: must be an nn.Module, not {model!r}; load one by name with load_model.")
    if not isinstance(attack, Attack):
        raise UserError(f"attack: must be an Attack, not {attack!r}; load one by name with load_attack.")
    if not attack.budgets:
        raise UserError(f"attack '{type(attack).__name__}' has no budget; set one with .configure(eps=...).")
    if batch_size < 1:
        raise UserError(f"batch_size: must be at least 1, not {batch_size}.")


def row_count(data: Data, attack: Attack) -> int:
    """Return the number of rows of an evaluation: samples x targets x budgets."""
    targets = 1 if attack.goal_spec.goal == "untargeted" else len(attack.goal_spec.targets(data.class_names))
    return len(data) * targets * len(attack.budgets)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Samples that are attacked together."""

    model: CountedModel
    images: Tensor
    labels: Tensor
    indices: Tensor
    clean_predictions: Tensor
    draws: Draws


def _evaluate_batches(
    model: nn.Module, data: Data, attack: Attack, seed: int, size: int, extra_columns: ExtraColumns
) -> Iterator[dict[str, Any]]:
    """Yield the columns of each (batch, target, budget)."""
    device = device_of(model)
    for start in range(0, len(data), size):
        images = data.images[start : start + size].to(device)
        labels = data.labels[start : start + size].to(device)
        indices = torch.arange(start, start + len(images), device=device)
        counted = CountedModel(model, Counts.zeros(len(images)))
        with torch.no_grad():
            logits = counted(images)
        _check_clean_logits(logits, data.classes)
        draws = Draws(seed, indices)
        batch = _Batch(counted, images, labels, indices, predict(logits), draws)
        names = (*data.class_names, *map(str, range(data.classes, logits.shape[1])))
        counts_before = Counts.zeros(len(images))
        for target, goal in attack.goal_spec.resolve(labels, names, logits, draws):
            for budget, final, columns in _attack_batch(batch, attack, goal):
                counts = {name: count.numpy() for name, count in vars(counted.counts.since(counts_before)).items()}
                counts_before = counted.counts.copy()
                yield {**_sample_columns(batch, budget, target), **columns, **counts, **extra_columns(final)}


def _sample_columns(batch: _Batch, budget: Budget, target: Tensor | None) -> dict[str, Any]:
    return {
        "norm": budget.norm,
        "eps": float(budget.eps),
        "unit": budget.unit,
        "target": -1 if target is None else target.cpu().numpy(),
        "index": batch.indices.cpu().numpy(),
        "label": batch.labels.cpu().numpy(),
        "clean_pred": batch.clean_predictions.cpu().numpy(),
    }


def _attack_batch(batch: _Batch, attack: Attack, goal: Goal) -> Iterator[tuple[Budget, Tensor, dict[str, Any]]]:
    """Attack the samples that do not reach the goal already, and predict on the adversarial images of each budget.

    Images that are equal to the clean one or to that of the previous budget are not predicted again.
    """
    rows = torch.nonzero(~goal.reached(batch.clean_predictions)).flatten()
    model, images = batch.model.select(rows), batch.images[rows]
    sweep = attack.sweep(model, images, goal.select(rows), attack.budgets, batch.draws.select(rows))
    final, predictions = batch.images.clone(), batch.clean_predictions.clone()
    for budget in attack.budgets:
        violations = np.full(len(batch.images), "", dtype=object)
        if len(rows):
            adversarial = next(sweep)
            violations[rows.cpu().numpy()] = [violation or "" for violation in adversarial.violations]
            is_clean = (adversarial.images == images).flatten(1).all(1)
            predictions[rows[is_clean]] = batch.clean_predictions[rows[is_clean]]
            new = ((adversarial.images != final[rows]).flatten(1).any(1) & ~is_clean).nonzero().flatten()
            final[rows] = adversarial.images
            if len(new):
                with torch.no_grad():
                    predictions[rows[new]] = predict(model.select(new)(adversarial.images[new]))
        yield budget, final, _result_columns(final - batch.images, predictions, goal, violations)


def _result_columns(delta: Tensor, predictions: Tensor, goal: Goal, violations: np.ndarray) -> dict[str, Any]:
    valid = violations == ""
    return {
        "adv_pred": predictions.cpu().numpy(),
        "fooled": goal.reached(predictions).cpu().numpy() & valid,
        "valid": valid,
        "violation": violations.astype(str),
        "linf": NORMS["linf"].size(delta).cpu().numpy(),
        "l2": NORMS["l2"].size(delta).cpu().numpy(),
    }


def _load_shipped_surrogate(name: str, data: Data, model: nn.Module) -> nn.Module:
    """Return a model of the zoo that was trained on the dataset, on the device of the attacked model."""
    device = device_of(model)
    return load_model(name, data=data.name, device=str(device)).eval()


def _check_clean_logits(logits: Tensor, classes: int) -> None:
    if logits.shape[1] < classes:
        raise UserError(f"the model has {logits.shape[1]} classes, but the data has {classes}.")
    not_finite = int((~torch.isfinite(logits)).any(1).sum())
    if not_finite:
        raise UserError(f"the model's logits are not finite on {not_finite} of {len(logits)} clean images.")


def _with_progress(parts: Iterator[dict[str, Any]], total: int, progress: Progress | None) -> Iterator[dict[str, Any]]:
    """Yield the parts unchanged, reporting the number of finished rows after each."""
    done = 0
    for part in parts:
        yield part
        done += len(part["index"])
        if progress:
            progress(done, total)
