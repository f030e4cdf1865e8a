"""Which inputs the fused kernels take, and what falls back to the definition."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from robustcaps.capsules.kernels import backends
from robustcaps.capsules.routing import convolution, em_routing
from robustcaps.errors import UserError
from tests.capsules.test_kernels import LEARNED, WIRINGS, make_case

pytest.importorskip("numba")

UNFIT = {
    "float64": lambda case: replace(case, **{name: getattr(case, name).double() for name in (*LEARNED, "offsets")}),
    "offsets": lambda case: replace(case, offsets=case.offsets.clone().requires_grad_()),
    "inverse_temperature": lambda case: replace(
        case, inverse_temperature=case.inverse_temperature.clone().requires_grad_()
    ),
    "4x4": lambda case: replace(case, poses=case.poses[..., :9], transforms=case.transforms[..., :3, :3], offsets=None),
    "'mixture'": lambda case: replace(case, activation="mixture", competition="type"),
    "sum to 1": lambda case: replace(case, activation="mixture", start="types"),
    "groups of slots": lambda case: replace(case, wiring=convolution(5, 3, 2, pairing="stride-1")),
}


@pytest.mark.parametrize("reason", UNFIT)
def test_what_the_kernel_cannot_do_falls_to_the_definition(reason):
    case = UNFIT[reason](make_case(WIRINGS["strided"], offsets=True))
    named = {**vars(case), "inverse_temperature": case.inverse_temperature.to(case.poses)}
    assert torch.equal(em_routing(**named).logits, em_routing(**named, backend="torch").logits)
    with pytest.raises(UserError, match=rf"backend 'numba' cannot be used: .*{reason}.*Choose"):
        em_routing(**named, backend="numba")


def test_shapes_that_do_not_fit_are_an_error_not_a_crash():
    case = make_case(WIRINGS["strided"])
    with pytest.raises(UserError, match="shapes"):
        replace(case, poses=case.poses[:, :-1]).route()
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        replace(case, poses=case.poses[:, :-1]).route("auto")


def test_auto_takes_the_kernel():
    case = make_case(WIRINGS["strided"])
    assert torch.equal(case.route("auto").logits, case.route("numba").logits)
    assert not torch.equal(case.route("auto").poses, case.route("torch").poses)


@pytest.fixture
def without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "robustcaps.capsules.kernels.cpu.em", None)
    backends._load_kernel.cache_clear()
    yield
    backends._load_kernel.cache_clear()


@pytest.mark.usefixtures("without_numba")
def test_without_numba_one_warning_and_the_definition():
    case = make_case(WIRINGS["strided"])
    with pytest.warns(RuntimeWarning, match="numba is not installed") as caught:
        routed = [case.route("auto").logits for _ in range(3)]
    assert len(caught) == 1
    for logits in routed:
        assert torch.equal(logits, case.route("torch").logits)
    with pytest.raises(UserError, match="numba is not installed"):
        case.route("numba")


def test_a_model_that_is_being_compiled_uses_the_definition():
    case = make_case(WIRINGS["strided"])
    compiled = torch.compile(em_routing, backend="eager", fullgraph=True)
    assert torch.equal(compiled(**vars(case)).logits, case.route("torch").logits)
