"""Random bit flips in the files of a run: none changes a table unnoticed, and none ends in a traceback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import robustcaps as rc
from robustcaps.analysis.results import Results
from robustcaps.errors import UserError

SUITE = """
[[data]]
use = "dots"
limit = 12
[[models]]
use = "levels"
[[models]]
use = "levels"
name = "blunt"
sharpness = 10.0
[[attacks]]
use = "fgsm"
eps = [0.02, 0.1]
[[diagnostics]]
use = "gradients"
"""


def shown(out: Path) -> dict[str, str] | None:
    """All tables as text; None if the user is told that something is missing or damaged."""
    try:
        results = Results(out)
        if results.problems:
            return None
        return {name: table.to_csv() for name, table in results.tables.items()}
    except UserError:
        return None


def flip(path: Path, generator: random.Random) -> bytes:
    """Flip one bit of a file and return its former content."""
    content = path.read_bytes()
    damaged = bytearray(content)
    position = generator.randrange(len(damaged))
    damaged[position] ^= 1 << generator.randrange(8)
    path.write_bytes(damaged)
    return content


@pytest.mark.parametrize("flips", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("registries")
def test_no_bit_flip_changes_a_table_unnoticed(tmp_path, plugin, flips):
    (tmp_path / "x.toml").write_text(SUITE)
    out = tmp_path / "o"
    assert not rc.run(tmp_path / "x.toml", out, plugins=[plugin]).failures
    right = shown(out)
    assert right is not None and right["table"].count("\n") > 4
    files = [*sorted((out / "cells").glob("*.parquet")), out / "run.json"]
    generator = random.Random(flips)
    noticed = 0
    for _ in range(flips):
        path = generator.choice(files)
        before = flip(path, generator)
        found = shown(out)
        noticed += found is None
        assert found in (None, right), path
        path.write_bytes(before)
    assert noticed > 0.9 * flips  # the rest are spaces between the words of run.json
    assert shown(out) == right
