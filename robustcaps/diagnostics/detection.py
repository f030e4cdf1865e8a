"""Detection in a suite: attacks against a capsule network and its reconstruction detector (Frosst et al. 2018)."""

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

AttackWords = str | dict[str, Any]
"""An attack by name, or {use = NAME, name = LABEL, option = value, ...}."""
PUBLISHED: tuple[AttackWords, ...] = ("fgsm", "bim", "reconstruction")
COLUMNS = ("attack", "goal", "norm", "unit", "eps", "seed", "index", "label", "adv_pred", "fooled")
LOOKED = ("error", "flagged", "undetected")

Share = Annotated[float, Field(gt=0, lt=1)]


def detection_rows(
    model: nn.Module,
    data: Data,
    *,
    eps: float,
    norm: NormName,
    seed: int,
    progress: Progress | None,
    attacks: Annotated[Sequence[AttackWords], Field(min_length=1)] = PUBLISHED,
    quantile: Share = 0.95,
    validation: Share = 0.5,
) -> pd.DataFrame:
    """Return one row per (attack, image): fooled, the reconstruction error, flagged; first of all for clean images.

    The last images of the data, `validation` of them, are not attacked: they set the threshold, so that this
    `quantile` of them passes. Neither they nor those attacked were trained on, if the data is a test split.
    """
    attacked, kept = _parted(data, validation)
    detector = _detector(model, kept, quantile)
    parts = [detect(model, attacked, load_attack(CLEAN), detector)]
    for attack in load_attacks(attacks, eps=eps, norm=norm):
        parts.append(detect(model, attacked, attack, detector, seed=seed))
        if progress:
            progress(len(parts) - 1, len(attacks))
    rows = pd.concat(parts, ignore_index=True)[[*COLUMNS, *LOOKED]]
    return rows.assign(threshold=detector.threshold, quantile=quantile, validated_on=len(kept))


def load_attacks(attacks: Sequence[AttackWords], *, eps: float = 0.1, norm: NormName = "linf") -> list[Attack]:
    """Return the attacks that a diagnostic names, all with its own budget."""
    made: list[Attack] = []
    for words in attacks:
        options = {"use": words} if isinstance(words, str) else dict(words)
        if not isinstance(options.get("use"), str):
            raise UserError(f"attacks: {words!r} must name an attack with 'use'.")
        for name in ("eps", "norm"):
            if name in options:
                raise UserError(f"attacks: '{options['use']}' has {name} of its own; give it to the diagnostic.")
        attack = load_attack(**options, eps=eps, norm=norm)
        if attack.surrogates:
            raise UserError(f"attacks: '{attack.name}' crafts on other models; detection has but one.")
        if attack.name in {CLEAN, *(other.name for other in made)}:
            raise UserError(f"attacks: two are called '{attack.name}'; give one a name.")
        made.append(attack)
    return made


def _parted(data: Data, validation: float) -> tuple[Data, Data]:
    """Return the images to attack and those that set the threshold: a dataset's first images are a fair sample."""
    attacked = len(data) - round(validation * len(data))
    if not 0 < attacked < len(data):
        raise UserError(f"validation: {validation:g} of {len(data)} images leaves none to attack, or to compare with.")
    return data.first(attacked), data.select(torch.arange(attacked, len(data)))


def _detector(model: nn.Module, data: Data, quantile: float) -> ReconstructionDetector:
    """Return the detector; a model that has none is named."""
    try:
        return ReconstructionDetector.fit(model, data.images, quantile=quantile)
    except UserError as error:
        told = f"a {type(model).__name__} detects nothing: {error} Name the models that do: models = [...]."
        raise UserError(told) from error
