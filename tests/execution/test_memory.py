"""A cell that runs out of memory goes on with smaller batches, gives the same rows, and says so."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import robustcaps as rc
from robustcaps.cli.app import app
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.run_progress import RunProgress
from robustcaps.utils.devices import is_out_of_memory

HUNGRY = """
import torch
import robustcaps as rc
LIMIT, LOG = {limit}, {log!r}


@rc.attack("hungry")
def hungry(model, images, labels, eps):
    with open(LOG, "a") as file:
        file.write(f"{{len(images)}}\\n")
    if len(images) > LIMIT:
        raise {error}
    return (images - eps).clamp(0, 1)
"""
ERRORS = {
    "torch's": "torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')",
    "the CPU's": 'RuntimeError("DefaultCPUAllocator: can\'t allocate memory: you tried to allocate 9 bytes")',
    "Python's": "MemoryError()",
}
SUITE = """
batch_size = 16
[[data]]
use = "dots"
limit = 30
[[models]]
use = "levels"
[[attacks]]
use = "hungry"
eps = [0.05, 0.1]
"""


class Outcomes(RunProgress):
    def __init__(self) -> None:
        self.all: list[Outcome] = []

    def cell_ended(self, outcome: Outcome) -> None:
        self.all.append(outcome)


def run(tmp_path, plugin, limit, error=ERRORS["torch's"]):
    (tmp_path / "x.toml").write_text(SUITE)
    hungry = tmp_path / "hungry.py"
    hungry.write_text(HUNGRY.format(limit=limit, error=error, log=str(tmp_path / "log")))
    progress = Outcomes()
    result = rc.run(tmp_path / "x.toml", tmp_path / f"o{limit}", plugins=[plugin, hungry], progress=progress)
    return result, progress.all[0]


@pytest.mark.usefixtures("registries")
def test_rows_are_the_same_and_the_smaller_batch_size_is_named(tmp_path, plugin):
    plenty, quiet = run(tmp_path, plugin, 100)
    scarce, outcome = run(tmp_path, plugin, 5)
    assert not plenty.failures and not scarce.failures and quiet.note == ""
    assert outcome.note == "ran out of memory; computed with a batch size of 4"
    pd.testing.assert_frame_equal(plenty.results.rows(), scarce.results.rows())
    assert max(int(line) for line in (tmp_path / "log").read_text().split()[-8:]) <= 4


@pytest.mark.usefixtures("registries")
def test_a_cell_without_memory_for_one_image_fails(tmp_path, plugin):
    result, outcome = run(tmp_path, plugin, 0, ERRORS["Python's"])
    assert len(result.failures) == 1 and outcome.violation == "raised" and "MemoryError" in outcome.reason


def evaluate(hungry_attack, **options):
    data, model = rc.load_data("dots", limit=30), rc.build_model("levels", classes=3, channels=1, size=6)
    return rc.evaluate(model, data, hungry_attack, batch_size=16, **options)


@pytest.fixture
def hungry(registries, tmp_path, plugin):
    """A function that loads the attack, which has memory for so many images."""

    def load(limit):
        path = tmp_path / f"hungry{limit}.py"
        path.write_text(HUNGRY.format(limit=limit, error=ERRORS["torch's"], log=str(tmp_path / "log")))
        rc.load_plugin(plugin)
        rc.load_plugin(path)
        return rc.load_attack("hungry", eps=[0.05, 0.1])

    return load


def test_evaluate_warns_and_returns_the_same_rows(hungry):
    attack, notes = hungry(5), []
    with pytest.warns(RuntimeWarning, match="'hungry' ran out of memory; computed with a batch size of 4"):
        scarce = evaluate(attack)
    pd.testing.assert_frame_equal(evaluate(attack, warn=notes.append), scarce)
    assert notes == ["ran out of memory; computed with a batch size of 4"]


def test_batches_of_an_attack_that_draws_per_batch_stay(hungry):
    attack = hungry(5)
    attack.draws_per_batch = True
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(attack)


@pytest.mark.parametrize("limit", [100, 5])
def test_the_command_says_so(hungry, limit):
    hungry(limit)
    command = ["attack", "levels", "hungry", "--eps", "0.1", "--data", "dots", "--limit", "30", "--batch-size", "16"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert ("the attack ran out of memory; computed with a batch size of 4." in shown.output) == (limit == 5)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_out_of_memory_is_recognised(error):
    assert is_out_of_memory(eval(error, {"torch": torch}))  # noqa: S307
    assert not is_out_of_memory(RuntimeError("no luck")) and not is_out_of_memory(KeyError("out of memory"))
