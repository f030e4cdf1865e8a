"""The kernels as one differentiable function of tensors. Nothing here waits for the GPU."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from robustcaps.capsules.kernels.cuda.backward import pull_back_parents, pull_back_shares
from robustcaps.capsules.kernels.cuda.contraction import pull_back_poses, pull_back_transforms
from robustcaps.capsules.kernels.cuda.forward import add_rows, find_centres, fit_parents, share_out
from robustcaps.capsules.kernels.cuda.layer import POSE_SIZE, Layer, Parents, Pulls, Trace
from robustcaps.capsules.kernels.fused import RuntimeConfig, routed_by, times_given

LANES = 16
"""How many types of parents a tile has at most."""
WINDOW_TILE = 128
"""How many pairs of a child and a parent a program holds while it fits parents; each has 16 components."""
CONTRACTION_TILE = 64
"""The same for the last backward pass, which holds many more values of each pair..."""
CONTRACTION_WARPS = 8
"""...spread over twice as many threads as is usual, so that they fit into registers."""
SHARE_TILE = 1024
"""The same while children are shared out: one value of each pair."""
MOST_PARTS = 16
"""Into how many parts a batch is split for the gradient by the transforms, and..."""
MOST_PARTIAL_SUMS = 2**24
"""...how many numbers these may keep until they are added up (64 MB)."""


class FusedRouting(torch.autograd.Function):
    """EM routing by the kernels, forward and backward."""

    @staticmethod
    def forward(ctx: Any, config: RuntimeConfig, keep: bool, *learned: Tensor) -> tuple[Tensor, ...]:
        """Route all samples; the trace of all iterations is kept only if a backward pass may come."""
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
        learned, trace = ctx.saved_tensors[:5], Trace(*ctx.saved_tensors[5:])
        with torch.cuda.device_of(learned[0]):  # type: ignore[no-untyped-call]
            layer = make_layer(config, *learned)
            pulls = new_pulls(layer)
            g_activations = torch.zeros_like(layer.activations)
            gradients = Parents(*(x.contiguous() for x in upstream))
            for t in reversed(range(layer.iterations)):
                pull_back_once(layer, trace, pulls, gradients, g_activations, config, t)
            if config.activation == "mixture":
                totals = sums_of_rows(pulls.whole.flatten(1), layer.poses.new_ones(layer.parents * layer.types))
                g_activations += times_given(config).unsqueeze(-1) * totals.view(-1, 1, 1)
            return (
                None,
                None,
                gradient_by_poses(layer, trace, pulls) if needed[0] else None,
                g_activations,
                gradient_by_transforms(layer, trace, pulls) if needed[2] else None,
                pulls.beta_a.sum(dim=(0, 1)),
                pulls.beta_u.sum(dim=(0, 1)),
            )


em_routing = routed_by(FusedRouting)
"""Does what `routing.em_routing` does; all tensors are float32 on one GPU, or anywhere for the interpreter."""


def centre_votes(layer: Layer, trace: Trace) -> None:
    """Launch what finds V_0."""
    types, windows = tile_of_types(layer), WINDOW_TILE // tile_of_types(layer)
    grid = (triton.cdiv(layer.samples * layer.parents, windows), triton.cdiv(layer.types, types))
    find_centres[grid](
        layer,
        trace.centre,
        SIDE=layer.transforms.shape[-1],
        SHARED=layer.transforms.ndim == 4,
        WINDOWS=windows,
        TYPES=types,
    )


def route_once(layer: Layer, trace: Trace, routed: Parents, config: RuntimeConfig, t: int) -> None:
    """Launch iteration t: the M-step, and, unless it is the last, the E-step."""
    last = t == layer.iterations - 1
    rows = len(trace.assignments)
    log_joints = trace.assignments[t % rows]
    types, children = tile_of_types(layer), tile_of_children(layer)
    fit_parents[(layer.samples * layer.parents, triton.cdiv(layer.types, types))](
        layer,
        trace_at(trace, t),
        log_joints,
        routed,
        ACTIVATION=config.activation,
        SIDE=layer.transforms.shape[-1],
        SHARED=layer.transforms.ndim == 4,
        FIRST=t == 0,
        LAST=last,
        CHILDREN=children,
        TYPES=types,
    )
    if not last:
        grid, tile = shares(layer)
        share_out[grid](layer, log_joints, FIELD=config.competition == "field", **tile)


def pull_back_once(
    layer: Layer,
    trace: Trace,
    pulls: Pulls,
    upstream: Parents,
    g_activations: Tensor,
    config: RuntimeConfig,
    t: int,
) -> None:
    """Launch the way back through iteration t."""
    last = t == layer.iterations - 1
    now = trace_at(trace, t)
    types, children = tile_of_types(layer), tile_of_children(layer)
    pull_back_parents[(layer.samples * layer.parents, triton.cdiv(layer.types, types))](
        layer,
        now,
        upstream,
        pulls.assignments[t if last else t + 1],
        pulls_at(pulls, t),
        ACTIVATION=config.activation,
        SIDE=layer.transforms.shape[-1],
        SHARED=layer.transforms.ndim == 4,
        LAST=last,
        CHILDREN=children,
        TYPES=types,
    )
    grid, tile = shares(layer)
    pull_back_shares[grid](
        layer,
        now.assignments,
        pulls.assignments[t],
        g_activations,
        FIELD=config.competition == "field",
        FIRST=t == 0,
        **tile,
    )


def gradient_by_poses(layer: Layer, trace: Trace, pulls: Pulls) -> Tensor:
    """Gather g_M of each child from all its parents."""
    g_poses = torch.empty_like(layer.poses)
    types = tile_of_types(layer)
    children = min(CONTRACTION_TILE // types, triton.next_power_of_2(layer.child_types))
    pull_back_poses[(layer.samples * layer.positions, triton.cdiv(layer.child_types, children))](
        layer,
        trace,
        pulls,
        g_poses,
        SIDE=layer.transforms.shape[-1],
        SHARED=layer.transforms.ndim == 4,
        CHILDREN=children,
        TYPES=types,
        num_warps=CONTRACTION_WARPS,
    )
    return g_poses


def gradient_by_transforms(layer: Layer, trace: Trace, pulls: Pulls) -> Tensor:
    """Gather g_W of each transform from all its children, part by part of the batch."""
    shared = layer.transforms.ndim == 4
    types = tile_of_types(layer)
    pairs = CONTRACTION_TILE // types
    windows = layer.samples * layer.parents * (layer.slots if shared else 1)
    most = min(MOST_PARTS, MOST_PARTIAL_SUMS // layer.transforms.numel(), triton.cdiv(windows, pairs))
    span = triton.cdiv(windows, max(1, most))
    parts = max(1, triton.cdiv(windows, max(1, span)))
    partial = layer.transforms.new_empty(parts, *layer.transforms.shape)
    which = layer.child_types if shared else layer.children
    pull_back_transforms[(which, triton.cdiv(layer.types, types), parts)](
        layer,
        trace,
        pulls,
        partial,
        span,
        SIDE=layer.transforms.shape[-1],
        SHARED=shared,
        PAIRS=pairs,
        TYPES=types,
        num_warps=CONTRACTION_WARPS,
    )
    return partial.sum(dim=0)


def tile_of_types(layer: Layer) -> int:
    """Return how many types of parents share a tile."""
    return min(LANES, int(triton.next_power_of_2(layer.types)))


def tile_of_children(layer: Layer) -> int:
    """Return how many children of a window share a tile."""
    return min(WINDOW_TILE // tile_of_types(layer), int(triton.next_power_of_2(layer.children)))


def shares(layer: Layer) -> tuple[tuple[int, int], dict[str, int]]:
    """Return grid and tile of the kernels that work on all parents of a child position."""
    types = int(triton.next_power_of_2(layer.types))
    child_types = min(max(1, SHARE_TILE // types), int(triton.next_power_of_2(layer.child_types)))
    grid = (layer.samples * layer.positions, triton.cdiv(layer.child_types, child_types))
    return grid, {"CHILD_TYPES": child_types, "TYPES": types}


def make_layer(
    config: RuntimeConfig, poses: Tensor, activations: Tensor, transforms: Tensor, beta_a: Tensor, beta_u: Tensor
) -> Layer:
    """Lay everything out as the kernels want it."""
    windows, rivals, copies = config.wiring.windows, config.wiring.rivals, config.wiring.copies
    samples, positions, child_types, _ = poses.shape
    parents, slots = windows.shape
    competing = copies.clamp(min=1) if config.competition == "field" else torch.ones_like(copies)
    layer = Layer(
        poses=poses.detach().contiguous(),
        activations=activations.detach().contiguous(),
        transforms=transforms.detach().contiguous(),
        offsets=poses.new_zeros(slots, POSE_SIZE) if config.offsets is None else config.offsets.contiguous(),
        windows=windows.int().contiguous(),
        rivals=rivals.int().contiguous(),
        copies=copies.int(),
        uniform=(len(beta_a) * competing).to(poses).reciprocal(),
        whole=poses.new_empty(samples),
        beta_a=beta_a.detach().contiguous(),
        beta_u=beta_u.detach().contiguous(),
        samples=samples,
        positions=positions,
        most_copies=rivals.shape[1],
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
    counted = times_given(config).repeat_interleave(child_types).to(poses)
    return layer._replace(whole=sums_of_rows(layer.activations.flatten(1), counted))


def sums_of_rows(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums (n,) of contiguous values (n, length)."""
    totals = values.new_empty(len(values))
    add_rows[(len(values),)](values, weights, totals, values.shape[1], BLOCK=SHARE_TILE)
    return totals


