"""The options of a training are the same for suites, cards and the command line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer
from pydantic import ValidationError

from robustcaps.cli.app import app
from robustcaps.models.cards import ModelCard, TrainingSettings
from robustcaps.suite.spec import TrainSpec
from robustcaps.training_options import TrainingOptions

FIELDS = TrainingOptions.model_fields


def test_suites_and_cards_have_all_options():
    for user in (TrainSpec, TrainingSettings, ModelCard):
        assert issubclass(user, TrainingOptions)
    assert TrainSpec().model_dump(exclude={"views", "seeds", "holdout"}) == TrainingOptions().model_dump(
        exclude={"holdout"}
    )
    assert (TrainSpec().holdout, TrainingOptions().holdout) == (0, 1)


@pytest.mark.parametrize("name", FIELDS)
def test_every_option_is_one_of_the_command_line_with_its_description_and_default(name):
    command = typer.main.get_command(app).commands["train"]
    (option,) = (each for each in command.params if each.name == name)
    assert option.help == FIELDS[name].description
    assert option.default == FIELDS[name].default
    assert f"--{name.replace('_', '-')}" in option.opts


def test_arguments_of_the_command_line_leave_out_what_is_unset():
    assert TrainingOptions().command_arguments() == ["--seed", "0", "--holdout", "1"]
    options = TrainingOptions(seed=3, epochs=2, lr=0.01, holdout=0, holdout_test=5, stop_error=0.1, half=False)
    words = "--seed 3 --epochs 2 --lr 0.01 --holdout 0 --holdout-test 5 --stop-error 0.1 --no-half"
    assert options.command_arguments() == words.split()


@pytest.mark.parametrize("kind", [TrainingOptions, TrainSpec])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adversary_eps": 0.1}, "needs both"),
        ({"adversary_steps": 1}, "needs both"),
        ({"holdout": 1, "holdout_test": 5}, "requires holdout = 0"),
        ({"holdout": 0, "stop_error": 0.1}, "needs validation samples"),
        ({"lr": float("inf")}, "finite"),
        ({"noise": 0.0}, "greater than 0"),
        ({"noise": 1.5}, "less than or equal to 1"),
        ({"seed": 2**31}, "less than or equal"),
    ],
)
def test_options_that_contradict_each_other_are_refused(kind: type[TrainingOptions], options: dict[str, Any], message):
    with pytest.raises(ValidationError, match=message):
        kind(**options)


def test_the_options_do_not_import_torch():
    script = "import sys, robustcaps.training_options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
