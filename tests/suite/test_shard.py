"""Shards: whole batches of the cells that may be divided, and parts that share all of them."""

from __future__ import annotations

import math

import pytest

from robustcaps.errors import UserError
from robustcaps.registry import ATTACKS
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.shard import MAX_SHARD_PASSES, Part, select_part, split_cell
from robustcaps.suite.spec import load_suite

ATTACKS.names("torchattacks.*")  # registered before any test, because fixtures restore what they found

MORE = """
[[attacks]]
use = "darken"
eps = [0.1]
[[attacks]]
use = "fgsm"
name = "limited"
eps = [0.1]
time_limit = 60
[[attacks]]
use = "torchattacks.fgsm"
eps = [0.1]
[[diagnostics]]
use = "gradients"
"""


@pytest.fixture
def cells(suite, plugin, registries):
    suite.write_text("batch_size = 4\n" + suite.read_text() + MORE)
    resolver = Resolver(RuntimeConfig(plugins=(plugin,), device="cpu"))
    return make_plan(load_suite(suite), resolver, source="tiny.toml")


@pytest.mark.parametrize(("size", "expected"), [(1, 4), (4, 4), (5, 8), (29, 32), (30, 32)])
def test_a_shard_is_whole_batches_of_a_cell_that_may_be_divided(cells, size, expected):
    for cell in cells:
        shards = split_cell(cell, size)
        if cell.task.label.startswith(("darken", "limited", "torchattacks", "gradients")):
            assert [shard.samples for shard in shards] == [None]
            continue
        spans = [shard.samples for shard in shards]
        if expected >= 30:
            assert spans == [None] and shards[0].id == cell.id
        else:
            assert [span.start for span in spans] == list(range(0, 30, expected)) and spans[-1].stop == 30
            assert len({shard.id for shard in shards}) == len(shards)
        assert math.isclose(sum(shard.work for shard in shards), cell.work)


def test_a_size_is_chosen_by_the_work(suite, plugin, registries):
    suite.write_text("batch_size = 2\n" + suite.read_text().replace("steps = 3", "steps = 3000"))
    resolver = Resolver(RuntimeConfig(plugins=(plugin,), device="cpu"))
    for cell in make_plan(load_suite(suite), resolver, source="tiny.toml"):
        shards = split_cell(cell)
        assert (len(shards) > 1) == (cell.work > MAX_SHARD_PASSES) == cell.task.label.startswith("pgd")
        assert all(shard.work <= MAX_SHARD_PASSES or shard.samples.size == 2 for shard in shards if shard.samples)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 200])
def test_parts_share_all_shards_evenly(cells, count):
    shards = [shard for cell in cells for shard in split_cell(cell, 4)]
    parts = [select_part(shards, Part(number, count)) for number in range(1, count + 1)]
    assert sorted(shard.id for part in parts for shard in part) == sorted(shard.id for shard in shards)
    assert all(part == [shard for shard in shards if shard in part] for part in parts), "in the order of the plan"
    largest = max(shard.work for shard in shards)
    for model in ("levels", "blunt"):
        loads = [sum(shard.work for shard in part if shard.cell.model.label == model) for part in parts]
        assert max(loads) - min(loads) <= largest


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "1/0", "a/b", "-1/3", "1.5/3", "1/2/3", "1/" + "9" * 5000])
def test_what_is_no_part_is_refused_in_one_line(text):
    with pytest.raises(UserError, match="--part") as caught:
        Part.parse(text)
    assert "\n" not in str(caught.value)


def test_a_part_is_read_and_written():
    assert Part.parse("3/8") == Part(3, 8) and str(Part(3, 8)) == "3/8"
