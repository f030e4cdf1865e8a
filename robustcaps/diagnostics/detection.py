"""The detection diagnostic: attacks on a capsule network with a reconstruction detector (Frosst et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import pandas as pd
import torch
from pydantic import Field
from torch import nn

from robustcaps.attacks import load_attack
from robustcaps.attacks.base import Attack
from robustcaps.attacks.norms import NormName
from robustcaps.data.base import Data, Progress
from robustcaps.diagnostics.kinds.detection import CLEAN
from robustcaps.diagnostics.reconstruction_detector import ReconstructionDetector, detect
from robustcaps.errors import UserError

AttackEntry = str | dict[str, Any]
"""An attack by name, or {use = NAME, name = LABEL, option = value, ...}."""
DEFAULT_ATTACKS: tuple[AttackEntry, ...] = ("fgsm", "bim", "reconstruction")
ATTACK_COLUMNS = ("attack", "goal", "norm", "unit", "eps", "seed", "index", "label", "adv_pred", "fooled")
DETECTOR_COLUMNS = ("error", "flagged", "undetected")

Fraction = Annotated[float, Field(gt=0, lt=1)]


def detection_rows(
    model: nn.Module,
    data: Data,
    *,
    eps: float,
    norm: NormName,
    seed: int,
    progress: Progress | None,
    attacks: Annotated[Sequence[AttackEntry], Field(min_length=1)] = DEFAULT_ATTACKS,
    quantile: Fraction = 0.95,
    validation: Fraction = 0.5,
) -> pd.DataFrame:
    """Return one row per (attack, image), clean images first: fooled, the reconstruction error, flagged.

    The last images of the data, a fraction `validation`, are not attacked. They set the threshold of the detector such
    that a fraction `quantile` of them passes. On a test split, the model has seen neither part in training.
    """
    attacked, held_out = _split(data, validation)
    detector = _fit_detector(model, held_out, quantile)
    parts = [detect(model, attacked, load_attack(CLEAN), detector)]
    for attack in load_attacks(attacks, eps=eps, norm=norm):
        parts.append(detect(model, attacked, attack, detector, seed=seed))
        if progress:
            progress(len(parts) - 1, len(attacks))
    rows = pd.concat(parts, ignore_index=True)[[*ATTACK_COLUMNS, *DETECTOR_COLUMNS]]
    return rows.assign(threshold=detector.threshold, quantile=quantile, validated_on=len(held_out))


def load_attacks(attacks: Sequence[AttackEntry], *, eps: float = 0.1, norm: NormName = "linf") -> list[Attack]:
    """Return the attacks of a diagnostic, all with the diagnostic's budget."""
    loaded: list[Attack] = []
    for entry in attacks:
        options = {"use": entry} if isinstance(entry, str) else dict(entry)
        if not isinstance(options.get("use"), str):
            raise UserError(f"attacks: {entry!r} must name an attack with 'use'.")
        for name in ("eps", "norm"):
            if name in options:
                raise UserError(f"attacks: '{options['use']}' must not set {name}; set it on the diagnostic.")
        attack = load_attack(**options, eps=eps, norm=norm)
        if attack.surrogates:
            raise UserError(f"attacks: '{attack.name}' needs surrogate models, which detection does not support.")
        if attack.name in {CLEAN, *(other.name for other in loaded)}:
            raise UserError(f"attacks: the name '{attack.name}' is already taken; choose another with 'name'.")
        loaded.append(attack)
    return loaded


def _split(data: Data, validation: float) -> tuple[Data, Data]:
    """Return the first images, which are attacked, and the rest, which sets the threshold."""
    attacked = len(data) - round(validation * len(data))
    if not 0 < attacked < len(data):
        problem = f"{validation:g} of {len(data)} images leaves no image to attack or none to set the threshold"
        raise UserError(f"validation: {problem}.")
    return data.first(attacked), data.select(torch.arange(attacked, len(data)))


def _fit_detector(model: nn.Module, data: Data, quantile: float) -> ReconstructionDetector:
    """Return a detector with its threshold set on clean images; the error names a model without a decoder."""
    try:
        return ReconstructionDetector.fit(model, data.images, quantile=quantile)
    except UserError as error:
        hint = "Restrict the diagnostic to models with a decoder: models = [...]."
        raise UserError(f"{type(model).__name__} does not support detection: {error} {hint}") from error