def new_trace(layer: Layer, config: RuntimeConfig, rows: int) -> Trace:
    """Return room for the trace of that many iterations, who take turns: one reads R where it does not write."""

    def room(*shape: int) -> Tensor:
        return layer.poses.new_empty(shape)

    parents = (layer.samples, layer.parents, layer.types)
    kept = min(rows, layer.iterations)
    return Trace(
        assignments=room(max(1, min(rows, layer.iterations - 1)), *parents[:2], layer.children, layer.types),
        centre=room(*parents, POSE_SIZE),
        mean=room(kept, *parents, POSE_SIZE),
        variance=room(kept, *parents, POSE_SIZE),
        support=room(kept, *parents),
        logits=room(kept, *parents),
        scale=config.inverse_temperature.contiguous(),
    )


def trace_at(trace: Trace, t: int) -> Trace:
    """Return the trace of iteration t alone; R of the first is not in it, as it is uniform."""
    row = t % len(trace.mean)
    return Trace(
        assignments=trace.assignments[(t - 1) % len(trace.assignments)],
        centre=trace.centre,
        mean=trace.mean[row],
        variance=trace.variance[row],
        support=trace.support[row],
        logits=trace.logits[row],
        scale=trace.scale[t],
    )


def new_pulls(layer: Layer) -> Pulls:
    """Return room for the inner gradients."""
    parents = (layer.samples, layer.parents, layer.types)
    iterations = layer.iterations
    return Pulls(
        assignments=layer.poses.new_empty(iterations, *parents[:2], layer.children, layer.types),
        mean=layer.poses.new_empty(iterations, *parents, POSE_SIZE),
        variance=layer.poses.new_empty(iterations, *parents, POSE_SIZE),
        beta_a=layer.poses.new_zeros(parents),
        beta_u=layer.poses.new_zeros(parents),
        whole=layer.poses.new_zeros(parents),
    )


def pulls_at(pulls: Pulls, t: int) -> Pulls:
    """Return the inner gradients of iteration t alone."""
    return pulls._replace(
        assignments=pulls.assignments[t],
        mean=pulls.mean[t],
        variance=pulls.variance[t],
    )


def new_parents(layer: Layer) -> Parents:
    """Return room for mu, logits, sigma^2 and support."""
    parents = (layer.samples, layer.parents, layer.types)
    shapes = ((*parents, POSE_SIZE), parents, (*parents, POSE_SIZE), parents)
    return Parents(*(layer.poses.new_empty(shape) for shape in shapes))
