"""Evaluation of an attack on a model: one row per (sample, target, eps)."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from robustcaps.attacks.guard import FullGuard, Guard, QuickGuard
from robustcaps.attacks.norms import NORMS
from robustcaps.attacks.spatial.budgets import TransformationBudget
from robustcaps.data.base import Data, Progress, as_data
from robustcaps.errors import UserError
from robustcaps.models.inference import device_of, eval_mode, predict
from robustcaps.models.zoo import load_model
from robustcaps.utils.devices import halve_until_it_fits
from robustcaps.utils.sample_random import Draws
from robustcaps.utils.spans import Span, split_span

COLUMNS = (
    *("suite", "model", "data", "attack", "norm", "eps", "unit", "goal", "target", "seed", "index", "label"),
    *("clean_pred", "adv_pred", "fooled", "valid", "violation", "linf", "l2", "forwards", "backwards"),
    *("queries", "surrogate", "closest", "size"),
)


@dataclass(frozen=True, eq=False)
class AttackedBatch:
    """Samples before and after an attack, for one target and budget."""

    images: Tensor
    adversarial: Tensor
    """(n, channels, height, width), as the clean images."""
    columns: Mapping[str, Any]
    """The columns of their rows."""


ExtraColumns = Callable[[AttackedBatch], dict[str, Any]]
"""Returns additional columns of n values each."""


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
    samples: Span | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> pd.DataFrame:
    """Attack a model on data and return one row per (sample, target, eps), sorted by target, eps and sample.

    Work that budgets share is counted in the first row it was done for, so that `forwards` and `backwards` add up to
    the true cost; `queries` are the forward passes of the attacked model without those of surrogates.

    Args:
        model: Any module from images in [0,1] to logits.
        data: A dataset, or a pair (images, labels).
        attack: The attack with its budgets, see `load_attack`.
        seed: Seed of the attack's random numbers.
        batch_size: Samples per batch; only rows of torchattacks and foolbox attacks depend on it. The others go on with
            half of it when memory runs out.
        suite: Value of the `suite` column.
        model_name: Value of the `model` column; the name of the class by default.
        load_surrogate: Loads surrogate models by name; by default those shipped for the dataset.
        extra_columns: Computes additional columns from the images before and after the attack.
        samples: Attack only these samples, with the same rows as if all were attacked in batches from `samples.start`.
        progress: Called with the number of finished rows and their total.
        warn: Called with a note if the batch size was reduced; by default, it becomes a Python warning.
    """
    _check_arguments(model, attack, batch_size)
    data = as_data(data)
    if samples is not None and not 0 <= samples.start < samples.stop <= len(data):
        raise UserError(f"samples: {samples.start} to {samples.stop} are not all among the {len(data)} of the data.")
    with eval_mode(model):
        attack.load_surrogates(load_surrogate or (lambda name: _load_shipped_surrogate(name, data, model)))
        whole = samples or Span(0, len(data))
        total = row_count(data, attack) * whole.size // len(data)

        def compute(size: int) -> list[dict[str, Any]]:
            def compute_guarded(guard: Guard) -> list[dict[str, Any]]:
                spans = split_span(whole, size)
                batches = _evaluate_batches(model, data, attack, seed, spans, extra_columns or (lambda _: {}), guard)
                return list(_with_progress(batches, total, progress))

            return _compute_guarded(compute_guarded, model, attack)

        columns = _concatenate(_compute_in_memory(compute, attack, batch_size, warn))
    fixed = {"suite": suite, "model": model_name or type(model).__name__, "data": data.name, "attack": attack.name}
    properties: dict[str, Any] = {
        "goal": attack.goal_spec.goal,
        "surrogate": attack.surrogate_label,
        "closest": attack.minimises_norm,
    }
    columns |= {**fixed, **properties, "seed": seed}
    extra = [name for name in columns if name not in COLUMNS]
    order = np.lexsort([columns[name] for name in ("index", "eps", "target")])
    columns = {name: _reorder(columns[name], order) for name in (*COLUMNS, *extra)}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(order)))


def _compute_in_memory(
    compute: Callable[[int], list[dict[str, Any]]], attack: Attack, batch_size: int, warn: Callable[[str], None] | None
) -> list[dict[str, Any]]:
    """Compute rows with a batch size, which is reduced where they do not depend on it and memory runs out."""
    if attack.depends_on_batch_size():
        return compute(batch_size)
    parts, used = halve_until_it_fits(compute, batch_size)
    if used < batch_size:
        note = f"ran out of memory; computed with a batch size of {used}"
        if warn:
            warn(note)
        else:
            warnings.warn(f"'{attack.name}' {note}.", RuntimeWarning, stacklevel=3)
    return parts


def _compute_guarded(
    compute: Callable[[Guard], list[dict[str, Any]]], model: nn.Module, attack: Attack
) -> list[dict[str, Any]]:
    """Compute rows with one full check of the model at their end if the attack is built in, else after every budget.

    If the check at the end finds a violation, all rows are computed again with a check after every budget, which tells
    the samples that are invalid.
    """
    if attack.is_built_in():
        guard = QuickGuard(model)
        try:
            parts = compute(guard)
        finally:
            violation = guard.finish()
        if violation is None:
            return parts
    return compute(FullGuard(model))


def _concatenate(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns of all parts in one: a scalar stands for all rows of its part."""
    lengths = [len(part["index"]) for part in parts]
    return {name: _concatenate_column([part[name] for part in parts], lengths) for name in parts[0]}


