"""Plugins as users write them: from the scaffold, and as an installed package."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pandas as pd
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "robustcaps-example"
SUITE = """
[[data]]
use = "toys"
limit = 30
[[models]]
use = "cnn-small"
[[attacks]]
use = "my-attack"
eps = [0.01, 0.05]
steps = 5
"""


def call(*words, python=sys.executable, cwd=None, code=0):
    done = subprocess.run([python, "-m", *map(str, words)], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_from_scaffold_to_a_row_in_the_table(tmp_path):
    call("robustcaps", "new", "attack", "my-attack", cwd=tmp_path)
    (tmp_path / "suite.toml").write_text(SUITE)
    assert "gradient steps" in call("robustcaps", "list", "attacks", "--plugin", "my_attack.py", cwd=tmp_path)
    call("robustcaps", "run", "suite.toml", "--plugin", "my_attack.py", "--out", "out", cwd=tmp_path)
    table = pd.read_csv(tmp_path / "out" / "table.csv")
    assert (table["attack"] == "my-attack").all() and table["accuracy"].is_monotonic_decreasing
    assert (table["invalid"] == 0).all()
    assert "passed" in call("pytest", "-q", "test_my_attack.py", cwd=tmp_path)
    wrong = SUITE.replace("steps = 5", "steps = 0")
    (tmp_path / "suite.toml").write_text(wrong)
    words = call("robustcaps", "check", "suite.toml", "--plugin", "my_attack.py", cwd=tmp_path, code=2)
    assert "attacks[0]" in words and "steps" in words


def test_the_scaffold_is_ten_lines_of_ones_own(tmp_path):
    call("robustcaps", "new", "attack", "short", cwd=tmp_path)
    own = (tmp_path / "short.py").read_text().partition("@rc.attack")[2].splitlines()
    assert len(own) <= 10


NAMES = {"fgsm": "there is an attack of that name already", "My_Attack": "small letters"}


@pytest.mark.parametrize(("name", "words"), NAMES.items())
def test_names_that_cannot_be(tmp_path, name, words):
    assert words in call("robustcaps", "new", "attack", name, cwd=tmp_path, code=2)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine.py").write_text("precious")
    assert "exists already" in call("robustcaps", "new", "attack", "mine", cwd=tmp_path, code=2)
    assert (tmp_path / "mine.py").read_text() == "precious"


def fresh_environment(folder):
    """Make an environment of its own that sees the packages of this one, but installs beside them."""
    venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    own = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    ours = sysconfig.get_path("purelib")
    (own / "packages_of_the_tests.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return python


def test_an_installed_package_brings_all_four_kinds(tmp_path):
    python = fresh_environment(tmp_path / "env")
    install = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", EXAMPLE)
    call("pip", "install", *install, python=python, cwd=tmp_path)
    lists = call("robustcaps", "list", python=python, cwd=tmp_path)
    kinds = ("example-checkerboard", "example-template", "example-bars", "example-mirror")
    assert all(name in lists for name in kinds) and "pixels per cell" in lists
    call("robustcaps", "run", EXAMPLE / "example.toml", "--out", "out", python=python, cwd=tmp_path)
    table = pd.read_csv(tmp_path / "out" / "table.csv").set_index(["attack", "eps"])
    assert table.loc[("example-checkerboard", 0.3), "invalid"] == 0
    assert table.loc[("fgsm", 0.3), "accuracy"] < table.loc[("fgsm", 0.1), "accuracy"]
    assert "example-checkerboard" in (tmp_path / "out" / "report.html").read_text()
    here = call("robustcaps", "list", "attacks")
    assert "example-checkerboard" not in here
