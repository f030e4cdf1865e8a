from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from benchmarks.perf import table
from benchmarks.readme import filled
from robustcaps.attacks import load_attack
from robustcaps.cli.app import app
from robustcaps.diagnostics.verdict import load_diagnostic
from robustcaps.suite.spec import Suite

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_numbers_in_the_readme_are_those_of_the_reference_run():
    assert filled(README) == README
    for linked in re.findall(r"\]\((.*?)\)", README):
        assert (ROOT / linked).is_file(), linked


def test_the_speeds_in_the_readme_are_those_that_were_measured():
    measured = pd.read_csv(ROOT / "results" / "perf" / "table.csv")
    assert table.markdown(measured).rstrip() in README
    textbook = measured["implementation"] == "textbook"
    assert (measured.loc[textbook, "training_ratio"] == 1).all() and set(measured["model"][textbook]) == set(
        measured["model"]
    )


def test_the_suite_in_the_readme_is_valid():
    text, more, asked = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    suite = Suite.model_validate({"name": "readme", **tomllib.loads(text)})
    assert [attack.use for attack in suite.attacks] == ["bim", "fgsm"]
    parts = [suite.data[0].model_dump(), suite.models[0].model_dump()]
    other = {"name": "readme", "data": parts[:1], "models": parts[1:], **tomllib.loads(more)}
    for spec in Suite.model_validate(other).attacks:
        load_attack(spec.use, eps=spec.eps, **spec.options)
    questions = Suite.model_validate({**other, "attacks": [], **tomllib.loads(asked)}).diagnostics
    checks = [load_diagnostic(check).name for check in questions[0].options["checks"]]
    assert checks == ["zero-gradient", "loss-surface"]


COMMANDS = sorted({line.split("#")[0].strip() for line in re.findall(r"^    (robustcaps .*)$", README, re.MULTILINE)})


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_in_the_readme_have_only_known_words(line):
    """Parsed with --help behind, so that nothing runs but an unknown command or option is found out."""
    words = shlex.split(line)[1:]
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output
    for option in (word for word in words if word.startswith("--")):
        assert option in re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_our_sweeps_take_the_passes_that_the_readme_says_and_leave_what_others_leave():
    passes = pd.read_csv(ROOT / "results" / "perf" / "passes.csv").set_index(["attack", "by"])
    ours, theirs = passes.xs("robustcaps", level="by"), passes.drop("robustcaps", level="by").groupby("attack")
    assert ours.loc["fgsm", "forwards"] <= 12 and ours.loc["fgsm", "backwards"] <= 1
    for cost in ("forwards", "backwards"):
        assert ours.loc["bim", cost] <= theirs[cost].min()["bim"] / 3
    for (attack, _), robust in passes["robust"].items():
        own = [float(share) for share in ours.loc[attack, "robust"].split()]
        assert [float(share) for share in robust.split()] == pytest.approx(own, abs=0.2001)


def test_the_number_of_adapted_attacks_is_right():
    adapters = pytest.importorskip("robustcaps.attacks.adapters.torchattacks_attacks")
    others = pytest.importorskip("robustcaps.attacks.adapters.foolbox_attacks")
    assert f"| {len(adapters.ATTACK_SPECS) + len(others.ATTACK_SPECS)} attacks of these libraries" in README
