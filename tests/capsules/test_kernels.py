"""The fused kernels against the definition, in float64, forward and backward."""

from __future__ import annotations

import importlib
import itertools
import math
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robustcaps.capsules.kernels import backends
from robustcaps.capsules.routing import (
    Activation,
    Competition,
    Pairing,
    Routed,
    Start,
    Wiring,
    convolution,
    em_routing,
    fully_connected,
)

pytest.importorskip("numba")
votes = importlib.import_module("robustcaps.capsules.kernels.cpu.votes")
threads = importlib.import_module("robustcaps.capsules.kernels.cpu.threads")

COMPETITIONS: tuple[Competition, ...] = get_args(Competition)
RULES: tuple[Activation, ...] = get_args(Activation)
STARTS: tuple[Start, ...] = get_args(Start)
ASSIGNMENTS: list[dict[str, Any]] = [
    {"competition": competition, "start": start, "activation": activation}
    for competition, start, activation in itertools.product(COMPETITIONS, STARTS, RULES)
    if activation != "mixture" or (competition, start) in {("field", "uniform"), ("position", "uniform")}
]
"""All combinations that the kernels accept: `mixture` takes assignments that sum to 1."""
PAIRINGS: list[tuple[dict[str, Any], Pairing]] = [
    (rules, pairing)
    for rules, pairing in itertools.product(ASSIGNMENTS, get_args(Pairing))
    if pairing == "child" or rules["competition"] == "type"
]
"""The same, with groups of slots that are not children where they are allowed."""
OUTPUTS = ("poses", "logits", "variance", "support")
LEARNED = ("poses", "activations", "transforms", "beta_a", "beta_u")
WIRINGS = {
    "strided": convolution(5, 3, 2),
    "with children that no window reaches": convolution(6, 3, 2),
    "dense": convolution(4, 3, 1),
    "disjoint": convolution(4, 2, 2),
    "full": fully_connected(5),
    "single": fully_connected(1),
}


def describe(options: dict[str, Any] | str) -> str:
    """Name a test by its options."""
    return options if isinstance(options, str) else "-".join(options.values())


@dataclass(frozen=True)
class Case:
    """Everything `em_routing` takes, in float32."""

    wiring: Wiring
    poses: Tensor
    activations: Tensor
    transforms: Tensor
    beta_a: Tensor
    beta_u: Tensor
    inverse_temperature: Tensor
    offsets: Tensor | None
    variance_floor: float = 0.01
    competition: Competition = "field"
    activation: Activation = "cost"
    mean_momentum: float = 0.0
    start: Start = "uniform"

    def route(self, backend: backends.Backend = "numba", dtype: torch.dtype = torch.float32) -> Routed:
        named: dict[str, Any] = {name: x.to(dtype) if isinstance(x, Tensor) else x for name, x in vars(self).items()}
        return em_routing(**named, backend=backend)

    def gradients(self, backend: backends.Backend = "numba", dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """The gradients of a fixed random combination of all outputs."""
        leaves = {name: getattr(self, name).to(dtype).requires_grad_() for name in LEARNED}
        routed = replace(self, **leaves).route(backend, dtype)
        loss = sum(
            (getattr(routed, name) * like_rows(getattr(routed, name), seed)).sum() for seed, name in enumerate(OUTPUTS)
        )
        assert isinstance(loss, Tensor)
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(LEARNED, found, strict=True))


