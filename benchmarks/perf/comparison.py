"""Our networks against the textbook: time and memory of each implementation, taking turns in one run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import nn

from benchmarks.perf.implementations import (
    Implementation,
    attack,
    backend_of,
    batch_of,
    build,
    forward,
    train,
    train_layer,
)
from benchmarks.perf.memory import free_memory, peak_memory
from benchmarks.perf.timing import Action, seconds, side_by_side
from robustcaps.capsules.layers import POSE_SIZE, MatrixCapsules
from robustcaps.models.vector_capsnet import VectorCapsNet

Say = Callable[[str], None]
"""Called with what is being measured."""

EPOCH = 24_300
"""Images of the training set of smallNORB, and of the toys."""
VOTE_TENSORS = 20
"""How many tensors of the size of all votes the textbook holds at its peak, as measured: autograd keeps them."""
SAFE_SHARE = 0.75
"""How much of the free memory may be used."""


class Case(NamedTuple):
    """A network, or its routing layer alone, and the implementations that are compared on it."""

    model: str
    batch: int
    implementations: tuple[Implementation, ...]
    routing_only: bool = False

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.model}, routing only" if self.routing_only else self.model


CASES = (
    Case("matrix-capsnet-small", 32, ("robustcaps", "torch backend", "textbook")),
    Case("matrix-capsnet-small", 8, ("robustcaps", "torch backend", "textbook")),
    Case("matrix-capsnet", 32, ("robustcaps", "textbook")),
    Case("vector-capsnet", 32, ("robustcaps", "textbook")),
    Case("vector-capsnet", 32, ("robustcaps", "textbook"), routing_only=True),
)


@dataclass(frozen=True)
class Measurement:
    """What one implementation needs for one case; times are milliseconds per image."""

    model: str
    batch: int
    implementation: Implementation
    forward_ms: float
    training_ms: float
    """Forward and backward, with the gradients of all parameters."""
    attack_ms: float | None
    """Forward and backward, with the gradient of the image alone; measured for ours."""
    peak_mb: float | None
    epoch_s: float | None
    """Forward and backward of `EPOCH` images."""


class Workload(NamedTuple):
    """What an implementation has to do, once per turn."""

    forward: Action
    train: Action


def measure(cases: Iterable[Case], say: Say) -> list[list[Measurement]]:
    """Return the measurements of all cases."""
    say("compiling the kernels")
    peak_memory("matrix-capsnet-small", "robustcaps", 1)  # compiling takes memory of its own, which is not counted
    return [measure_case(case, say) for case in cases]


def affordable_batch(case: Case, implementation: Implementation) -> int:
    """Return the batch of the case, halved for the textbook until it fits into memory."""
    batch = case.batch
    if implementation == "textbook":
        bytes_per_image = 4 * VOTE_TENSORS * votes_per_image(build(case.model, "robustcaps"))
        while batch > 1 and batch * bytes_per_image > SAFE_SHARE * free_memory():
            batch //= 2
    return batch


def votes_per_image(network: nn.Module) -> int:
    """Return how many numbers the votes of all matrix capsule layers are."""
    layers = [layer for layer in network.modules() if isinstance(layer, MatrixCapsules)]
    return sum(
        layer.windows.numel() * layer.transforms.shape[-4] * layer.transforms.shape[-3] * POSE_SIZE for layer in layers
    )


def measure_case(case: Case, say: Say) -> list[Measurement]:
    """Return the measurements of one case, its implementations taking turns."""
    batches = {name: affordable_batch(case, name) for name in case.implementations}
    say(f"memory: {case.name}, batch {case.batch}")
    peaks = {} if case.routing_only else {name: peak_memory(case.model, name, batches[name]) for name in batches}
    say(f"time: {case.name}, batch {case.batch}")
    make_workload = routing_workload if case.routing_only else network_workload
    for name in batches:
        make_workload(case.model, name, batch=1).train()
    workloads = {name: make_workload(case.model, name, batch=batch) for name, batch in batches.items()}
    forward_seconds = side_by_side({name: workload.forward for name, workload in workloads.items()})
    training_seconds = side_by_side({name: workload.train for name, workload in workloads.items()})
    attack_seconds = {} if case.routing_only else {"robustcaps": measure_attack(case)}
    return [
        Measurement(
            model=case.name,
            batch=batch,
            implementation=name,
            forward_ms=1e3 * forward_seconds[name] / batch,
            training_ms=1e3 * training_seconds[name] / batch,
            attack_ms=1e3 * attack_seconds[name] / batch if name in attack_seconds else None,
            peak_mb=peaks[name] / 1e6 if name in peaks else None,
            epoch_s=None if case.routing_only else training_seconds[name] / batch * EPOCH,
        )
        for name, batch in batches.items()
    ]


def measure_attack(case: Case) -> float:
    """Return the seconds in which our network gives the gradient of a batch of images."""
    frozen = build(case.model, "robustcaps").eval().requires_grad_(requires_grad=False)
    return seconds(partial(attack, frozen, *batch_of(case.batch)))


def network_workload(model: str, implementation: Implementation, *, batch: int) -> Workload:
    """Return what a whole network has to do."""
    network = build(model, implementation)
    images, labels = batch_of(batch)
    return Workload(
        forward=within(implementation, partial(forward, copy.deepcopy(network).eval(), images)),
        train=within(implementation, partial(train, network, images, labels)),
    )


def routing_workload(model: str, implementation: Implementation, *, batch: int) -> Workload:
    """Return what the class capsules of a vector capsule network have to do, their children given."""
    network = build(model, implementation)
    if not isinstance(network, VectorCapsNet):
        raise TypeError(f"'{model}' has no dynamic routing.")
    children = network.primary(network.stem(batch_of(batch)[0])).detach()
    layer = network.class_capsules
    return Workload(
        forward=within(implementation, partial(forward, layer, children)),
        train=within(implementation, partial(train_layer, layer, children)),
    )


def within(implementation: Implementation, action: Action) -> Action:
    """Return the action, done by the implementation's backend."""

    def act() -> None:
        with backend_of(implementation):
            action()

    return act
