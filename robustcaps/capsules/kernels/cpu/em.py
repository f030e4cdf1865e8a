"""The kernels as one differentiable function of tensors."""

from __future__ import annotations

import functools
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from robustcaps.capsules.kernels.cpu.backward import Gradients, Pulls, pull_back_parts
from robustcaps.capsules.kernels.cpu.forward import Parents, Scratch, route_samples
from robustcaps.capsules.kernels.cpu.lanes import LANES
from robustcaps.capsules.kernels.cpu.packing import (
    as_array,
    pack_transforms,
    room,
    uniform_assignments,
    unpack_transforms,
    zeros,
)
from robustcaps.capsules.kernels.cpu.threads import run_parts, split
from robustcaps.capsules.kernels.cpu.votes import POSE, Floats, Ints, Layer, Trace, Window
from robustcaps.capsules.kernels.fused import RuntimeConfig, routed_by, times_given
from robustcaps.capsules.routing.em import Activation, Competition


class FusedRouting(torch.autograd.Function):
    """EM routing by the kernels, forward and backward."""

    @staticmethod
    def forward(ctx: Any, config: RuntimeConfig, keep: bool, *learned: Tensor) -> tuple[Tensor, ...]:
        """Route all samples; their trace is kept only if a backward pass may come."""
        layer = make_layer(config, *learned)
        bounds = split(len(layer.poses))
        trace = new_trace(layer, rows=len(layer.poses)) if keep else None
        routed = new_parents(layer)
        parents = Parents(*(x.numpy() for x in routed))

        def work(first: int, last: int) -> None:
            own = trace or new_trace(layer, rows=1)
            route_samples(layer, own, parents, new_scratch(layer), bounds[first], bounds[last])

        run_parts(work, len(bounds) - 1, size_of(layer))
        if keep:
            ctx.save_for_backward(*learned)
            ctx.config, ctx.layer, ctx.trace = config, layer, trace
        return routed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients; those of the parameters are summed over parts of the batch in a fixed order."""
        layer, transforms = ctx.layer, ctx.saved_tensors[2]
        parents = Parents(*(as_array(x) for x in upstream))
        bounds = split(len(layer.poses))
        totals = new_gradients(layer, parts=len(bounds) - 1, transforms=ctx.needs_input_grad[4])

        def work(first: int, last: int) -> None:
            scratch = new_window(layer), new_pulls(layer)
            pull_back_parts(layer, ctx.trace, parents, *scratch, totals, bounds, first, last)

        run_parts(work, len(bounds) - 1, size_of(layer))
        g_poses, g_activations, g_packed, g_beta_a, g_beta_u, g_totals = (torch.from_numpy(x) for x in totals)
        if ctx.config.activation == "mixture":
            g_activations += g_totals[:, None, None] * times_given(ctx.config)[:, None]
        g_transforms = unpack_transforms(g_packed.sum(dim=0), transforms) if ctx.needs_input_grad[4] else None
        return None, None, g_poses, g_activations, g_transforms, g_beta_a.sum(dim=0), g_beta_u.sum(dim=0)


em_routing = routed_by(FusedRouting)
"""Does what `routing.em_routing` does; all tensors are float32 on the CPU."""


def make_layer(
    config: RuntimeConfig, poses: Tensor, activations: Tensor, transforms: Tensor, beta_a: Tensor, beta_u: Tensor
) -> Layer:
    """Lay everything out as the kernels want it."""
    windows, groups, uniform = lay_out(config, child_types=poses.shape[2], types=len(beta_a))
    offsets = config.offsets if config.offsets is not None else torch.zeros(1, POSE, dtype=torch.float32)
    return Layer(
        poses=as_array(poses),
        activations=as_array(activations),
        transforms=as_array(pack_transforms(transforms.detach())),
        offsets=as_array(offsets),
        windows=windows,
        groups=groups,
        uniform=uniform,
        beta_a=as_array(beta_a),
        beta_u=as_array(beta_u),
        scales=as_array(config.inverse_temperature),
        totals=as_array(total_activation(config, activations.detach())),
        floor=float(config.variance_floor),
        rule=get_args(Activation).index(config.activation),
        vectors=() if transforms.shape[-1] ** 2 == POSE else (True,),
    )


def lay_out(config: RuntimeConfig, *, child_types: int, types: int) -> tuple[Ints, Ints, Floats]:
    """Return the windows, who competes, and the assignments at the start: the same at every call of a layer."""
    wiring = config.wiring
    return _laid_out(wiring.windows, wiring.rivals, config.competition, child_types, types)


@functools.lru_cache(maxsize=16)
def _laid_out(
    windows: Tensor, rivals: Tensor, competition: Competition, child_types: int, types: int
) -> tuple[Ints, Ints, Floats]:
    """Do so once for each wiring; tensors are told apart by who they are, and nothing writes into these."""
    slots: Ints = windows.contiguous().numpy()
    groups: Ints = rivals.contiguous().numpy() if competition == "field" else np.arange(slots.size)[:, None]
    return slots, groups, uniform_assignments(slots, groups, child_types=child_types, types=types)


def total_activation(config: RuntimeConfig, activations: Tensor) -> Tensor:
    """Return what all children give away (n,), which only a mixture's shares are measured against."""
    if config.activation != "mixture":
        return activations.new_zeros(len(activations))
    return (activations.sum(dim=2) * times_given(config)).sum(dim=1)


