"""Black-box transfer: images crafted on other models, tried on the attacked one. One crafting serves all targets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.nested import Inner, build_inner
from robustcaps.errors import UserError
from robustcaps.models.cards import weights_digest
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws


class Ensemble(nn.Module):
    """The mean of the log-probabilities of several models (Liu et al. 2017)."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean log-probabilities, as logits."""
        return torch.stack([member(images).log_softmax(1) for member in self.members]).mean(0)


class Crafted(NamedTuple):
    """What was made of a sample: for every budget an image, the rule it broke if any, and what it cost."""

    images: list[Tensor]
    broken: list[str]
    costs: list[Tensor]
    """(2,): forwards, backwards."""


class Transfer(Attack):
    """Crafts on surrogates, and remembers what it crafted: the next target gets the same images for nothing."""

    def __init__(self, surrogates: Sequence[str | nn.Module], attack: Attack) -> None:
        self.parts = (attack,)
        self.goals, self.norms, self.randomised = attack.goals, attack.norms, attack.randomised
        self.passes = attack.passes
        self.given = tuple(surrogates)
        self.surrogates = tuple(x if isinstance(x, str) else type(x).__name__ for x in surrogates)
        self.crafted_on = "+".join(self.surrogates)
        self.model: nn.Module | None = None
        self.digest = ""
        self.crafted: dict[str, Crafted] = {}
        """By sample."""

    def bind(self, load: Callable[[str], nn.Module]) -> None:
        """Load the surrogates; what was crafted on others is forgotten."""
        super().bind(load)
        members = [load(x) if isinstance(x, str) else x.eval() for x in self.given]
        self.model = members[0] if len(members) == 1 else Ensemble(members).eval()
        digest = weights_digest(self.model)
        if digest != self.digest:
            self.digest, self.crafted = digest, {}

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the images crafted for one budget."""
        return next(self.run_sweep(model, images, goal, [budget], draws))

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor]:
        """Yield the images crafted for each budget; their cost is booked whoever they were crafted for."""
        radii = torch.stack([budget.radius(images).flatten() for budget in budgets], 1).tolist()
        wishes = [(goal.sign, target, budgets[0].norm) for target in goal.classes.tolist()]
        numbers = [(draws.seed, index) for index in draws.indices.tolist()]
        keys = [_key(*sample) for sample in zip(images, wishes, numbers, radii, strict=True)]
        missing = [place for place, key in enumerate(keys) if key not in self.crafted]
        if missing:
            rows = torch.tensor(missing, device=images.device)
            new = [keys[place] for place in missing]
            balls = [budget.select(rows) for budget in budgets]
            self._craft(new, images[rows], goal.select(rows), balls, draws.select(rows))
        for place in range(len(budgets)):
            made = [self.crafted[key] for key in keys]
            proposed = torch.stack([sample.images[place] for sample in made]) if keys else images
            costs = torch.stack([sample.costs[place] for sample in made]) if keys else torch.zeros(0, 2)
            model.complain([sample.broken[place] for sample in made])
            for counter, cost in zip((model.counts.forwards, model.counts.backwards), costs.unbind(1), strict=True):
                counter.index_add_(0, model.rows, cost)
            yield proposed.to(images)

    def _craft(self, keys: Sequence[str], images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws) -> None:
        """Run the attack on the surrogates and keep what it gives for each sample, with its cost."""
        if self.model is None:
            raise UserError("transfer: its surrogates are not loaded; run it with rc.evaluate or in a suite.")
        counts = Counts.zeros(len(images))
        surrogate = CountedModel(self.model, counts, originals=images)
        kept = [Crafted([], [], []) for _ in keys]
        before = counts.copy()
        for proposal in self.parts[0].sweep(surrogate, images, goal, budgets, draws):
            spent = counts.since(before)
            before = counts.copy()
            costs = torch.stack([spent.forwards, spent.backwards], 1)
            for sample, image, name, cost in zip(kept, proposal.images, proposal.violations, costs, strict=True):
                sample.images.append(image)
                sample.broken.append(name)
                sample.costs.append(cost)
        self.crafted.update(zip(keys, kept, strict=True))


def _key(image: Tensor, *rest: object) -> str:
    """Return what the crafting of a sample depends on, beside the surrogates and the attack."""
    return hashlib.sha256(image.detach().cpu().numpy().tobytes() + repr(rest).encode()).hexdigest()


def _as_list(value: object) -> object:
    return list(value) if isinstance(value, (list, tuple)) else [value]


@ATTACKS.register("transfer")
def transfer(
    *,
    surrogate: Annotated[
        list[str | nn.Module],
        BeforeValidator(_as_list),
        Field(
            min_length=1, description="what to craft on, e.g. 'cnn:a'; of several, the mean of their log-probabilities"
        ),
    ],
    attack: Inner = "bim",
) -> Attack:
    """Black-box transfer: craft on surrogate models with any attack, try on the attacked one."""
    return Transfer(surrogate, build_inner(attack, early_stop=False))