def _concatenate_column(values: Sequence[Any], lengths: Sequence[int]) -> Any:
    if all(isinstance(value, np.ndarray) for value in values):
        return np.concatenate(values)
    if all(np.isscalar(value) for value in values):
        return np.repeat(np.array(values), lengths)
    return list(itertools.chain.from_iterable(values))


def _reorder(column: Any, order: np.ndarray) -> Any:
    """Return a column with its rows in an order; a value that is the same in all rows as it is."""
    if isinstance(column, np.ndarray):
        return column[order]
    return [column[row] for row in order] if isinstance(column, list) else column


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
    data: Data


def _evaluate_batches(
    model: nn.Module,
    data: Data,
    attack: Attack,
    seed: int,
    batch_spans: Sequence[Span],
    extra_columns: ExtraColumns,
    guard: Guard,
) -> Iterator[dict[str, Any]]:
    """Yield the columns of each (batch, target, budget)."""
    device = device_of(model)
    for start, stop in batch_spans:
        images = data.images[start:stop].to(device)
        labels = data.labels[start:stop].to(device)
        indices = torch.arange(start, stop, device=device)
        counted = CountedModel(model, Counts.zeros(len(images)))
        with torch.no_grad():
            logits = counted(images)
        _check_clean_logits(logits, data.classes)
        draws = Draws(seed, indices)
        batch = _Batch(counted, images, labels, indices, predict(logits), draws, data)
        names = (*data.class_names, *map(str, range(data.classes, logits.shape[1])))
        counts_before = Counts.zeros(len(images))
        for target, goal in attack.goal_spec.resolve(labels, names, logits, draws):
            for budget, final, outcome in _attack_batch(batch, attack, goal, guard):
                counts = {name: count.numpy() for name, count in vars(counted.counts.since(counts_before)).items()}
                counts_before = counted.counts.copy()
                columns = {**_sample_columns(batch, budget, target), **outcome, **counts}
                yield {**columns, **extra_columns(AttackedBatch(images, final, columns))}


def _sample_columns(batch: _Batch, budget: Budget, target: Tensor | None) -> dict[str, Any]:
    return {
        "norm": budget.norm_label,
        "eps": float(budget.eps),
        "unit": budget.unit,
        "target": -1 if target is None else target.cpu().numpy(),
        "index": batch.indices.cpu().numpy(),
        "label": batch.labels.cpu().numpy(),
        "clean_pred": batch.clean_predictions.cpu().numpy(),
    }


