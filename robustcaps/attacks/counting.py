"""The model as attacks see it: any module from images to logits, with its passes counted per sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from robustcaps.attacks.query_budget import QueryBudget
from robustcaps.attacks.violations import Violation
from robustcaps.errors import UserError
from robustcaps.models.base import CapsuleClassifier, Classifier, ClassifierOutput

Output = TypeVar("Output")


@dataclass(frozen=True, eq=False)
class Counts:
    """Passes of each sample of a batch, (n,) each; queries are the forward passes of the attacked model alone."""

    forwards: Tensor
    backwards: Tensor
    queries: Tensor

    @classmethod
    def zeros(cls, n: int) -> Counts:
        """Return counters for n samples, all zero."""
        return cls(*(torch.zeros(n, dtype=torch.float64) for _ in range(3)))

    def since(self, before: Counts) -> Counts:
        """Return the passes since an earlier copy of the counters."""
        return Counts(self.forwards - before.forwards, self.backwards - before.backwards, self.queries - before.queries)

    def copy(self) -> Counts:
        """Return a copy of the current counters."""
        return Counts(self.forwards.clone(), self.backwards.clone(), self.queries.clone())


@dataclass
class SharedPassState:
    """State that all wrappers of a model share: the random state of its passes and the total number of passes.

    A randomised model draws from its own random state, so that the global one remains as the attack left it.
    """

    rng_state: Tensor = field(default_factory=lambda: torch.Generator().manual_seed(0).get_state())
    total_forwards: float = 0.0
    """All forward passes counted so far, to detect changes of the counts, which attacks have access to."""
    running_passes: ClassVar[int] = 0
    """Number of passes of any counted model that are running now; calls inside of them are counted already."""

    def run(self, function: Callable[[Tensor], Output], images: Tensor) -> Output:
        """Run a pass with the model's own random state."""
        outer_state = torch.get_rng_state()
        torch.set_rng_state(self.rng_state)
        SharedPassState.running_passes += 1
        try:
            return function(images)
        finally:
            SharedPassState.running_passes -= 1
            self.rng_state = torch.get_rng_state()
            torch.set_rng_state(outer_state)


