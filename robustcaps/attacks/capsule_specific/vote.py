"""The vote attack (Gu et al. 2021): bypasses the routing, which obfuscates the gradients of capsule networks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.gradient_based.iterative import IterativeAttack, Restarts, Steps, StepSize
from robustcaps.attacks.losses import log_odds
from robustcaps.registry import ATTACKS


def vote_log_odds_loss(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Log-odds of the mean votes without routing; the returned logits are those of the routed network."""
    unrouted, routed = model.vote_logits(images)
    return goal.sign * log_odds(unrouted, goal.classes), routed


@ATTACKS.register("vote")
def vote(
    *,
    steps: Steps = 20,
    step: StepSize = None,
    random_start: Annotated[
        bool, Field(description="start from a random point of the ball instead of the clean image")
    ] = True,
    restarts: Restarts = 1,
) -> Attack:
    """Vote attack on capsule networks: PGD on the votes before routing (Gu et al. 2021)."""
    return IterativeAttack(
        loss=vote_log_odds_loss, steps=steps, step=step, random_start=random_start, restarts=restarts
    )
