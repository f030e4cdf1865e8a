"""The vote attack (Gu et al. 2021): around the routing, which blurs the gradients of capsule networks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.gradient import Iterative, Restarts, Steps, StepShare
from robustcaps.attacks.losses import log_odds_against
from robustcaps.registry import ATTACKS


def cross_entropy_on_votes(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Climb the cross-entropy of what the votes say without routing; the logits are the routed network's."""
    unrouted, routed = model.vote_logits(images)
    return goal.sign * log_odds_against(unrouted, goal.classes), routed


@ATTACKS.register("vote")
def vote(
    *,
    steps: Steps = 20,
    step: StepShare = None,
    random_start: Annotated[bool, Field(description="start from a random point of the ball, not the image")] = True,
    restarts: Restarts = 1,
) -> Attack:
    """Vote attack on capsule networks: PGD on their votes before routing (Gu et al. 2021)."""
    return Iterative(loss=cross_entropy_on_votes, steps=steps, step=step, random_start=random_start, restarts=restarts)
