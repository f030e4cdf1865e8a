"""EM routing by the Triton kernels, as a differentiable function of tensors.

It never synchronises, except once for every wiring whose groups are not child positions.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from robustcaps.capsules.kernels.cuda.backward import (
    backward_activations,
    backward_assignments,
    backward_by_type,
    backward_parents,
)
from robustcaps.capsules.kernels.cuda.contraction import backward_poses, backward_transforms
from robustcaps.capsules.kernels.cuda.forward import (
    add_rows,
    find_centres,
    find_largest,
    fit_parents,
    normalise_assignments,
    normalise_by_type,
)
from robustcaps.capsules.kernels.cuda.layer import (
    POSE_SIZE,
    TritonGradients,
    TritonLayer,
    TritonParents,
    TritonTrace,
)
from robustcaps.capsules.kernels.cuda.layout import layout_of
from robustcaps.capsules.kernels.fused import RoutingConfig, competitions_per_child, make_em_routing

LANES = 16
"""Maximum number of parent types in a tile."""
WINDOW_TILE = 128
"""Pairs of child and parent per program in the M-step; each has 16 components."""
CONTRACTION_TILE = 64
"""The same in the last backward pass, which holds many more values of each pair."""
CONTRACTION_WARPS = 8
"""Warps of the last backward pass: twice the default, so that its values fit into registers."""
ASSIGNMENT_TILE = 1024
"""Pairs of child and parent per program in the E-step, which holds one value of each."""
MAXIMUM_TILE = 64
"""Pairs of child type and parent type per program of `find_largest`; the rest of its tile are slots."""
MAX_PARTS = 16
"""Parts of a batch for the gradient by the transforms."""
MAX_PARTIAL_SUMS = 2**24
"""Memory of the parts' gradients before they are summed: 64 MB of float32."""