def size_of(layer: Layer) -> int:
    """Return how many assignments are computed: of all samples, in all iterations."""
    return len(layer.poses) * len(layer.scales) * layer.uniform.size


def new_trace(layer: Layer, rows: int) -> Trace:
    """Return room for the traces of that many samples."""
    positions, children, blocks, _ = layer.uniform.shape
    iterations = len(layer.scales)
    per_parent = (rows, iterations, positions, blocks)
    return Trace(
        assignments=room(rows, iterations - 1, positions, children, blocks, LANES),
        mean=room(*per_parent, POSE, LANES),
        variance=room(*per_parent, POSE, LANES),
        support=room(*per_parent, LANES),
        logits=room(*per_parent, LANES),
    )


def new_scratch(layer: Layer) -> Scratch:
    """Return room for what one window tells one block of parents, two components at a time."""
    children = layer.uniform.shape[1]
    return Scratch(
        poses=room(children, POSE),
        r=room(children, LANES),
        centre=room(POSE, LANES),
        pair=room(children, 2, LANES),
        volumes=room(2, LANES),
        prior=room(LANES),
    )


def new_window(layer: Layer) -> Window:
    """Return room for the votes of one window for one block of parents."""
    children = layer.uniform.shape[1]
    return Window(
        centre=room(POSE, LANES),
        shift=room(POSE, LANES),
        votes=room(children, POSE, LANES),
        r=room(children, LANES),
    )


def new_pulls(layer: Layer) -> Pulls:
    """Return room for the inner gradients of one sample."""
    positions, children, blocks, _ = layer.uniform.shape
    iterations = len(layer.scales)
    return Pulls(
        assignments=room(iterations, positions, children, blocks, LANES),
        mean=room(iterations, positions, blocks, POSE, LANES),
        variance=room(iterations, positions, blocks, POSE, LANES),
        support=room(LANES),
        logits=room(LANES),
        votes=room(POSE, LANES),
        by_parent=room(POSE, LANES),
        weights=room(iterations, LANES),
        inverse=room(iterations, POSE, LANES),
        volumes=room(2, LANES),
    )


def new_parents(layer: Layer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return room for mu, logits, sigma^2 and support."""
    parents = (len(layer.poses), len(layer.windows), len(layer.beta_a))
    shapes = ((*parents, POSE), parents, (*parents, POSE), parents)
    mu, logits, variance, support = (torch.empty(shape, dtype=torch.float32) for shape in shapes)
    return mu, logits, variance, support


def new_gradients(layer: Layer, *, parts: int, transforms: bool) -> Gradients:
    """Return zeros to add gradients to; those of parameters apart for each part of the batch."""
    packed = layer.transforms.shape if transforms else (0,) * layer.transforms.ndim
    types = len(layer.beta_a)
    return Gradients(
        poses=zeros(*layer.poses.shape),
        activations=zeros(*layer.activations.shape),
        transforms=zeros(parts, *packed),
        beta_a=zeros(parts, types),
        beta_u=zeros(parts, types),
        totals=zeros(*layer.totals.shape),
    )
