"""EM routing by the Numba kernels, as a differentiable function of tensors."""

from __future__ import annotations

import functools
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from robustcaps.capsules.kernels.cpu.backward import backward_parts
from robustcaps.capsules.kernels.cpu.forward import ForwardScratch, NumbaParents, route_samples
from robustcaps.capsules.kernels.cpu.lanes import LANES
from robustcaps.capsules.kernels.cpu.packing import (
    as_array,
    empty,
    pack_transforms,
    uniform_assignments,
    unpack_transforms,
    zeros,
)
from robustcaps.capsules.kernels.cpu.threads import run_parts, split
from robustcaps.capsules.kernels.cpu.votes import (
    POSE,
    Floats,
    InputGradients,
    Ints,
    NumbaGradients,
    NumbaLayer,
    NumbaTrace,
    VoteWindow,
)
from robustcaps.capsules.kernels.fused import RoutingConfig, competitions_per_child, make_em_routing
from robustcaps.capsules.routing.em import Activation, Competition, Start


class NumbaEMRouting(torch.autograd.Function):
    """EM routing by the Numba kernels, forward and backward."""

    @staticmethod
    def forward(ctx: Any, config: RoutingConfig, keep: bool, *learned: Tensor) -> tuple[Tensor, ...]:
        """Route all samples; keep their trace only if there may be a backward pass."""
        layer = make_layer(config, *learned)
        bounds = split(len(layer.poses))
        trace = new_trace(layer, rows=len(layer.poses)) if keep else None
        routed = new_parents(layer)
        parents = NumbaParents(*(x.numpy() for x in routed))

        def work(first: int, last: int) -> None:
            thread_trace = trace or new_trace(layer, rows=1)
            route_samples(layer, thread_trace, parents, new_scratch(layer), bounds[first], bounds[last])

        run_parts(work, len(bounds) - 1, count_assignments(layer))
        if keep:
            ctx.save_for_backward(*learned)
            ctx.config, ctx.layer, ctx.trace = config, layer, trace
        return routed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients; those of the parameters are summed over parts of the batch in a fixed order."""
        layer, transforms = ctx.layer, ctx.saved_tensors[2]
        parents = NumbaParents(*(as_array(x) for x in upstream))
        bounds = split(len(layer.poses))
        totals = new_gradients(layer, parts=len(bounds) - 1, transforms=ctx.needs_input_grad[4])

        def work(first: int, last: int) -> None:
            scratch = new_window(layer), new_intermediate_gradients(layer)
            backward_parts(layer, ctx.trace, parents, *scratch, totals, bounds, first, last)

        run_parts(work, len(bounds) - 1, count_assignments(layer))
        g_poses, g_activations, g_packed, g_beta_a, g_beta_u, g_totals = (torch.from_numpy(x) for x in totals)
        if ctx.config.activation == "mixture":
            g_activations += g_totals[:, None, None] * competitions_per_child(ctx.config)[:, None]
        g_transforms = unpack_transforms(g_packed.sum(dim=0), transforms) if ctx.needs_input_grad[4] else None
        return None, None, g_poses, g_activations, g_transforms, g_beta_a.sum(dim=0), g_beta_u.sum(dim=0)


em_routing = make_em_routing(NumbaEMRouting)
"""`routing.em_routing` for float32 tensors on the CPU."""


def make_layer(
    config: RoutingConfig, poses: Tensor, activations: Tensor, transforms: Tensor, beta_a: Tensor, beta_u: Tensor
) -> NumbaLayer:
    """Convert all inputs to the layout of the kernels."""
    windows, groups, uniform = layout_of(config, child_types=poses.shape[2], types=len(beta_a))
    offsets = config.offsets if config.offsets is not None else torch.zeros(1, POSE, dtype=torch.float32)
    return NumbaLayer(
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
        totals=as_array(sum_activations(config, activations.detach())),
        floor=float(config.variance_floor),
        rule=get_args(Activation).index(config.activation),
        momentum=float(config.mean_momentum),
        by_type=config.competition == "type",
        vectors=() if transforms.shape[-1] ** 2 == POSE else (True,),
    )


def layout_of(config: RoutingConfig, *, child_types: int, types: int) -> tuple[Ints, Ints, Floats]:
    """Return the windows, the groups of competing slots, and the initial assignments of a layer."""
    wiring = config.wiring
    options = (config.competition, config.start, child_types, types)
    return _cached_layout(wiring.windows, wiring.rivals, *options)


@functools.lru_cache(maxsize=16)
def _cached_layout(
    windows: Tensor, rivals: Tensor, competition: Competition, start: Start, child_types: int, types: int
) -> tuple[Ints, Ints, Floats]:
    """Compute the layout once per wiring; tensors are hashed by identity and never modified."""
    slots: Ints = windows.contiguous().numpy()
    alone: Ints = np.arange(slots.size)[:, None]
    groups: Ints = alone if competition == "position" else rivals.contiguous().numpy()
    shared = alone if start == "types" else groups
    parents = 1 if competition == "type" and start == "uniform" else types
    return slots, groups, uniform_assignments(slots, shared, parents, child_types=child_types, types=types)


def sum_activations(config: RoutingConfig, activations: Tensor) -> Tensor:
    """Return the sum of all r_ij (n,), which only `mixture` needs."""
    if config.activation != "mixture":
        return activations.new_zeros(len(activations))
    return (activations.sum(dim=2) * competitions_per_child(config)).sum(dim=1)


def count_assignments(layer: NumbaLayer) -> int:
    """Return the number of assignments of all samples in all iterations."""
    return len(layer.poses) * len(layer.scales) * layer.uniform.size


def new_trace(layer: NumbaLayer, rows: int) -> NumbaTrace:
    """Allocate the traces of that many samples."""
    positions, children, blocks, _ = layer.uniform.shape
    iterations = len(layer.scales)
    per_parent = (rows, iterations, positions, blocks)
    return NumbaTrace(
        assignments=empty(rows, iterations - 1, positions, children, blocks, LANES),
        mean=empty(*per_parent, POSE, LANES),
        variance=empty(*per_parent, POSE, LANES),
        support=empty(*per_parent, LANES),
        logits=empty(*per_parent, LANES),
    )


def new_scratch(layer: NumbaLayer) -> ForwardScratch:
    """Allocate the forward kernel's buffers for one window and one block of parents."""
    children = layer.uniform.shape[1]
    return ForwardScratch(
        poses=empty(children, POSE),
        r=empty(children, LANES),
        centre=empty(POSE, LANES),
        pair=empty(children, 2, LANES),
        volumes=empty(2, LANES),
        prior=empty(LANES),
    )


