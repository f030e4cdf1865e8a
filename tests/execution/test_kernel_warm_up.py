"""Kernels are compiled in the background, while cells are executed that do not need them."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from torch import nn

import robustcaps as rc
from robustcaps.execution import kernel_warm_up
from robustcaps.execution.kernel_warm_up import kernels_compiled_meanwhile


@pytest.fixture(scope="module")
def models():
    return {
        "capsules": rc.build_model("matrix-capsnet", classes=2, channels=1, size=32, filters=4, types=[2, 2, 2]),
        "linear": nn.Linear(2, 2),
    }


def shards(names):
    return [
        SimpleNamespace(cell=SimpleNamespace(model=name, data="d"), place=place) for place, name in enumerate(names)
    ]


def order(models, names, script="", *, cold=True):
    """Return the places of the cells in the order of their execution, and the processes that were started."""
    started = []

    def start():
        command = [sys.executable, "-c", script]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_warm_up, "_is_cold", lambda: cold)
        patch.setattr(kernel_warm_up, "_start", start)
        resolver = SimpleNamespace(model=lambda model, _data: models[model])
        with kernels_compiled_meanwhile(shards(names), resolver) as ordered:
            return [shard.place for shard in ordered], started


@pytest.mark.parametrize(
    ("names", "cold", "expected", "starts"),
    [
        (("linear", "capsules", "linear", "capsules"), True, [0, 2, 1, 3], 1),
        (("linear", "capsules", "linear"), False, [0, 1, 2], 0),
        (("capsules", "capsules"), True, [0, 1], 0),
        (("linear", "linear"), True, [0, 1], 0),
        ((), True, [], 0),
    ],
)
def test_cells_that_need_the_kernels_come_last_if_these_are_not_compiled(models, names, cold, expected, starts):
    places, started = order(models, names, cold=cold)
    assert places == expected and len(started) == starts
    assert all(process.returncode == 0 for process in started)


def test_a_failure_is_a_warning_and_the_cells_are_executed(models):
    with pytest.warns(RuntimeWarning, match="could not be compiled in the background: ValueError: no luck"):
        places, _ = order(models, ("capsules", "linear"), "raise ValueError('no luck')")
    assert places == [1, 0]


def test_an_interrupted_run_leaves_no_process(models, monkeypatch):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    monkeypatch.setattr(kernel_warm_up, "_is_cold", lambda: True)
    monkeypatch.setattr(kernel_warm_up, "_start", lambda: process)
    resolver = SimpleNamespace(model=lambda model, _data: models[model])
    with kernels_compiled_meanwhile(shards(["linear", "capsules"]), resolver) as ordered:
        assert next(iter(ordered)).place == 0
    assert process.returncode != 0


@pytest.mark.slow
def test_a_network_finds_the_kernels_that_the_process_compiled(tmp_path):
    pytest.importorskip("numba")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for script in (["-m", kernel_warm_up.MODULE], ["-c", USE]):
        done = subprocess.run([sys.executable, *script], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "0", "1", "0"]


USE = """
import torch
import robustcaps as rc
from robustcaps.capsules.kernels.cpu.backward import backward_parts
from robustcaps.capsules.kernels.cpu.forward import route_samples
model = rc.build_model("matrix-capsnet", classes=2, channels=1, size=32, filters=4, types=[2, 2, 2])
model(torch.rand(2, 1, 32, 32, requires_grad=True)).sum().backward()
for kernel in (route_samples, backward_parts):
    print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
"""


def test_only_networks_that_route_by_em_on_a_cpu_need_the_kernels(models):
    assert kernel_warm_up._routes_by_kernel(models["capsules"])
    assert not kernel_warm_up._routes_by_kernel(models["linear"])
    assert not kernel_warm_up._routes_by_kernel(copy.deepcopy(models["capsules"]).to("meta"))
