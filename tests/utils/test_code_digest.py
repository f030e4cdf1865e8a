"""Digests of code: what computes a result counts, in every module that is imported; how it is written does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from robustcaps.utils.code_digest import PACKAGE, REGISTRY, Root, code_digest, own_root, reachable_files

PACKAGE_FILES = {
    "pkg/__init__.py": "",
    "pkg/main.py": '''"""The start."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import numpy as np

from pkg.steps import step
from . import tools
from .deep.base import Base

if TYPE_CHECKING:
    from pkg.types_only import Shape

LATER = "pkg.lazy:load"


def run(x: float) -> float:
    """Run."""
    from pkg import inner  # imported when called

    return step(x) + tools.one() + inner.TWO
''',
    "pkg/steps.py": "def step(x):\n    return x / 2\n",
    "pkg/tools.py": "import pkg.far\n\n\ndef one():\n    return 1\n",
    "pkg/far.py": "FAR = 1\n",
    "pkg/inner.py": "TWO = 2\n",
    "pkg/lazy.py": "def load():\n    return 3\n",
    "pkg/deep/__init__.py": "",
    "pkg/deep/base.py": "from ..upper import UP\n\n\nclass Base:\n    value = UP\n",
    "pkg/upper.py": "UP = 1\n",
    "pkg/types_only.py": "class Shape: ...\n",
    "pkg/unrelated.py": "X = 1\n",
}
USED = ("main", "steps", "tools", "far", "inner", "lazy", "deep/base", "upper")


def write(folder: Path, **changed: str) -> Path:
    """Write the package, with some modules changed, and return its folder."""
    for name, text in (PACKAGE_FILES | {f"pkg/{key}.py": value for key, value in changed.items()}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def digest(folder: Path) -> str:
    return code_digest([folder / "pkg" / "main.py"], roots=[Root(folder)])


def test_all_that_is_imported_is_found_and_nothing_else(tmp_path):
    folder = write(tmp_path)
    found = reachable_files([folder / "pkg" / "main.py"], (Root(folder),))
    names = {path.relative_to(folder.resolve()).as_posix() for path in found}
    assert {f"pkg/{name}.py" for name in USED} <= names
    assert not {"pkg/types_only.py", "pkg/unrelated.py"} & names


@pytest.mark.parametrize("module", USED)
def test_a_changed_module_is_another_digest(tmp_path, module):
    before = digest(write(tmp_path / "before"))
    changed = PACKAGE_FILES[f"pkg/{module}.py"] + "\nADDED = 1\n"
    assert digest(write(tmp_path / "after", **{module: changed})) != before


@pytest.mark.parametrize("module", ["types_only", "unrelated"])
def test_what_is_never_executed_does_not_count(tmp_path, module):
    before = digest(write(tmp_path / "before"))
    assert digest(write(tmp_path / "after", **{module: "X = 2\n"})) == before


WRITTEN_OTHERWISE = {
    "a comment": "# first\ndef step(x):  # half\n    return x / 2\n",
    "docstrings": '"""Steps."""\n\n\ndef step(x):\n    """Return half."""\n    return x / 2\n',
    "formatting": "def step(\n  x\n):\n\n  return (x/2)\n",
    "the encoding's mark": "\ufeffdef step(x):\n    return x / 2\n",
}


@pytest.mark.parametrize("text", WRITTEN_OTHERWISE.values(), ids=WRITTEN_OTHERWISE)
def test_comments_docstrings_and_formatting_do_not_count(tmp_path, text):
    assert digest(write(tmp_path / "after", steps=text)) == digest(write(tmp_path / "before"))


def test_strings_that_are_values_count(tmp_path):
    text = "def step(x):\n    return {'a': x}['%s']\n"
    one, other = (digest(write(tmp_path / key, steps=text % key)) for key in "ab")
    assert one != other


def test_the_place_of_the_code_does_not_count_but_its_names_do(tmp_path):
    assert digest(write(tmp_path / "here")) == digest(write(tmp_path / "there" / "below"))
    moved = write(tmp_path / "moved", main=PACKAGE_FILES["pkg/main.py"].replace("pkg.steps", "pkg.strides"))
    (moved / "pkg" / "steps.py").rename(moved / "pkg" / "strides.py")
    assert digest(moved) != digest(write(tmp_path / "before"))


def test_modules_that_import_each_other_are_each_read_once(tmp_path):
    (tmp_path / "one.py").write_text("import two\n")
    (tmp_path / "two.py").write_text("import one\n")
    found = reachable_files([tmp_path / "one.py"], (Root(tmp_path),))
    assert {path.name for path in found} == {"one.py", "two.py"}


def test_an_edited_module_of_this_package_is_another_digest(tmp_path):
    """A copy of the package that stands for another version of it."""
    digests = []
    for name, text in (("a", "EXTRA = 1\n"), ("b", "EXTRA = 2\n"), ("c", "EXTRA = 1  # one\n")):
        copy = tmp_path / name / "robustcaps" / "utils"
        copy.mkdir(parents=True)
        (copy / "statistics.py").write_text((PACKAGE / "utils" / "statistics.py").read_text() + text)
        (copy / "user.py").write_text("from robustcaps.utils.statistics import wilson\n")
        digests.append(code_digest([copy / "user.py"], roots=[Root(tmp_path / name)]))
    assert digests[0] != digests[1] and digests[0] == digests[2]


def test_the_registry_counts_and_is_not_followed_further():
    assert reachable_files([REGISTRY], (own_root(),)) == {REGISTRY.resolve()}
    for name in ("robustcaps.attacks.catalogue", "robustcaps.attacks.base"):
        start = own_root().module_file(name)
        assert start is not None
        assert REGISTRY.resolve() in reachable_files([start], (own_root(),))


def test_a_module_is_a_file_or_a_package(tmp_path):
    folder = write(tmp_path)
    assert Root(folder).module_file("pkg.steps") == folder / "pkg" / "steps.py"
    assert Root(folder).module_file("pkg.deep") == folder / "pkg" / "deep" / "__init__.py"
    assert Root(folder).module_file("pkg.steps.step") is None


def test_a_file_edited_in_the_same_process_is_another_digest(tmp_path):
    before = digest(write(tmp_path))
    assert digest(write(tmp_path, steps="def step(x):\n    return x / 4\n")) != before


BRANCHES = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import pkg.types_only
else:
    import pkg.upper
"""


def test_what_a_type_checker_does_not_see_counts(tmp_path):
    found = reachable_files([write(tmp_path, main=BRANCHES) / "pkg" / "main.py"], (Root(tmp_path),))
    assert {path.name for path in found} == {"main.py", "upper.py"}


def test_libraries_beside_this_package_are_not_followed(tmp_path, monkeypatch):
    digests = []
    for name in "ab":
        folder = write(tmp_path / name, main=f"VERSION = {name!r}\n")
        (folder / "robustcaps").mkdir()
        (start := folder / "robustcaps" / "own.py").write_text("import pkg.main\n")
        monkeypatch.setattr("robustcaps.utils.code_digest.PACKAGE", folder / "robustcaps")
        digests.append(code_digest([start]))
    assert digests[0] == digests[1]