def new_window(layer: NumbaLayer) -> VoteWindow:
    """Allocate the votes of one window for one block of parents."""
    children = layer.uniform.shape[1]
    return VoteWindow(
        centre=empty(POSE, LANES),
        shift=empty(POSE, LANES),
        votes=empty(children, POSE, LANES),
        r=empty(children, LANES),
    )


def new_intermediate_gradients(layer: NumbaLayer) -> NumbaGradients:
    """Allocate the intermediate gradients of one sample."""
    positions, children, blocks, _ = layer.uniform.shape
    iterations = len(layer.scales)
    return NumbaGradients(
        assignments=empty(iterations, positions, children, blocks, LANES),
        mean=empty(iterations, positions, blocks, POSE, LANES),
        variance=empty(iterations, positions, blocks, POSE, LANES),
        support=empty(LANES),
        logits=empty(LANES),
        votes=empty(POSE, LANES),
        by_parent=empty(POSE, LANES),
        weights=empty(iterations, LANES),
        inverse=empty(iterations, POSE, LANES),
        volumes=empty(2, LANES),
        carry=empty(positions, blocks, POSE, LANES),
    )


def new_parents(layer: NumbaLayer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocate mu, logits, sigma^2 and support."""
    parents = (len(layer.poses), len(layer.windows), len(layer.beta_a))
    shapes = ((*parents, POSE), parents, (*parents, POSE), parents)
    mu, logits, variance, support = (torch.empty(shape, dtype=torch.float32) for shape in shapes)
    return mu, logits, variance, support


def new_gradients(layer: NumbaLayer, *, parts: int, transforms: bool) -> InputGradients:
    """Return zeros to add gradients to, with separate parameter gradients for each part of the batch."""
    packed = layer.transforms.shape if transforms else (0,) * layer.transforms.ndim
    types = len(layer.beta_a)
    return InputGradients(
        poses=zeros(*layer.poses.shape),
        activations=zeros(*layer.activations.shape),
        transforms=zeros(parts, *packed),
        beta_a=zeros(parts, types),
        beta_u=zeros(parts, types),
        totals=zeros(*layer.totals.shape),
    )
