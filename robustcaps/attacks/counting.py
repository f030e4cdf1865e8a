"""The model as attacks see it: any module from images to logits, with its passes counted per sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from robustcaps.attacks.query_budget import Ration
from robustcaps.errors import UserError
from robustcaps.models.base import CapsuleClassifier, Classifier, Reading

Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class Counts:
    """Passes of each sample of a batch, (n,) each: queries are the forward passes of the attacked model itself."""

    forwards: Tensor
    backwards: Tensor
    queries: Tensor

    @classmethod
    def zeros(cls, n: int) -> Counts:
        """Return fresh counters."""
        return cls(*(torch.zeros(n, dtype=torch.float64) for _ in range(3)))

    def since(self, before: Counts) -> Counts:
        """Return what has been counted since."""
        return Counts(self.forwards - before.forwards, self.backwards - before.backwards, self.queries - before.queries)

    def copy(self) -> Counts:
        """Return the counters as they are now."""
        return Counts(self.forwards.clone(), self.backwards.clone(), self.queries.clone())


@dataclass
class Noise:
    """What all wrappers of a model share: above all the state of the global generator for a model that draws from it.

    It is the model's own, so that the attacks' stays untouched.
    """

    state: Tensor = field(default_factory=lambda: torch.Generator().manual_seed(0).get_state())
    booked: float = 0.0
    """How many passes were booked in all: to be compared with the counts, which attacks can reach."""
    under_way: ClassVar[int] = 0
    """How many passes of any counted model are being made just now: what these call is booked already."""

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Let what runs inside draw on from where this model's last draw ended."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self.state)
        Noise.under_way += 1
        try:
            yield
        finally:
            Noise.under_way -= 1
            self.state = torch.get_rng_state()
            torch.set_rng_state(outside)


class CountedModel(nn.Module):
    """Wraps a model and books every pass on the batch's samples; `select` narrows it to some of them.

    `originals` are the samples' images: where an attack passes another number of images than there are samples, each
    is booked on the sample it is closest to.
    """

    def __init__(
        self,
        model: nn.Module,
        counts: Counts,
        rows: Tensor | None = None,
        *,
        originals: Tensor | None = None,
        ration: Ration | None = None,
        noise: Noise | None = None,
        complaints: dict[int, str] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.counts = counts
        self.rows = torch.arange(len(counts.forwards)) if rows is None else rows
        self.originals = originals
        self.ration = ration
        self.noise = noise or Noise()
        self.complaints = {} if complaints is None else complaints

    def select(self, rows: Tensor) -> CountedModel:
        """Return the same model for some of the samples, which may come several times; passes are booked on those."""
        originals = None if self.originals is None else self.originals[rows]
        return self._for(self.rows[rows.cpu()], originals, self.ration, self.complaints)

    def attacked(self, images: Tensor, ration: Ration | None) -> CountedModel:
        """Return the same model for an attack on these images, its passes rationed."""
        return self._for(self.rows, images, ration, {})

    def complain(self, names: Sequence[str]) -> None:
        """Note which rule an attack inside the attack broke on each sample, '' for none."""
        self.complaints.update((row, name) for row, name in zip(self.rows.tolist(), names, strict=True) if name)

    def complained(self) -> list[str]:
        """Return what was noted about each sample, '' for nothing."""
        return [self.complaints.get(row, "") for row in self.rows.tolist()]

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Book passes of the wrapped model, too, for attacks that unwrap it; a compiled one takes no hooks."""

        def book(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if Noise.under_way or not inputs or not isinstance(inputs[0], Tensor):
                return None
            rows, share = self._book(inputs[0])
            return (self._tapped(inputs[0], rows, share), *inputs[1:])

        if getattr(self.model, "_compiled_call_impl", None) is not None:
            yield
            return
        hook = self.model.register_forward_pre_hook(book)
        try:
            yield
        finally:
            hook.remove()

    def _for(
        self, rows: Tensor, originals: Tensor | None, ration: Ration | None, complaints: dict[int, str]
    ) -> CountedModel:
        shared: dict[str, Any] = {"noise": self.noise, "ration": ration, "complaints": complaints}
        return CountedModel(self.model, self.counts, rows, originals=originals, **shared)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the images and book the pass."""
        logits = _checked_logits(self._pass(self.model, images), images)
        self._note(images, logits)
        return logits

    def read(self, images: Tensor) -> Reading:
        """Return logits and scores from one pass; only zoo models know their scores."""
        reading = self._pass(self._zoo("scores").read, images)
        self._note(images, reading.logits)
        return reading

    def vote_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes' logits without and with routing, from one pass; only capsule networks have them."""
        unrouted, routed = self._pass(self._capsules().vote_logits, images)
        self._note(images, routed)
        return unrouted, routed

    def training_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss (n,) that the model was trained on, with its schedules at their end."""
        zoo = self._zoo("training loss")
        return self._pass(lambda tapped: zoo.training_loss(tapped, labels), images)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def _zoo(self, what: str) -> Classifier:
        if not isinstance(self.model, Classifier):
            raise UserError(
                f"model {type(self.model).__name__} has no {what}: attack its logits instead (loss = 'ce')."
            )
        return self.model

    def _capsules(self) -> CapsuleClassifier:
        if not isinstance(self.model, CapsuleClassifier):
            raise UserError(f"model {type(self.model).__name__} has no votes: it is no capsule network.")
        return self.model

    def _pass(self, ask: Callable[[Tensor], Answer], images: Tensor) -> Answer:
        """Ask the model and book it: a forward pass now, a backward pass whenever gradients come back to the images."""
        rows, share = self._book(images)
        with self.noise.drawn():
            return ask(self._tapped(images, rows, share))

    def _book(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Book a forward pass and return the samples it is booked on, with the share of each."""
        rows, share = self._booked_on(images)
        if self.ration is not None:
            share = share * self.ration.take(rows)
        for counter in (self.counts.forwards, self.counts.queries):
            counter.index_add_(0, rows, share)
        self.noise.booked += float(share.sum())
        return rows, share

    def tampered(self, before: Counts, booked: float) -> bool:
        """Return whether somebody else has changed the counts since they were `before`, and `booked` so many."""
        since = self.counts.since(before)
        wrong = abs(float(since.queries.sum()) - (self.noise.booked - booked)) > 1e-6
        return wrong or bool((since.forwards < since.queries).any() or (since.backwards < 0).any())

    def _note(self, images: Tensor, logits: Tensor) -> None:
        """Let the ration remember what was asked, and whether it reached the goal."""
        if self.ration is not None:
            self.ration.note(self._booked_on(images)[0], images.detach(), logits.detach())

    def _booked_on(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples that a pass of these images is booked on, and which share of a pass each gets."""
        if len(images) == len(self.rows) or not len(self.rows):
            return self.rows, torch.ones(len(self.rows), dtype=torch.float64)
        if self.originals is None or images.shape[1:] != self.originals.shape[1:]:
            share = len(images) / len(self.rows)
            return self.rows, torch.full((len(self.rows),), share, dtype=torch.float64)
        near = torch.cdist(images.detach().flatten(1).float(), self.originals.flatten(1)).argmin(1).cpu()
        return self.rows[near], torch.ones(len(images), dtype=torch.float64)

    def _tapped(self, images: Tensor, rows: Tensor, share: Tensor) -> Tensor:
        if not images.requires_grad:
            return images

        def backward(_: Tensor) -> None:
            self.counts.backwards.index_add_(0, rows, share)

        tapped = images.view_as(images)
        tapped.register_hook(backward)  # type: ignore[no-untyped-call]
        return tapped


def _checked_logits(logits: Tensor, images: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model must return logits ({len(images)}, classes) for {len(images)} images, not {shape}.")
    return logits