class TritonEMRouting(torch.autograd.Function):
    """EM routing by the Triton kernels, forward and backward."""

    @staticmethod
    def forward(ctx: Any, config: RoutingConfig, keep: bool, *learned: Tensor) -> tuple[Tensor, ...]:
        """Route all samples; keep the trace of all iterations only if there may be a backward pass."""
        with torch.cuda.device_of(learned[0]):  # type: ignore[no-untyped-call]
            layer = make_layer(config, *learned)
            trace = new_trace(layer, config, rows=layer.iterations if keep else 2)
            routed = new_parents(layer)
            centre_votes(layer, trace)
            for t in range(layer.iterations):
                route_once(layer, trace, routed, config, t)
        if keep:
            ctx.save_for_backward(*learned, *trace)
            ctx.config = config
        return routed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients; those of the parameters are summed over the batch in a fixed order."""
        config, needed = ctx.config, ctx.needs_input_grad[2:]
        learned, trace = ctx.saved_tensors[:5], TritonTrace(*ctx.saved_tensors[5:])
        with torch.cuda.device_of(learned[0]):  # type: ignore[no-untyped-call]
            layer = make_layer(config, *learned)
            grads = new_intermediate_gradients(layer)
            g_activations = torch.zeros_like(layer.activations)
            gradients = TritonParents(*(x.contiguous() for x in upstream))
            for t in reversed(range(layer.iterations)):
                backward_once(layer, trace, grads, gradients, g_activations, config, t)
            if config.activation == "mixture":
                totals = sum_rows(grads.total_support.flatten(1), layer.poses.new_ones(layer.parents * layer.types))
                g_activations += competitions_per_child(config).unsqueeze(-1) * totals.view(-1, 1, 1)
            return (
                None,
                None,
                gradient_by_poses(layer, trace, grads) if needed[0] else None,
                g_activations,
                gradient_by_transforms(layer, trace, grads) if needed[2] else None,
                grads.beta_a.sum(dim=(0, 1)),
                grads.beta_u.sum(dim=(0, 1)),
            )


em_routing = make_em_routing(TritonEMRouting)
"""`routing.em_routing` for float32 tensors on one GPU, or on any device in the interpreter."""


def centre_votes(layer: TritonLayer, trace: TritonTrace) -> None:
    """Launch the computation of V_0."""
    types, windows = types_per_tile(layer), WINDOW_TILE // types_per_tile(layer)
    grid = (triton.cdiv(layer.samples * layer.parents, windows), triton.cdiv(layer.types, types))
    find_centres[grid](
        layer,
        trace.centre,
        SIDE=layer.transforms.shape[-1],
        SHARED=layer.transforms.ndim == 4,
        WINDOWS=windows,
        TYPES=types,
    )


def route_once(layer: TritonLayer, trace: TritonTrace, routed: TritonParents, config: RoutingConfig, t: int) -> None:
    """Launch iteration t: the M-step, and, unless it is the last, the E-step."""
    last = t == layer.iterations - 1
    rows = len(trace.assignments)
    log_joints = trace.assignments[t % rows]
    types, children = types_per_tile(layer), children_per_tile(layer)
    fit_parents[(layer.samples * layer.parents, triton.cdiv(layer.types, types))](
        layer,
        trace_at(trace, t),
        former_means(trace, t),
        log_joints,
        routed,
        ACTIVATION=config.activation,
        MOMENTUM=float(config.mean_momentum),
        SIDE=layer.transforms.shape[-1],
        SHARED=layer.transforms.ndim == 4,
        FIRST=t == 0,
        LAST=last,
        CHILDREN=children,
        TYPES=types,
    )
    if not last:
        assign(layer, log_joints, config)


def assign(layer: TritonLayer, log_joints: Tensor, config: RoutingConfig) -> None:
    """Launch the E-step, which turns log a_j p_ij into R_ij."""
    grid, tile = assignment_grid(layer, layer.groups)
    if config.competition != "type":
        normalise_assignments[grid](layer, log_joints, FIELD=config.competition == "field", **tile)
        return
    pairs = layer.child_types * layer.types
    largest = log_joints.new_empty(layer.samples, pairs)
    width = min(MAXIMUM_TILE, int(triton.next_power_of_2(pairs)))
    height = min(ASSIGNMENT_TILE // width, int(triton.next_power_of_2(layer.parents * layer.slots)))
    find_largest[(layer.samples, triton.cdiv(pairs, width))](
        log_joints, largest, layer.parents * layer.slots, pairs, SLOTS=height, PAIRS=width
    )
    normalise_by_type[grid](layer, log_joints, largest, **tile)


def backward_once(
    layer: TritonLayer,
    trace: TritonTrace,
    grads: TritonGradients,
    upstream: TritonParents,
    g_activations: Tensor,
    config: RoutingConfig,
    t: int,
) -> None:
    """Launch the backward pass of iteration t."""
    last = t == layer.iterations - 1
    types, children = types_per_tile(layer), children_per_tile(layer)
    backward_parents[(layer.samples * layer.parents, triton.cdiv(layer.types, types))](
        layer,
        trace_at(trace, t),
        former_means(trace, t),
        upstream,
        gradients_at(grads, t if last else t + 1),
        gradients_at(grads, t),
        ACTIVATION=config.activation,
        MOMENTUM=float(config.mean_momentum),
        SIDE=layer.transforms.shape[-1],
        SHARED=layer.transforms.ndim == 4,
        FIRST=t == 0,
        LAST=last,
        CHILDREN=children,
        TYPES=types,
    )
    backward_assign(layer, trace_at(trace, t).assignments, grads.assignments[t], g_activations, config, first=t == 0)


def backward_assign(
    layer: TritonLayer, R: Tensor, g_r: Tensor, g_activations: Tensor, config: RoutingConfig, *, first: bool
) -> None:
    """Launch the backward pass of r = R a and of the E-step that R came from, unless it is the first one."""
    by_child, tile = assignment_grid(layer, layer.positions)
    if not first and config.competition != "type":
        field = config.competition == "field"
        backward_assignments[by_child](layer, R, g_r, g_activations, FIELD=field, **tile)
        return
    backward_activations[by_child](layer, R, g_r, g_activations, FIRST=first, **tile)
    if not first:
        by_group, tile = assignment_grid(layer, layer.groups)
        backward_by_type[by_group](layer, R, g_r, **tile)


def gradient_by_poses(layer: TritonLayer, trace: TritonTrace, grads: TritonGradients) -> Tensor:
    """Sum g_M of each child over all its parents."""
    g_poses = torch.empty_like(layer.poses)
    types = types_per_tile(layer)
    children = min(CONTRACTION_TILE // types, triton.next_power_of_2(layer.child_types))
    backward_poses[(layer.samples * layer.positions, triton.cdiv(layer.child_types, children))](
        layer,
        trace,
        grads,
        g_poses,
        SIDE=layer.transforms.shape[-1],
        SHARED=layer.transforms.ndim == 4,
        CHILDREN=children,
        TYPES=types,
        num_warps=CONTRACTION_WARPS,
    )
    return g_poses


def gradient_by_transforms(layer: TritonLayer, trace: TritonTrace, grads: TritonGradients) -> Tensor:
    """Sum g_W of each transform over all its children, by parts of the batch."""
    shared = layer.transforms.ndim == 4
    types = types_per_tile(layer)
    pairs = CONTRACTION_TILE // types
    windows = layer.samples * layer.parents * (layer.slots if shared else 1)
    max_parts = min(MAX_PARTS, MAX_PARTIAL_SUMS // layer.transforms.numel(), triton.cdiv(windows, pairs))
    span = triton.cdiv(windows, max(1, max_parts))
    parts = max(1, triton.cdiv(windows, max(1, span)))
    partial = layer.transforms.new_empty(parts, *layer.transforms.shape)
    transforms = layer.child_types if shared else layer.children
    backward_transforms[(transforms, triton.cdiv(layer.types, types), parts)](
        layer,
        trace,
        grads,
        partial,
        span,
        SIDE=layer.transforms.shape[-1],
        SHARED=shared,
        PAIRS=pairs,
        TYPES=types,
        num_warps=CONTRACTION_WARPS,
    )
    return partial.sum(dim=0)


def types_per_tile(layer: TritonLayer) -> int:
    """Return the number of parent types per tile."""
    return min(LANES, int(triton.next_power_of_2(layer.types)))


def children_per_tile(layer: TritonLayer) -> int:
    """Return the number of children of a window per tile."""
    return min(WINDOW_TILE // types_per_tile(layer), int(triton.next_power_of_2(layer.children)))


def assignment_grid(layer: TritonLayer, groups: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Return grid and tile sizes of the kernels that process all parents of a child position, or of another group."""
    types = int(triton.next_power_of_2(layer.types))
    child_types = min(max(1, ASSIGNMENT_TILE // types), int(triton.next_power_of_2(layer.child_types)))
    grid = (layer.samples * groups, triton.cdiv(layer.child_types, child_types))
    return grid, {"CHILD_TYPES": child_types, "TYPES": types}


def make_layer(
    config: RoutingConfig, poses: Tensor, activations: Tensor, transforms: Tensor, beta_a: Tensor, beta_u: Tensor
) -> TritonLayer:
    """Convert all inputs to the layout of the kernels."""
    samples, positions, child_types, _ = poses.shape
    layout = layout_of(config, positions=positions, types=len(beta_a))
    parents, slots = layout.windows.shape
    layer = TritonLayer(
        poses=poses.detach().contiguous(),
        activations=activations.detach().contiguous(),
        transforms=transforms.detach().contiguous(),
        offsets=poses.new_zeros(slots, POSE_SIZE) if config.offsets is None else config.offsets.contiguous(),
        **layout._asdict(),
        total_support=poses.new_empty(samples),
        beta_a=beta_a.detach().contiguous(),
        beta_u=beta_u.detach().contiguous(),
        samples=samples,
        positions=positions,
        groups=len(layout.rivals),
        max_copies=layout.rivals.shape[1],
        max_child_copies=layout.child_slots.shape[1],
        child_types=child_types,
        parents=parents,
        slots=slots,
        children=slots * child_types,
        types=len(beta_a),
        iterations=len(config.inverse_temperature),
        floor=float(config.variance_floor),
    )
    if config.activation != "mixture":
        return layer
    counted = competitions_per_child(config).repeat_interleave(child_types).to(poses)
    return layer._replace(total_support=sum_rows(layer.activations.flatten(1), counted))


def sum_rows(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums (n,) of contiguous values (n, length)."""
    totals = values.new_empty(len(values))
    add_rows[(len(values),)](values, weights, totals, values.shape[1], BLOCK=ASSIGNMENT_TILE)
    return totals


def new_trace(layer: TritonLayer, config: RoutingConfig, rows: int) -> TritonTrace:
    """Allocate the trace of that many iterations, reused in turn if there are more iterations."""

    def empty(*shape: int) -> Tensor:
        return layer.poses.new_empty(shape)

    parents = (layer.samples, layer.parents, layer.types)
    kept = min(rows, layer.iterations)
    return TritonTrace(
        assignments=empty(max(1, min(rows, layer.iterations - 1)), *parents[:2], layer.children, layer.types),
        centre=empty(*parents, POSE_SIZE),
        mean=empty(kept, *parents, POSE_SIZE),
        variance=empty(kept, *parents, POSE_SIZE),
        support=empty(kept, *parents),
        logits=empty(kept, *parents),
        scale=config.inverse_temperature.contiguous(),
    )


def trace_at(trace: TritonTrace, t: int) -> TritonTrace:
    """Return the trace of iteration t; R of the first iteration is uniform and not stored."""
    row = t % len(trace.mean)
    return TritonTrace(
        assignments=trace.assignments[(t - 1) % len(trace.assignments)],
        centre=trace.centre,
        mean=trace.mean[row],
        variance=trace.variance[row],
        support=trace.support[row],
        logits=trace.logits[row],
        scale=trace.scale[t],
    )


def former_means(trace: TritonTrace, t: int) -> Tensor:
    """Return mu of the iteration before t, relative to the centre; anything if t is the first."""
    return trace.mean[(t - 1) % len(trace.mean)]


def new_intermediate_gradients(layer: TritonLayer) -> TritonGradients:
    """Allocate the intermediate gradients."""
    parents = (layer.samples, layer.parents, layer.types)
    iterations = layer.iterations
    return TritonGradients(
        assignments=layer.poses.new_empty(iterations, *parents[:2], layer.children, layer.types),
        mean=layer.poses.new_empty(iterations, *parents, POSE_SIZE),
        variance=layer.poses.new_empty(iterations, *parents, POSE_SIZE),
        beta_a=layer.poses.new_zeros(parents),
        beta_u=layer.poses.new_zeros(parents),
        total_support=layer.poses.new_zeros(parents),
    )


def gradients_at(grads: TritonGradients, t: int) -> TritonGradients:
    """Return the intermediate gradients of iteration t."""
    return grads._replace(
        assignments=grads.assignments[t],
        mean=grads.mean[t],
        variance=grads.variance[t],
    )


def new_parents(layer: TritonLayer) -> TritonParents:
    """Allocate mu, logits, sigma^2 and support."""
    parents = (layer.samples, layer.parents, layer.types)
    shapes = ((*parents, POSE_SIZE), parents, (*parents, POSE_SIZE), parents)
    return TritonParents(*(layer.poses.new_empty(shape) for shape in shapes))