def _attack_batch(
    batch: _Batch, attack: Attack, goal: Goal, guard: Guard
) -> Iterator[tuple[Budget, Tensor, dict[str, Any]]]:
    """Attack the samples that do not reach the goal already, and predict on the adversarial images of each budget.

    Images that are equal to the clean one or to that of the previous budget are not predicted again.
    """
    rows = torch.nonzero(~goal.reached(batch.clean_predictions)).flatten()
    model, images = batch.model.select(rows), _take(batch.images, rows)
    budgets = [budget.for_samples(batch.data, batch.indices[rows]) for budget in attack.budgets]
    sweep = attack.sweep(model, images, goal.select(rows), budgets, batch.draws.select(rows), guard)
    final, predictions = batch.images, batch.clean_predictions
    for budget in budgets:
        violations = np.full(len(batch.images), "", dtype=object)
        parameters, previous = None, final
        if len(rows):
            adversarial = next(sweep)
            parameters = adversarial.parameters
            violations[rows.cpu().numpy()] = [violation or "" for violation in adversarial.violations]
            final = _put(batch.images, rows, adversarial.images)
        delta = final - batch.images
        linf = NORMS["linf"].size(delta)
        is_clean = linf == 0
        predictions = torch.where(is_clean, batch.clean_predictions, predictions)
        new = torch.nonzero(~(is_clean | _is_same(final, previous))[rows]).flatten()
        if len(new):
            with torch.no_grad():
                asked = model if len(new) == len(rows) else model.select(new)
                predictions[rows[new]] = predict(asked(_take(final, rows[new])))
        sizes = _size_columns(budget, delta, linf, rows, parameters)
        yield budget, final, {**_result_columns(predictions, goal, violations), **sizes}


def _is_same(images: Tensor, others: Tensor) -> Tensor:
    """Return which images are equal, (n,)."""
    return ~(images - others).abs_().flatten(1).amax(1).bool()


def _put(images: Tensor, rows: Tensor, changed: Tensor) -> Tensor:
    """Return the images with those of ascending rows replaced, without a copy if these are all rows."""
    return changed.contiguous() if len(rows) == len(images) else images.index_copy(0, rows, changed)


def _take(images: Tensor, rows: Tensor) -> Tensor:
    """Return the images of ascending rows, without a copy if these are all rows."""
    return images if len(rows) == len(images) else images[rows]


def _size_columns(
    budget: Budget, delta: Tensor, linf: Tensor, rows: Tensor, parameters: Tensor | None
) -> dict[str, Any]:
    """Return the size of each change in linf, l2 and the budget's own norm, and the parameters of transformations."""
    sizes = {"linf": linf.cpu().numpy(), "l2": NORMS["l2"].size(delta).cpu().numpy()}
    if not isinstance(budget, TransformationBudget):
        own = sizes[budget.norm] if budget.norm in sizes else budget.ball.size(delta).cpu().numpy()
        return {**sizes, "size": own}
    values = torch.zeros(len(delta), len(budget.parameter_names), dtype=torch.float64)
    if parameters is not None:
        values[rows.cpu()] = parameters.cpu()
    columns = dict(zip(budget.parameter_names, values.numpy().T, strict=True))
    return {**sizes, "size": budget.size(values).numpy(), **columns}


def _result_columns(predictions: Tensor, goal: Goal, violations: np.ndarray) -> dict[str, Any]:
    violations = violations.astype(str)
    valid = violations == ""
    return {
        "adv_pred": predictions.cpu().numpy().copy(),  # predictions of the next budget are written to the same tensor
        "fooled": goal.reached(predictions).cpu().numpy() & valid,
        "valid": valid,
        "violation": violations,
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
