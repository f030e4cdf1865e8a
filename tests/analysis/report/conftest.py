"""A small run with something for every section of the report, and a model with a hostile name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import robustcaps as rc
from robustcaps.registry import ATTACKS, DATASETS, MODELS
from tests.conftest import PLUGIN

NASTY = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> & \u2028\"co\" {{ 1 }}"
SUITE = f"""
title = {json.dumps("Dots & " + NASTY)}
[[data]]
use = "dots"
limit = 24
[[models]]
use = "levels"
[[models]]
use = "levels"
name = {json.dumps(NASTY)}
sharpness = 10.0
[[attacks]]
use = "fgsm"
eps = [0.02, 0.05, 0.1]
[[attacks]]
use = "darken"
eps = [0.02, 0.05, 0.1]
[[attacks]]
use = "darken"
name = "too far"
eps = 0.1
share = 2.0
[[attacks]]
use = "fgsm"
name = "to every class"
goal = "targeted"
target = "every"
eps = [0.05, 0.1]
[[diagnostics]]
use = "gradients"
limit = 6
[[diagnostics]]
use = "zero-gradient"
eps = 0.05
limit = 6
"""


@pytest.fixture(scope="package")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The out folder of the run."""
    folder = tmp_path_factory.mktemp("report")
    suite, plugin = folder / "small.toml", folder / "tiny_plugin.py"
    suite.write_text(SUITE, encoding="utf-8")
    plugin.write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patch:  # what the plugin registers is forgotten after the run
        for registry in (ATTACKS, DATASETS, MODELS):
            registry.names("built-in ones")  # registers them, whatever is asked for
            patch.setattr(registry, "_entries", dict(registry._entries))
        result = rc.run(suite, folder / "o", plugins=[plugin])
    assert not result.failures
    return result.out
