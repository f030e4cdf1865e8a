"""Transfer attack: adversarial images are crafted on surrogate models and evaluated on the attacked model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.composite.inner_attack import InnerAttack, build_inner_attack
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.violations import Violation
from robustcaps.errors import UserError
from robustcaps.models.cards import weights_digest
from robustcaps.registry import ATTACKS
from robustcaps.utils.printable import printable
from robustcaps.utils.sample_random import Draws


class SurrogateEnsemble(nn.Module):
    """Ensemble of surrogates: the mean of their log-probabilities (Liu et al. 2017)."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean log-probabilities, as logits."""
        return torch.stack([member(images).log_softmax(1) for member in self.members]).mean(0)


class CraftedSample(NamedTuple):
    """The adversarial images of a sample, one per budget, with their violations and costs."""

    images: list[Tensor]
    violations: list[Violation | None]
    costs: list[Tensor]
    """(2,): forwards, backwards."""


class TransferAttack(Attack):
    """Craft adversarial images on surrogates, and cache them for the next attacked model."""

    def __init__(self, surrogates: Sequence[str | nn.Module], attack: Attack) -> None:
        self.inner_attacks = (attack,)
        self.goals, self.norms, self.randomised = attack.goals, attack.norms, attack.randomised
        self.passes = attack.passes
        self.surrogate_models = tuple(surrogates)
        self.surrogates = tuple(x if isinstance(x, str) else type(x).__name__ for x in surrogates)
        self.surrogate_label = printable("+".join(self.surrogates))
        self.surrogate: nn.Module | None = None
        self.digest = ""
        self.cache: dict[str, CraftedSample] = {}

    def load_surrogates(self, load: Callable[[str], nn.Module]) -> None:
        """Load the surrogates; clear the cache if they differ from the previous ones."""
        super().load_surrogates(load)
        members = [load(x) if isinstance(x, str) else x.eval() for x in self.surrogate_models]
        self.surrogate = members[0] if len(members) == 1 else SurrogateEnsemble(members).eval()
        digest = weights_digest(self.surrogate)
        if digest != self.digest:
            self.digest, self.cache = digest, {}

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the images crafted for one budget."""
        return next(self.run_sweep(model, images, goal, [budget], draws))

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor]:
        """Yield the images crafted for each budget; their cost is counted for cached images as well."""
        radii = torch.stack([budget.radius(images).flatten() for budget in budgets], 1).tolist()
        goals = [(goal.sign, target, budgets[0].norm) for target in goal.classes.tolist()]
        seeds = [(draws.seed, index) for index in draws.indices.tolist()]
        keys = [_cache_key(*sample) for sample in zip(images, goals, seeds, radii, strict=True)]
        missing = [row for row, key in enumerate(keys) if key not in self.cache]
        if missing:
            rows = torch.tensor(missing, device=images.device)
            subset = images[rows], goal.select(rows), [budget.select(rows) for budget in budgets], draws.select(rows)
            self._craft([keys[row] for row in missing], *subset)
        samples = [self.cache[key] for key in keys]
        for position in range(len(budgets)):
            adversarial = torch.stack([sample.images[position] for sample in samples]) if samples else images
            costs = torch.stack([sample.costs[position] for sample in samples]) if samples else torch.zeros(0, 2)
            model.add_inner_violations([sample.violations[position] for sample in samples])
            for counter, cost in zip((model.counts.forwards, model.counts.backwards), costs.unbind(1), strict=True):
                counter.index_add_(0, model.rows, cost)
            yield adversarial.to(images)

    def _craft(self, keys: Sequence[str], images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws) -> None:
        """Run the inner attack on the surrogates and cache its images with their costs."""
        if self.surrogate is None:
            raise UserError("transfer: the surrogates are not loaded; run the attack with rc.evaluate or in a suite.")
        counts = Counts.zeros(len(images))
        surrogate = CountedModel(self.surrogate, counts, originals=images)
        samples = [CraftedSample([], [], []) for _ in keys]
        before = counts.copy()
        for batch in self.inner_attacks[0].sweep(surrogate, images, goal, budgets, draws):
            spent = counts.since(before)
            before = counts.copy()
            costs = torch.stack([spent.forwards, spent.backwards], 1)
            for sample, image, violation, cost in zip(samples, batch.images, batch.violations, costs, strict=True):
                sample.images.append(image)
                sample.violations.append(violation)
                sample.costs.append(cost)
        self.cache.update(zip(keys, samples, strict=True))


def _cache_key(image: Tensor, *rest: object) -> str:
    """Return a hash of everything that the crafted images depend on, besides the surrogates and the attack."""
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
            min_length=1, description="surrogate models, e.g. 'cnn:a'; several form an ensemble of log-probabilities"
        ),
    ],
    attack: InnerAttack = "bim",
) -> Attack:
    """Transfer attack: craft on surrogate models with any attack, evaluate on the attacked one."""
    inner = build_inner_attack(attack, early_stop=False)
    if _crafts_on_surrogates(inner):
        raise UserError("transfer: its attack cannot be a transfer attack itself; choose one such as 'bim'.")
    return TransferAttack(surrogate, inner)


def _crafts_on_surrogates(attack: Attack) -> bool:
    """Return whether an attack, or one inside it, has surrogates of its own."""
    return bool(attack.surrogates) or any(map(_crafts_on_surrogates, attack.inner_attacks))
