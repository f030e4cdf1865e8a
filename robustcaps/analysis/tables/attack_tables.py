"""Every table that is made from the rows of attacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from robustcaps.analysis.tables.comparisons import (
    compare_attacks,
    compare_models,
    comparison_grids,
)
from robustcaps.analysis.tables.matrices import target_grids, target_matrix, transfer_grids, transfer_matrix
from robustcaps.analysis.tables.models import model_grids, tabulate_models
from robustcaps.analysis.tables.perturbation_norms import (
    compare_norms,
    distance_grids,
    norm_comparison_grids,
    smallest_norms,
    tabulate_distances,
)
from robustcaps.analysis.tables.ranking import (
    clean_accuracy,
    compare_auc,
    difference_grids,
    rank_models,
    ranking_grids,
)
from robustcaps.analysis.tables.robust_auc import auc_grids, tabulate_auc, without_groups
from robustcaps.analysis.tables.summary import summarise, summary_grids, with_worst_case
from robustcaps.utils.grid import Grid


@dataclass(frozen=True, eq=False)
class AttackRows:
    """The rows of a run's attacks, and what several tables derive from them, computed once."""

    rows: pd.DataFrame
    models: Sequence[Mapping[str, Any]] = ()
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The names of each dataset's classes."""

    @cached_property
    def with_worst_case(self) -> pd.DataFrame:
        """The rows, and those of the per-sample worst case over attacks."""
        return with_worst_case(self.rows)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One line per (data, model, attack, goal, budget)."""
        return summarise(self.with_worst_case)

    @cached_property
    def norms(self) -> pd.DataFrame:
        """The smallest perturbation of each sample and minimum-norm attack."""
        return smallest_norms(self.rows)

    @cached_property
    def model_comparisons(self) -> pd.DataFrame:
        """Which model is more robust."""
        return compare_models(without_groups(self.with_worst_case, self.models))

    @cached_property
    def auc(self) -> pd.DataFrame:
        """Robust AUC of groups of models."""
        return tabulate_auc(self.with_worst_case, self.models)

    @cached_property
    def norm_comparisons(self) -> pd.DataFrame:
        """Which model needs larger perturbations."""
        return compare_norms(self.norms)

    @cached_property
    def ranking(self) -> pd.DataFrame:
        """The models by robust AUC."""
        return rank_models(self.with_worst_case, clean_accuracy(self.rows), self.summary, self.models)


@dataclass(frozen=True)
class AttackTable:
    """A table made from the rows of attacks; it is written as `name`.csv and `name`.md."""

    name: str
    tabulate: Callable[[AttackRows], pd.DataFrame]
    grids: Callable[[pd.DataFrame], list[Grid]]


def _models(attacks: AttackRows) -> pd.DataFrame:
    return tabulate_models(attacks.models, attacks.summary) if attacks.models else pd.DataFrame()


ATTACK_TABLES = (
    AttackTable("ranking", lambda attacks: attacks.ranking, ranking_grids),
    AttackTable("differences", lambda attacks: compare_auc(attacks.with_worst_case, attacks.models), difference_grids),
    AttackTable("table", lambda attacks: attacks.summary, summary_grids),
    AttackTable("auc", lambda attacks: attacks.auc, auc_grids),
    AttackTable("transfer", lambda attacks: transfer_matrix(attacks.rows), transfer_grids),
    AttackTable("targets", lambda attacks: target_matrix(attacks.rows, attacks.classes), target_grids),
    AttackTable("distances", lambda attacks: tabulate_distances(attacks.norms, attacks.models), distance_grids),
    AttackTable("sizes", lambda attacks: attacks.norm_comparisons, norm_comparison_grids),
    AttackTable("comparisons", lambda attacks: attacks.model_comparisons, comparison_grids),
    AttackTable("attack_comparisons", lambda attacks: compare_attacks(attacks.rows), comparison_grids),
    AttackTable("models", _models, model_grids),
)
