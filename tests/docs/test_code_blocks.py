"""Every code block of README and manual works.

A block whose first line is `# NAME.py` or `# NAME.toml` is a file; other `python` blocks and the commands of `console`
blocks are executed, page by page and in order, with few samples and steps. Scripts (`bash`) and blocks whose first line
begins with `# takes`, `# needs` or `# downloads` are only parsed.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import robustcaps
from docs.generate.markdown import ROOT
from robustcaps.cli.app import app
from robustcaps.suite import packaged
from robustcaps.suite.spec import Collection, Suite

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ONLY_PARSED = re.compile(r"# (takes|needs|downloads) ")
FILE = re.compile(r"# ([\w-]+\.(?:py|toml))$")
TINY = {
    r"limit( ?= ?| )\d+": r"limit\g<1>20",
    r"epochs( ?= ?| )\d+": r"epochs\g<1>1",
    r"steps( ?= ?| )\d+": r"steps\g<1>2",
    r"queries( ?= ?| )\d+": r"queries\g<1>5",
    r"range\(10\)": "range(1)",
}
"""What makes a block quick."""


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def file(self) -> str | None:
        found = FILE.match(self.first_line)
        return found[1] if found else None

    @property
    def is_only_parsed(self) -> bool:
        return bool(ONLY_PARSED.match(self.first_line))

    @property
    def is_python(self) -> bool:
        return self.language == "python" or self.text.startswith("$ python ")

    @property
    def commands(self) -> list[list[str]]:
        """What a block tells to type: of a console the lines after a prompt, if there are prompts."""
        lines = self.text.replace("\\\n", " ").splitlines()
        typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [words for line in typed or lines if (words := shlex.split(line, comments=True))]

    @property
    def tiny(self) -> str:
        text = self.text
        for pattern, smaller in TINY.items():
            text = re.sub(pattern, smaller, text)
        return text


def blocks_of(page: Path) -> list[Block]:
    found = re.findall(r"^ *```(\w+)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(language, text) for language, text in found]


def pages_with(*languages: str) -> list[Any]:
    """Return the pages that have blocks in one of the languages, or any blocks."""
    pages = [page for page in PAGES if "generated" not in page.parts and "_build" not in page.parts]
    by_page = {page: {block.language for block in blocks_of(page)} for page in pages}
    chosen = [page for page, found in by_page.items() if (found & set(languages) if languages else found)]
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in chosen]


@pytest.mark.parametrize("page", pages_with())
def test_blocks_can_be_parsed(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in PARSERS, f"'{block.language}': write one of {', '.join(PARSERS)}"
        PARSERS[block.language](block)


def parse_commands(block: Block) -> None:
    """Parsed with --help behind: nothing runs, but an unknown command or option is found."""
    for words in block.commands:
        if words[0] == "make":
            assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for target in words[1:])
        if words[0] != "robustcaps":
            continue
        result = CliRunner().invoke(app, [*words[1:], "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        for option in (word for word in words if word.startswith("--")):
            assert option in re.sub(r"\x1b\[[0-9;]*m", "", result.output), words


def parse_suite(block: Block) -> None:
    content = tomllib.loads(block.text)
    if "suites" in content:
        Collection.model_validate({"name": "page", **content})
        return
    rest = {"name": "page", "data": [{"use": "toys"}], "models": [{"use": "cnn"}], "attacks": [{"use": "clean"}]}
    Suite.model_validate({**rest, **content})


PARSERS: dict[str, Callable[[Block], object]] = {
    "python": lambda block: ast.parse(block.text),
    "console": parse_commands,
    "bash": parse_commands,
    "toml": parse_suite,
    "text": lambda _: None,
    "json": lambda block: json.loads(block.text),
}
"""The languages that a block may have."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registries: None) -> Path:
    """An empty folder to work in, with small versions of the packaged suites."""
    suites = tmp_path / "packaged"
    suites.mkdir()
    for name, path in packaged.packaged_suites().items():
        (suites / f"{name}.toml").write_text(Block("toml", path.read_text(encoding="utf-8")).tiny, encoding="utf-8")
    monkeypatch.setattr(packaged, "FOLDERS", (suites,))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("ROBUSTCAPS_DATA", raising=False)
    monkeypatch.syspath_prepend(str(work))
    return work


FEW = ["README.md", "docs/threat-models.md"]
"""Pages whose Python is run without the slow tests, too."""


@pytest.mark.parametrize("name", FEW)
def test_python_of_the_first_pages_runs(name: str, place: Path) -> None:
    run_blocks([block for block in blocks_of(ROOT / name) if block.language == "python"], place)


PREPARED_BY = {"docs/extend/index.md": ["docs/extend/attack.md", "docs/extend/model.md", "docs/extend/dataset.md"]}
"""The pages whose Python a page relies on."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", pages_with("python", "console", "toml"))
def test_pages_work_from_top_to_bottom(page: Path, place: Path) -> None:
    for name in PREPARED_BY.get(str(page.relative_to(ROOT)), []):
        is_python = (
            block.language == "python" or block.text.startswith("$ python ") for block in blocks_of(ROOT / name)
        )
        run_blocks([block for block, chosen in zip(blocks_of(ROOT / name), is_python, strict=True) if chosen], place)
    run_blocks(blocks_of(page), place)


def run_blocks(blocks: list[Block], place: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        if block.file is not None:
            (place / block.file).write_text(block.tiny, encoding="utf-8")
            if block.language == "toml":
                call(["robustcaps", "check", block.file, *plugins(place)])
        elif block.is_only_parsed or block.language in ("bash", "json", "text", "toml"):
            continue
        elif block.language == "python":
            exec(compile(block.tiny, f"<{block.first_line}>", "exec"), namespace)  # noqa: S102
        else:
            for words in Block(block.language, block.tiny).commands:
                call(words)


def plugins(place: Path) -> list[str]:
    """Return the options that load what the page has defined so far."""
    files = [path for path in sorted(place.glob("*.py")) if re.search(r"^@?rc\.\w+\(", path.read_text(), re.MULTILINE)]
    return [word for path in files for word in ("--plugin", path.name)]


def call(words: list[str]) -> None:
    """Carry out a command of a page; those that set up an environment are left to others."""
    if words[0] == "python":
        source = str(Path(robustcaps.__file__).parent.parent)
        env = {**os.environ, "PYTHONPATH": source}
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
    elif words[0] == "robustcaps":
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, f"{shlex.join(words)}: {result.output} {result.exception!r}"
    else:
        assert words[0] in ("pip", "make", "git", "cd") or shutil.which(words[0]), words