class CountedModel(nn.Module):
    """A model whose passes are counted for the samples of a batch; `select` restricts it to some of them.

    If an attack passes a different number of images than there are samples, each image is counted for the sample whose
    original image (`originals`) is nearest.
    """

    def __init__(
        self,
        model: nn.Module,
        counts: Counts,
        *,
        originals: Tensor | None = None,
        query_budget: QueryBudget | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.counts = counts
        self.rows = torch.arange(len(counts.forwards))
        self.whole_shares = torch.ones(len(self.rows), dtype=torch.float64)
        self.originals = originals
        self.query_budget = query_budget
        self.pass_state = SharedPassState()
        self.inner_violations: dict[int, Violation] = {}

    def select(self, rows: Tensor) -> CountedModel:
        """Return the same model for some of the samples, repeated rows allowed; passes are counted for those."""
        return self._replace(
            rows=self.rows[rows.cpu()],
            whole_shares=torch.ones(len(rows), dtype=torch.float64),
            originals=None if self.originals is None else self.originals[rows],
        )

    def for_attack(self, images: Tensor, query_budget: QueryBudget | None) -> CountedModel:
        """Return the same model for an attack on these images, limited by a query budget."""
        return self._replace(originals=images, query_budget=query_budget, inner_violations={})

    def _replace(self, **attributes: Any) -> CountedModel:
        """Return a copy with other attributes; nn.Module's constructor takes longer than a small model."""
        copied = CountedModel.__new__(CountedModel)
        tables = {name: value.copy() for name, value in vars(self).items() if isinstance(value, dict)}
        shared = {"inner_violations": self.inner_violations}
        vars(copied).update(vars(self) | tables | shared | attributes)
        return copied

    def add_inner_violations(self, violations: Sequence[Violation | None]) -> None:
        """Record the violations of an inner attack, one per sample."""
        found = zip(self.rows.tolist(), violations, strict=True)
        self.inner_violations.update((row, violation) for row, violation in found if violation)

    def list_inner_violations(self) -> list[Violation | None]:
        """Return the recorded violation of an inner attack for each sample, if any."""
        if not self.inner_violations:
            return [None] * len(self.rows)
        return [self.inner_violations.get(row) for row in self.rows.tolist()]

    @contextmanager
    def count_direct_calls(self) -> Iterator[None]:
        """Count calls of the wrapped model as well, for attacks that unwrap it; a compiled model takes no hooks."""

        def count(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if SharedPassState.running_passes or not inputs or not isinstance(inputs[0], Tensor):
                return None
            rows, share = self._count_forward(inputs[0])
            return (self._count_backward(inputs[0], rows, share), *inputs[1:])

        if getattr(self.model, "_compiled_call_impl", None) is not None:
            yield
            return
        hook = self.model.register_forward_pre_hook(count)
        try:
            yield
        finally:
            hook.remove()

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the images and count the pass."""
        logits = _check_logits(self._run_pass(self.model, images), images)
        self._record_query(images, logits)
        return logits

    def classify(self, images: Tensor) -> ClassifierOutput:
        """Return logits and scores from one pass; only models of the zoo have scores."""
        output = self._run_pass(self._require_classifier("scores").classify, images)
        self._record_query(images, output.logits)
        return output

    def vote_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class logits without and with routing from one pass; only capsule networks have them."""
        unrouted, routed = self._run_pass(self._require_capsules().vote_logits, images)
        self._record_query(images, routed)
        return unrouted, routed

    def training_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss (n,) that the model was trained on, with its schedules at their end."""
        classifier = self._require_classifier("training loss")
        return self._run_pass(lambda hooked: classifier.training_loss(hooked, labels), images)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def has_tampered_counts(self, before: Counts, total_before: float) -> bool:
        """Return whether anything but this class changed the counts since a copy `before` and its total."""
        since = self.counts.since(before)
        differs = abs(float(since.queries.sum()) - (self.pass_state.total_forwards - total_before)) > 1e-6
        return differs or bool((since.forwards < since.queries).any() or (since.backwards < 0).any())

    def _require_classifier(self, what: str) -> Classifier:
        if not isinstance(self.model, Classifier):
            raise UserError(
                f"model {type(self.model).__name__} has no {what}: attack its logits instead (loss = 'log-odds')."
            )
        return self.model

    def _require_capsules(self) -> CapsuleClassifier:
        if not isinstance(self.model, CapsuleClassifier):
            raise UserError(f"model {type(self.model).__name__} has no votes: it is not a capsule network.")
        return self.model

    def _run_pass(self, function: Callable[[Tensor], Output], images: Tensor) -> Output:
        """Run a forward pass and count it; its backward pass is counted when gradients reach the images."""
        rows, share = self._count_forward(images)
        return self.pass_state.run(function, self._count_backward(images, rows, share))

    def _count_forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Count a forward pass and return the rows it is counted for, with the share of each."""
        rows, share = self._assign_rows(images)
        if self.query_budget is not None:
            share = share * self.query_budget.spend(rows)
        self.counts.forwards.index_add_(0, rows, share)
        self.counts.queries.index_add_(0, rows, share)
        self.pass_state.total_forwards += len(rows) if share is self.whole_shares else float(share.sum())
        return rows, share

    def _count_backward(self, images: Tensor, rows: Tensor, share: Tensor) -> Tensor:
        """Return the images with a hook that counts a backward pass whenever a gradient reaches them."""
        if not images.requires_grad:
            return images

        def count(_: Tensor) -> None:
            self.counts.backwards.index_add_(0, rows, share)

        hooked = images.view_as(images)
        hooked.register_hook(count)  # type: ignore[no-untyped-call]
        return hooked

    def _record_query(self, images: Tensor, logits: Tensor) -> None:
        if self.query_budget is not None:
            self.query_budget.record(self._assign_rows(images)[0], images.detach(), logits.detach())

    def _assign_rows(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows that a pass of these images is counted for, and the share of a pass that each gets."""
        if len(images) == len(self.rows) or not len(self.rows):
            return self.rows, self.whole_shares
        if self.originals is None or images.shape[1:] != self.originals.shape[1:]:
            share = len(images) / len(self.rows)
            return self.rows, torch.full((len(self.rows),), share, dtype=torch.float64)
        nearest = torch.cdist(images.detach().flatten(1).float(), self.originals.flatten(1)).argmin(1).cpu()
        return self.rows[nearest], torch.ones(len(images), dtype=torch.float64)


def _check_logits(logits: Tensor, images: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model must return logits ({len(images)}, classes) for {len(images)} images, not {shape}.")
    return logits