def like_rows(x: Tensor, seed: int) -> Tensor:
    """Random weights for x, the same for every sample."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(x.shape[1:], dtype=torch.float64, generator=generator).to(x)


def make_case(
    wiring: Wiring,
    *,
    n: int = 3,
    child_types: int = 2,
    types: int = 3,
    iterations: int = 3,
    side: int = 4,
    shared: bool = False,
    offsets: bool = False,
    seed: int = 0,
    **options: Any,
) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    slots = wiring.windows.shape[1]
    positions = len(wiring.rivals) if wiring.groups is None else int(wiring.windows.max()) + 1
    pairs = (child_types, types) if shared else (slots, child_types, types)
    return Case(
        wiring=wiring,
        poses=draw(n, positions, child_types, 16),
        activations=draw(n, positions, child_types).sigmoid(),
        transforms=0.6 / side**0.5 * draw(*pairs, side, side),
        beta_a=draw(types),
        beta_u=0.2 * draw(types),
        inverse_temperature=torch.linspace(0.05, 0.1, iterations),
        offsets=draw(slots, 16) if offsets else None,
        **options,
    )


def error(x: Tensor, exact: Tensor) -> float:
    """The largest error, relative to the largest value."""
    assert torch.isfinite(x).all()
    assert x.shape == exact.shape
    return float(((x.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-6)).detach()) if x.numel() else 0.0


def errors(case: Case, backend: backends.Backend) -> dict[str, float]:
    """How far a backend is from the definition in float64: outputs, and gradients by every input."""
    exact, routed = case.route("torch", torch.float64), case.route(backend)
    exact_gradients, gradients = case.gradients("torch", torch.float64), case.gradients(backend)
    return {
        **{name: error(getattr(routed, name), getattr(exact, name)) for name in OUTPUTS},
        **{f"gradient by {name}": error(gradients[name], exact_gradients[name]) for name in LEARNED},
    }


def assert_close(case: Case, tolerance: float = 1e-4) -> None:
    """Within the tolerance of the definition in float64."""
    found = errors(case, "numba")
    assert max(found.values()) < tolerance, found


def allowed(case: Case) -> float:
    """What sharp assignments make of the rounding of float32, PyTorch's own as well."""
    return max(1e-4, 20 * max(errors(case, "torch").values()))


@settings(deadline=None, max_examples=40)
@given(
    wiring=st.sampled_from(sorted(WIRINGS)),
    assignments=st.sampled_from(ASSIGNMENTS),
    mean_momentum=st.sampled_from([0.0, 0.1, 0.5]),
    side=st.sampled_from([4, 16]),
    n=st.integers(0, 5),
    child_types=st.integers(1, 4),
    types=st.sampled_from([1, 2, 5, 15, 16, 17, 33]),
    iterations=st.integers(1, 3),
    shared=st.booleans(),
    offsets=st.booleans(),
    variance_floor=st.sampled_from([1.0, 0.3]),
    seed=st.integers(0, 2**31),
)
def test_kernel_agrees_with_the_definition(wiring, assignments, **options):
    assert_close(make_case(WIRINGS[wiring], **assignments, **options))


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("mean_momentum", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("rules", "pairing"), PAIRINGS, ids=describe)
def test_all_options_agree_with_the_definition(rules, pairing, mean_momentum, backend):
    wiring = convolution(5, 3, 2, pairing=pairing)
    case = make_case(wiring, types=17, offsets=True, variance_floor=0.1, mean_momentum=mean_momentum, **rules)
    found = errors(case, backend)
    assert max(found.values()) < 1e-4, found


@pytest.mark.parametrize("rules", ASSIGNMENTS, ids=describe)
def test_many_iterations(rules):
    """Each one sharpens the assignments, and with them the rounding of float32, PyTorch's own as well."""
    case = make_case(WIRINGS["strided"], iterations=6, variance_floor=0.3, **rules)
    assert_close(case, tolerance=allowed(case))


@pytest.mark.parametrize("rules", ASSIGNMENTS, ids=describe)
def test_votes_that_agree_far_from_zero(rules):
    """Mean 30 and standard deviation 0.01: E[V^2] - mu^2 would lose all digits. All backends keep them."""
    case = make_case(WIRINGS["dense"], offsets=True, variance_floor=1e-4, **rules)
    assert case.offsets is not None
    case = replace(case, transforms=case.transforms / 60, offsets=torch.full_like(case.offsets, 30))
    assert_close(case)
    assert max(errors(case, "torch").values()) < 1e-4
    sharp = replace(case, variance_floor=1e-8)
    assert_close(sharp, tolerance=allowed(sharp))
    poses, turned = case.poses.clone(), case.transforms.clone()
    poses[..., 0] = 30
    turned[..., 0, :] = 1 + turned[..., 0, :] / 30
    assert_close(replace(case, poses=poses, transforms=turned, offsets=None))


