"""One attack on one model, or one diagnosis, without a suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from torch import nn

from robustcaps.attacks.evaluation import evaluate
from robustcaps.data.base import Data, Progress
from robustcaps.diagnostics.verdict import Verdict, diagnose
from robustcaps.errors import PluginFailed, UserError
from robustcaps.execution.execute_cell import explain
from robustcaps.registry import ATTACKS
from robustcaps.suite.plan import check_fit
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import AttackSpec, DataSpec, ModelSpec


def attack_model(
    model_spec: ModelSpec,
    data_spec: DataSpec,
    attack_spec: AttackSpec,
    config: RuntimeConfig,
    *,
    seed: int = 0,
    batch_size: int = 64,
    loading: Progress | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> pd.DataFrame:
    """Return the rows of one attack on one model; what a plugin raises is named with its file and line."""
    resolver = Resolver(config)
    attack = resolver.attack(attack_spec)
    model, data = _load_both(resolver, model_spec, data_spec, loading)
    options: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "model_name": model_spec.use, "suite": "attack"}
    try:
        return evaluate(model, data, attack, **options, progress=progress, warn=warn)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, UserError) or ATTACKS.entry(attack_spec.use).built_in:
            raise
        raise PluginFailed(explain(error, attack_spec.use)) from error


def diagnose_model(
    model_spec: ModelSpec,
    data_spec: DataSpec,
    config: RuntimeConfig,
    *,
    eps: float,
    checks: Sequence[str] | None = None,
    loading: Progress | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Verdict:
    """Return the verdict on one model; `options` are those of `diagnose`."""
    resolver = Resolver(config)
    model, data = _load_both(resolver, model_spec, data_spec, loading)
    return diagnose(model, data, eps, checks=checks, progress=progress, **options)


def _load_both(
    resolver: Resolver, model_spec: ModelSpec, data_spec: DataSpec, loading: Progress | None
) -> tuple[nn.Module, Data]:
    """Return the model and the data, which must fit each other."""
    model, data = resolver.model(model_spec, data_spec), resolver.data(data_spec, loading)
    try:
        check_fit(model, data)
    except UserError as error:
        raise UserError(f"model '{model_spec.use}': {error}") from error
    return model, data
