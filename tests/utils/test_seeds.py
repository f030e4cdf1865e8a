from __future__ import annotations

import pytest
import torch

from robustcaps.utils.seeds import derive_seed, seeded


def test_each_tuple_has_a_seed_of_its_own():
    tuples = [(0,), (0, 0), (0, 1), (1, 0), (1,), (0, 0, 0)]
    assert len({derive_seed(*parts) for parts in tuples}) == len(tuples)
    assert derive_seed(3, 4) == derive_seed(3, 4)


def test_a_seeded_block_repeats_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    drawn = []
    for seed in (1, 1, 2):
        with seeded(seed, torch.device("cpu")):
            drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_the_state_is_put_back_after_an_error_too():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shape"), seeded(1):
        torch.rand(3).view(2)
    assert torch.equal(torch.get_rng_state(), before)