EDGES = {
    "zero activations": lambda case: replace(case, activations=torch.zeros_like(case.activations)),
    "hardly any activation": lambda case: replace(case, activations=1e-12 * case.activations),
    "one active child": lambda case: replace(case, activations=case.activations * torch.eye(16)[0][:, None]),
    "identical votes": lambda case: replace(
        case, poses=torch.ones_like(case.poses), transforms=torch.ones_like(case.transforms)
    ),
    "small poses": lambda case: replace(case, poses=1e-3 * case.poses),
    "large poses": lambda case: replace(case, poses=10 * case.poses),
    "sure capsules": lambda case: replace(case, inverse_temperature=300 * case.inverse_temperature),
}


@pytest.mark.parametrize("edge", EDGES)
def test_edges_agree_with_the_definition(edge):
    assert_close(EDGES[edge](make_case(WIRINGS["dense"])))


@pytest.mark.parametrize("floor", [0.1, 1e-8])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("types", [1, 3])
@pytest.mark.parametrize("wiring", ["single", "dense"])
def test_any_scale_is_finite_with_finite_gradient(wiring, types, scale, floor):
    case = make_case(WIRINGS[wiring], child_types=1, types=types, variance_floor=floor)
    case = replace(case, poses=scale * case.poses)
    routed = case.route()
    for tensor in (*(getattr(routed, name) for name in OUTPUTS), *case.gradients().values()):
        assert torch.isfinite(tensor).all()


def test_nan_is_not_silent():
    case = make_case(WIRINGS["strided"])
    poses = case.poses.clone()
    poses[1, 0, 0, 0] = torch.nan
    logits = replace(case, poses=poses).route().logits
    assert logits[1, 0].isnan().all()
    assert torch.isfinite(logits[[0, 2]]).all()


@pytest.mark.parametrize("competition", COMPETITIONS)
def test_a_sample_does_not_feel_its_neighbours(competition):
    """Bit for bit, and so do the gradients by its own poses and activations."""
    case = make_case(WIRINGS["strided"], n=37, competition=competition)
    routed, gradients = case.route(), case.gradients()
    for some in ([5], [36, 5], [*range(20, 5, -1), 5]):
        part = replace(case, poses=case.poses[some], activations=case.activations[some])
        few, few_gradients = part.route(), part.gradients()
        for name in OUTPUTS:
            assert torch.equal(getattr(few, name), getattr(routed, name)[some])
        for name in ("poses", "activations"):
            assert torch.equal(few_gradients[name], gradients[name][some])


@contextmanager
def using_threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_the_number_of_threads_changes_nothing():
    case = make_case(WIRINGS["strided"], n=37)
    results = []
    for number in (1, 3):
        with using_threads(number):
            results.append((case.route().poses, *case.gradients().values()))
    for one, many in zip(*results, strict=True):
        assert torch.equal(one, many)


