"""The kernels in Triton against the definition, in float64, forward and backward: run by Triton's interpreter."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robustcaps.capsules.kernels import backends
from robustcaps.capsules.routing import Wiring, fully_connected
from robustcaps.errors import UserError
from tests.capsules.test_kernels import LEARNED, OUTPUTS, PAIRINGS, Case, describe, errors, make_case

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = pytest.mark.skipif(not backends._is_interpreted(), reason="TRITON_INTERPRET is off")

OVERLAPPING = Wiring(
    windows=torch.tensor([[0, 1], [1, 2]]),
    rivals=torch.tensor([[0, 4], [1, 2], [3, 4], [4, 4]]),
)
"""Two windows that share a child position, and one that none shows: the interpreter is slow."""
PAIRED = Wiring(
    windows=torch.tensor([[0, 1, 2], [2, 3, 4]]),
    rivals=torch.tensor([[0, 6], [1, 3], [2, 4], [5, 6]]),
    groups=torch.tensor([[0, 1, 2], [1, 2, 3]]),
)
"""Two windows of stride 2, whose slots are paired as for stride 1: groups of different children."""


def small_case(wiring: Wiring = OVERLAPPING, *, n: int = 1, variance_floor: float = 0.3, **options: Any) -> Case:
    return make_case(wiring, n=n, variance_floor=variance_floor, **options)


def assert_close(case: Case, tolerance: float = 1e-4) -> None:
    found = errors(case, "triton")
    assert max(found.values()) < tolerance, found


CASES: dict[str, dict[str, Any]] = {
    "several samples": {"n": 2, "iterations": 2},
    "offsets": {"offsets": True},
    "shared transforms": {"shared": True, "offsets": True, "n": 2, "iterations": 2},
    "competition at a position": {"competition": "position"},
    "mean cost": {"activation": "mean-cost"},
    "mean cost, at a position": {"activation": "mean-cost", "competition": "position", "shared": True},
    "mixture": {"activation": "mixture", "n": 2},
    "mixture, at a position": {"activation": "mixture", "competition": "position", "offsets": True},
    "vectors": {"side": 16},
    "vectors, shared transforms, at a position": {"side": 16, "shared": True, "competition": "position"},
    "vectors, mixture": {"side": 16, "activation": "mixture", "offsets": True},
    "one iteration": {"iterations": 1},
    "five iterations": {"iterations": 5, "variance_floor": 1.0},
    "more than one tile": {"wiring": fully_connected(2), "types": 17, "child_types": 5, "iterations": 2},
    "one child, one parent": {"wiring": fully_connected(1), "types": 1, "child_types": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_kernel_agrees_with_the_definition(case):
    assert_close(small_case(**CASES[case]))


@pytest.mark.parametrize("mean_momentum", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
@pytest.mark.parametrize(("rules", "pairing"), PAIRINGS, ids=describe)
def test_all_options_agree_with_the_definition(rules, pairing, mean_momentum):
    wiring = {"child": OVERLAPPING, "stride-1": PAIRED}[pairing]
    assert_close(small_case(wiring, offsets=True, iterations=2, mean_momentum=mean_momentum, **rules))


RELEASED: dict[str, Any] = {"competition": "type", "start": "types", "mean_momentum": 0.1}


@pytest.mark.parametrize(
    "options",
    [
        {"wiring": PAIRED, "types": 17, "child_types": 5, "iterations": 2},
        {"wiring": PAIRED, "side": 16, "shared": True},
        {"iterations": 1},
        {"iterations": 5, "variance_floor": 1.0},
    ],
    ids=["more than one tile", "shared vectors", "one iteration", "five iterations"],
)
def test_released_options_in_other_layers(options):
    assert_close(small_case(**options, **RELEASED))


def test_one_wiring_under_different_options():
    """Its layout is kept for the next call, one for each number of types, competition and start."""
    for options in ({}, {"competition": "type"}, RELEASED, {"types": 2}, {"start": "types"}):
        assert_close(small_case(iterations=2, **options))


@pytest.fixture
def rounded_once(monkeypatch):
    """The interpreter rounds a product before it adds to it; GPUs do not, nor does a float64."""
    interpreter = importlib.import_module("triton.runtime.interpreter")

    def fma(self, x, y, z):
        total = x.data.astype(np.float64) * y.data + z.data
        return interpreter.TensorHandle(total.astype(np.float32), z.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_fma", fma)


@pytest.mark.usefixtures("rounded_once")
@pytest.mark.parametrize("competition", ["field", "type"])
@pytest.mark.parametrize("where", ["offsets", "poses"])
def test_votes_that_agree_far_from_zero(where, competition):
    """Mean 30 and standard deviation 0.01: E[V^2] - mu^2 would lose all digits."""
    case = small_case(offsets=True, variance_floor=1e-4, competition=competition)
    assert case.offsets is not None
    case = replace(case, transforms=case.transforms / 60, offsets=torch.full_like(case.offsets, 30))
    if where == "poses":
        poses, turned = case.poses.clone(), case.transforms.clone()
        poses[..., 0] = 30
        turned[..., 0, :] = 1 + turned[..., 0, :] / 30
        case = replace(case, poses=poses, transforms=turned, offsets=None)
    assert_close(case)


EDGES = {
    "zero activations": lambda case: replace(case, activations=torch.zeros_like(case.activations)),
    "hardly any activation": lambda case: replace(case, activations=1e-12 * case.activations),
    "identical votes": lambda case: replace(
        case, poses=torch.ones_like(case.poses), transforms=torch.ones_like(case.transforms)
    ),
}


@pytest.mark.parametrize("options", [{}, {"activation": "mixture"}, RELEASED], ids=["paper", "mixture", "released"])
@pytest.mark.parametrize("edge", EDGES)
def test_edges_agree_with_the_definition(edge, options):
    assert_close(EDGES[edge](small_case(iterations=2, **options)))


def test_far_votes_and_a_tiny_floor_are_finite():
    case = small_case(variance_floor=1e-8, types=1)
    case = replace(case, poses=1e3 * case.poses)
    routed = case.route("triton")
    for tensor in (*(getattr(routed, name) for name in OUTPUTS), *case.gradients("triton").values()):
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("options", [{"activation": "mixture"}, RELEASED], ids=["mixture", "released"])
def test_a_sample_does_not_feel_its_neighbours(options):
    """Bit for bit, and so do the gradients by its own poses and activations; whatever befalls the others."""
    case = small_case(n=3, iterations=2, **options)
    poses = case.poses.clone()
    poses[1, 0, 0, 0] = torch.nan
    case = replace(case, poses=poses)
    routed, gradients = case.route("triton"), case.gradients("triton")
    assert routed.logits[1, 0].isnan().all()
    part = replace(case, poses=poses[[2, 0]], activations=case.activations[[2, 0]])
    few, few_gradients = part.route("triton"), part.gradients("triton")
    for name in OUTPUTS:
        assert torch.equal(getattr(few, name), getattr(routed, name)[[2, 0]])
    for name in ("poses", "activations"):
        assert torch.equal(few_gradients[name], gradients[name][[2, 0]])


@pytest.mark.parametrize("options", [{}, RELEASED], ids=["paper", "released"])
def test_only_what_is_asked_for(options):
    """Without a gradient to come no trace is kept, for frozen transforms none is computed; all else is the same."""
    case = small_case(**options)
    tracked = replace(case, poses=case.poses.clone().requires_grad_())
    routed = tracked.route("triton")
    for name in OUTPUTS:
        assert torch.equal(getattr(routed, name).detach(), getattr(case.route("triton"), name))
    loss = routed.logits.sum()
    once, again = (torch.autograd.grad(loss, tracked.poses, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, again)
    transforms = case.transforms.clone().requires_grad_()
    loss = replace(tracked, transforms=transforms).route("triton").logits.sum()
    assert torch.equal(torch.autograd.grad(loss, [tracked.poses, transforms])[0], once)


@pytest.mark.parametrize("options", [{"activation": "mixture"}, RELEASED], ids=["mixture", "released"])
def test_an_empty_batch(options):
    case = small_case(n=0, **options)
    assert case.route("triton").poses.shape == (0, 2, 3, 16)
    gradients = case.gradients("triton")
    assert [gradients[name].shape for name in LEARNED] == [getattr(case, name).shape for name in LEARNED]
    assert not gradients["transforms"].any()


def test_strided_inputs():
    case = small_case(iterations=1)
    turned = case.poses.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    prices = case.beta_a[:1].expand(3)
    assert not turned.is_contiguous()
    strided = replace(case, poses=turned, beta_a=prices).route("triton")
    assert torch.equal(strided.logits, replace(case, beta_a=prices.contiguous()).route("triton").logits)


def test_each_device_has_its_kernel():
    names = {name: backends._find_library(torch.device(name)) for name in ("cpu", "cuda", "cuda:1", "mps")}
    assert names == {"cpu": "numba", "cuda": "triton", "cuda:1": "triton", "mps": None}


def test_tensors_that_triton_cannot_reach(monkeypatch):
    monkeypatch.setattr(backends, "_is_interpreted", lambda: False)
    with pytest.raises(UserError, match=r"backend 'triton' cannot be used: .* on cuda, not .* on cpu"):
        small_case().route("triton")


def test_wiring_on_another_device():
    case = small_case()
    lost = Wiring(windows=case.wiring.windows.to("meta"), rivals=case.wiring.rivals)
    with pytest.raises(UserError, match="same device"):
        replace(case, wiring=lost).route("triton")


def test_an_unknown_backend():
    with pytest.raises(UserError, match=r"unknown backend 'tritn'\. Did you mean 'triton'"):
        small_case().route("tritn")


@pytest.fixture
def without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "robustcaps.capsules.kernels.cuda.em", None)
    backends._load_kernel.cache_clear()
    yield
    backends._load_kernel.cache_clear()


@pytest.mark.usefixtures("without_triton")
@pytest.mark.filterwarnings("ignore:EM routing runs in PyTorch")
def test_without_triton():
    with pytest.raises(UserError, match=r"triton is not installed .*robustcaps\[gpu\]"):
        small_case().route("triton")


COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit
from robustcaps.capsules.kernels.cuda.em import em_routing
from robustcaps.capsules.routing import convolution

class Ampere:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 80, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

def compile_only(self, *args, warmup, **named):
    print(self.fn.__name__, len(run(self, *args, warmup=True, **named).asm["cubin"]))

driver.set_active(Ampere())
run, jit.JITFunction.run = jit.JITFunction.run, compile_only
paper, released = ("field", 0.0, "uniform", "child"), ("type", 0.1, "types", "stride-1")
for activation, rules in (("mixture", paper), ("cost", paper), ("cost", released)):
    competition, mean_momentum, start, pairing = rules
    poses, transforms = torch.zeros(2, 25, 2, 16, requires_grad=True), torch.zeros(9, 2, 4, 4, 4, requires_grad=True)
    routed = em_routing(
        poses, poses[..., 0], transforms, convolution(5, 3, 2, pairing=pairing), beta_a=torch.zeros(4),
        beta_u=torch.zeros(4), inverse_temperature=torch.ones(2), variance_floor=1.0, competition=competition,
        activation=activation, mean_momentum=mean_momentum, start=start, offsets=None,
    )
    routed.logits.sum().backward()
"""


@pytest.mark.slow
def test_kernels_compile_for_a_gpu(tmp_path: Path):
    """The compiler takes less than the interpreter does; it needs no GPU."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert found.returncode == 0, found.stderr
    forward = {"add_rows", "find_centres", "fit_parents", "normalise_assignments"}
    backward = {"backward_parents", "backward_activations", "backward_assignments"}
    contraction = {"backward_poses", "backward_transforms"}
    by_type = {"find_largest", "normalise_by_type", "backward_by_type"}
    assert {line.split()[0] for line in found.stdout.splitlines()} == forward | backward | contraction | by_type
