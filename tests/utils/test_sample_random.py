from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from robustcaps.utils.sample_random import Draws


@given(seed=st.integers(0, 2**31), start=st.integers(0, 10**6), stream=st.integers(0, 100))
def test_a_sample_gets_the_same_numbers_in_any_batch(seed, start, stream):
    together = Draws(seed, torch.arange(start, start + 5))
    alone = Draws(seed, torch.tensor([start + 3]))
    assert torch.equal(together.uniform((2, 3), stream=stream)[3:4], alone.uniform((2, 3), stream=stream))
    assert torch.equal(together.select(torch.tensor([3])).normal((4,)), alone.normal((4,)))


def test_seed_stream_and_sample_all_matter():
    indices = torch.arange(50)
    sets = [
        Draws(0, indices).uniform((20,)),
        Draws(1, indices).uniform((20,)),
        Draws(0, indices).uniform((20,), stream=1),
        Draws(0, indices + 50).uniform((20,)),
    ]
    values = torch.cat([numbers.flatten() for numbers in sets])
    assert len(values.unique()) > 0.999 * len(values)


def test_numbers_have_the_right_distribution():
    draws = Draws(7, torch.arange(1000))
    uniform, normal = draws.uniform((300,)).double(), draws.normal((300,), stream=1).double()
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.003 and abs(uniform.var() - 1 / 12) < 0.001
    assert abs(normal.mean()) < 0.01 and abs(normal.std() - 1) < 0.01
    assert abs((normal**4).mean() - 3) < 0.1
    counts = draws.integers(5, (300,), stream=2).flatten().bincount(minlength=5)
    assert (counts.double() / counts.sum() - 0.2).abs().max() < 0.005
    neighbours = torch.corrcoef(torch.stack([uniform[:-1].flatten(), uniform[1:].flatten()]))[0, 1]
    assert abs(neighbours) < 0.01


def test_global_generators_are_left_alone():
    before = torch.get_rng_state()
    Draws(0, torch.arange(3)).normal((2,))
    assert torch.equal(torch.get_rng_state(), before)