def test_several_callers_at_once():
    case = make_case(WIRINGS["strided"], n=64)
    with using_threads(2):
        expected, found = case.gradients()["poses"], []
        callers = [threading.Thread(target=lambda: found.append(case.gradients()["poses"])) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert len(found) == 4
    assert all(torch.equal(expected, gradient) for gradient in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    """Threads stay for the next call, but not beyond a fork: waiting for those of the parent would take for ever."""
    with using_threads(2):
        case = make_case(WIRINGS["strided"], n=64)
        expected = case.route().logits
        child = multiprocessing.get_context("fork").Process(
            target=lambda: os._exit(0 if torch.equal(case.route().logits, expected) else 1)
        )
        child.start()
        child.join(60)
        child.kill()
    assert child.exitcode == 0


@pytest.mark.parametrize("broken", [0, 1])
def test_an_error_in_any_thread_arrives_when_all_have_ended(broken):
    ended = []

    def work(first, last):
        time.sleep(0.1 * (first != broken))
        ended.append(first)
        if first == broken:
            raise ValueError(f"part {first}")

    with using_threads(2):
        with pytest.raises(ValueError, match=f"part {broken}"):
            threads.run_parts(work, 2, 10 * threads.MIN_ASSIGNMENTS_PER_THREAD)
        assert sorted(ended) == [0, 1]
        threads.run_parts(lambda first, last: ended.append((first, last)), 2, 10 * threads.MIN_ASSIGNMENTS_PER_THREAD)
    assert sorted(ended[2:]) == [(0, 1), (1, 2)]


VARIANCES = torch.logspace(-30, 30, 16 * 16).view(16, 16)


@pytest.mark.parametrize("variance", [VARIANCES, VARIANCES.T.contiguous(), torch.full((16, 16), 0.1)])
def test_volumes_are_those_of_float64(variance):
    volumes = np.zeros((2, 16), np.float32)
    votes.set_volumes(volumes, variance.numpy(), 0.0)
    found = [0.5 * (math.log(2) * n + rest) for n, rest in volumes.T.astype(float)]
    expected = 0.5 * variance.double().log().sum(dim=0)
    torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("broken", [math.nan, math.inf, 0.0, 1e-40])
def test_volumes_of_what_has_no_logarithm_are_not_a_number(broken):
    variance, volumes = np.ones((16, 16), np.float32), np.zeros((2, 16), np.float32)
    variance[3, 5] = broken
    votes.set_volumes(volumes, variance, 0.0)
    assert [lane for lane in range(16) if np.isnan(volumes[1, lane])] == [5]


def test_the_trace_is_the_same_whether_kept_or_not():
    case = make_case(WIRINGS["strided"], n=37)
    tracked = replace(case, poses=case.poses.clone().requires_grad_()).route()
    assert tracked.logits.requires_grad
    for name in OUTPUTS:
        assert torch.equal(getattr(tracked, name).detach(), getattr(case.route(), name))


def test_gradients_by_images_alone():
    """Frozen transforms cost nothing and change nothing."""
    case = make_case(WIRINGS["strided"])
    gradients = []
    for frozen in (False, True):
        poses, transforms = case.poses.clone().requires_grad_(), case.transforms.clone().requires_grad_(not frozen)
        loss = replace(case, poses=poses, transforms=transforms).route().logits.sum()
        gradients.append(torch.autograd.grad(loss, poses)[0])
    assert torch.equal(*gradients)


def test_a_kept_graph_gives_the_same_gradient_again():
    case = make_case(WIRINGS["strided"])
    poses = case.poses.clone().requires_grad_()
    loss = replace(case, poses=poses).route().logits.sum()
    once, again = (torch.autograd.grad(loss, poses, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, again)


def test_strided_inputs():
    """Primary capsules come as a permuted view."""
    case = make_case(WIRINGS["strided"])
    turned = case.poses.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not turned.is_contiguous()
    assert torch.equal(replace(case, poses=turned).route().logits, case.route().logits)


UNWRITABLE = """
import torch
from robustcaps.capsules.routing import em_routing, fully_connected
ones = torch.ones(1, 1, 1, 16)
beta = torch.zeros(1)
routed = em_routing(ones, ones[..., 0], ones.view(1, 1, 4, 4), fully_connected(1), beta_a=beta, beta_u=beta,
                    inverse_temperature=beta, variance_floor=1.0, backend="numba")
print(routed.poses[0, 0, 0, 0].item())
"""


@pytest.mark.slow
def test_a_machine_without_a_writable_folder_compiles_anew():
    environment = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}  # one that has no place for us
    command = [sys.executable, "-c", UNWRITABLE]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert (found.stdout.strip(), found.returncode) == ("4.0", 0), found.stderr
