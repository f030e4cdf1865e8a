"""Ids of cells: they change with everything that decides the rows, the code included, and with nothing else."""

from __future__ import annotations

import importlib.metadata
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch

import robustcaps as rc
from robustcaps.registry import ATTACKS, DATASETS, MODELS
from robustcaps.suite import cell_id
from robustcaps.suite.cell_id import external_code, package_code, settings_id
from robustcaps.suite.plan import EVALUATION, make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import Suite, load_suite
from robustcaps.utils.code_digest import PACKAGE, own_root, reachable_files
from tests.conftest import PLUGIN


@pytest.fixture
def resolver(plugin, registries):
    return Resolver(RuntimeConfig(plugins=(plugin,)))


def test_an_id_is_the_same_for_the_same_settings_in_any_order():
    assert settings_id({"a": 1, "b": {"c": [2], "d": 3}}) == settings_id({"b": {"d": 3, "c": [2]}, "a": 1})
    assert settings_id({"a": 1}) != settings_id({"a": 2}) != settings_id({"b": 2})
    assert len(settings_id({})) == 20


def test_ids_change_with_what_rows_rest_on_and_not_with_names(tmp_path, suite, plugin, resolver):
    def ids(text: str) -> list[str]:
        path = tmp_path / "again.toml"
        path.write_text(text)
        return [cell.id for cell in make_plan(load_suite(path), resolver, source="again.toml")]

    text = suite.read_text()
    first = ids(text)
    assert ids(text) == first
    assert ids(text.replace('name = "blunt"', 'name = "dull"').replace("seeds", "batch_size = 7\nseeds")) == first
    assert not set(ids(text.replace("limit = 30", "limit = 31"))) & set(first)
    assert ids(text.replace("eps = [0.0, 0.02, 0.05, 0.1]", "eps = [0.1, 0.02, 0.0, 0.05]\nloss = 'log-odds'")) == first
    changed = ids(text.replace("steps = 3", "steps = 4"))
    assert [new == old for new, old in zip(changed, first, strict=True)] == [True, True, False, False, True] * 2
    sharper = ids(text.replace("sharpness = 10.0", "sharpness = 11.0"))
    assert [new == old for new, old in zip(sharper, first, strict=True)] == [True] * 5 + [False] * 5


MINE = """
import robustcaps as rc
from helper import step


@rc.attack("mine")
def mine(model, images, labels, eps):
    return (images - step(eps)).clamp(0, 1)
"""
HELPER = '''"""Helps."""

from deeper import HALF


def step(eps):
    """Return the step."""
    return eps * HALF
'''
FILES = {"base.py": PLUGIN, "mine.py": MINE, "helper.py": HELPER, "deeper.py": "HALF = 0.5\n", "other.py": "X = 1\n"}


@contextmanager
def registered_from(folder: Path, files: dict[str, str]) -> Iterator[Resolver]:
    """A resolver with the plugins of a folder; what they register and import is forgotten afterwards."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        for kind in (ATTACKS, DATASETS, MODELS):
            kind.names()
            patch.setattr(kind, "_entries", dict(kind._entries))
        patch.syspath_prepend(folder)
        yield Resolver(RuntimeConfig(plugins=(folder / "base.py", folder / "mine.py"), device="cpu"))
        for name in ("helper", "deeper"):
            sys.modules.pop(name, None)


def ids_of(folder: Path, **changed: str) -> dict[str, str]:
    """The ids of cells by their attacks, with some of the plugin's files changed."""
    files = FILES | {f"{name.removesuffix('.py')}.py": text for name, text in changed.items()}
    attacks = [{"use": name, "eps": [0.1]} for name in ("mine", "fgsm")]
    content = {"data": [{"use": "dots", "limit": 6}], "models": [{"use": "levels"}], "attacks": attacks}
    suite = Suite.model_validate({"name": "s", **content})
    with registered_from(folder, files) as resolver:
        return {cell.names["attack"]: cell.id for cell in make_plan(suite, resolver, source="s")}


CODE = {
    "the attack itself": {"mine": MINE.replace("images - step", "images + step")},
    "a function that it imports from its folder": {"helper": HELPER.replace("eps * HALF", "eps * HALF * HALF")},
    "a constant that its helper imports": {"deeper": "HALF = 0.25\n"},
}


@pytest.mark.parametrize("changed", CODE.values(), ids=CODE)
def test_changed_code_of_a_plugin_is_another_cell(tmp_path, changed):
    before, after = ids_of(tmp_path / "before"), ids_of(tmp_path / "after", **changed)
    assert before["mine"] != after["mine"]
    assert before["fgsm"] == after["fgsm"]


WAYS = {
    "a module named in a string": "import importlib\nstep = importlib.import_module('helper').step\n",
    "a file named in a string": (
        "import runpy, pathlib\nstep = runpy.run_path(str(pathlib.Path(__file__).parent / 'helper.py'))['step']\n"
    ),
    "a folder added to sys.path": (
        "import pathlib, sys\nsys.path.insert(0, str(pathlib.Path(__file__).parent / 'lib'))\nfrom inlib import step\n"
    ),
    "the package above a module": "from pack.part import step\n",
    "a module beside a package": "from pack.beside import step\n",
}
FOLDERS = {
    "lib/inlib.py": HELPER,
    "pack/__init__.py": "import deeper\nHALF = deeper.HALF\n",
    "pack/part.py": "import sys\n\n\ndef step(eps):\n    return eps * sys.modules['pack'].HALF\n",
    "pack/beside.py": "import deeper\n\n\ndef step(eps):\n    return eps * deeper.HALF\n",
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_helper_counts_in_whatever_way_a_plugin_imports_it(tmp_path, way, monkeypatch):
    for name in ("inlib", "pack", "pack.part", "pack.beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    ids = []
    for half in ("0.5", "0.25"):
        mine = MINE.replace("from helper import step\n", way)
        ids.append(ids_of(tmp_path / half, mine=mine, deeper=f"HALF = {half}\n", **FOLDERS))
        for name in ("inlib", "pack", "pack.part", "pack.beside"):
            sys.modules.pop(name, None)
    assert ids[0]["mine"] != ids[1]["mine"] and ids[0]["fgsm"] == ids[1]["fgsm"]


MADE = """
import robustcaps as rc
from helper import make

rc.attack("mine")(make(0.5))
"""
MAKES = """
def make(share):
    def attack(model, images, labels, eps):
        return (images - share * eps).clamp(0, 1)
    return attack
"""


def test_the_file_that_registers_what_a_helper_makes_counts(tmp_path):
    before = ids_of(tmp_path / "before", mine=MADE, helper=MAKES)
    assert before["mine"] != ids_of(tmp_path / "after", mine=MADE.replace("0.5", "5"), helper=MAKES)["mine"]


def test_the_versions_of_the_packages_that_a_plugin_imports_count(tmp_path, monkeypatch):
    versions = {"foolbox": "1.0"}
    known = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or known(name))
    monkeypatch.setattr(cell_id, "_distributions", lambda: {"foolbox": ["foolbox"], "torch": ["torch"]})
    mine = MINE + "\n\ndef later():\n    import foolbox\n    import torch\n"
    before = ids_of(tmp_path / "before", mine=mine)
    versions["torch"] = "0.0"
    assert ids_of(tmp_path / "torch", mine=mine) == before, "run.json has its version"
    versions["foolbox"] = "1.1"
    after = ids_of(tmp_path / "after", mine=mine)
    assert after["mine"] != before["mine"] and after["fgsm"] == before["fgsm"]


def test_a_helper_that_changes_while_python_runs_is_imported_again(tmp_path):
    """Its cells get another id: they must not be computed by the old code."""
    with registered_from(tmp_path / "plugin", FILES):
        images = torch.ones(1, 1, 1, 1)
        for half in (0.5, 0.25):  # of the same size, within the same second
            (tmp_path / "plugin" / "deeper.py").write_text(f"HALF = {half:.2f}\n")
            rc.load_plugin(tmp_path / "plugin" / "mine.py")
            moved = sys.modules[ATTACKS.entry("mine").source].mine(None, images, None, 1.0)
            assert moved.item() == 1 - half


NOT_CODE = {
    "nothing, in another folder": {},
    "comments": {"helper": HELPER.replace("    return", "    # half of it\n    return"), "mine": MINE + "# done\n"},
    "docstrings": {
        "helper": HELPER.replace("Helps.", "Does nothing else.").replace('    """Return the step."""\n', "")
    },
    "formatting": {"helper": HELPER.replace("eps * HALF", "(\n        eps*HALF\n    )"), "deeper": "HALF=0.5"},
    "what it does not import": {"other": "X = 2\n"},
}


@pytest.mark.parametrize("changed", NOT_CODE.values(), ids=NOT_CODE)
def test_what_is_no_code_of_a_plugin_changes_no_id(tmp_path, changed):
    assert ids_of(tmp_path / "before") == ids_of(tmp_path / "after", **changed)


def test_changed_code_of_a_model_is_another_cell_even_with_the_same_weights(tmp_path):
    before = ids_of(tmp_path / "before")
    after = ids_of(tmp_path / "after", base=PLUGIN.replace("-0.5 * sharpness", "-sharpness / 2"))
    assert not set(before.values()) & set(after.values())


def test_our_own_code_is_no_external_code_and_libraries_are_their_version():
    assert external_code(ATTACKS, "fgsm") == {} == external_code(MODELS, "cnn:b")
    pytest.importorskip("foolbox")
    assert set(external_code(ATTACKS, ATTACKS.names("foolbox.*")[0])) == {"library"}


@pytest.mark.usefixtures("registries")
def test_what_a_notebook_registers_is_known_by_its_source(monkeypatch):
    notebook = ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", notebook)
    notebook.__dict__["rc"] = rc
    codes = []
    for number, factor in enumerate((1, 2, 1)):
        text = f"@rc.attack('mine')\ndef mine(model, images, labels, eps):\n    return images * {factor}\n"
        name = f"<cell {number}>"
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
        exec(compile(text, name, "exec"), notebook.__dict__)  # noqa: S102
        codes.append(external_code(ATTACKS, "mine")["code"])
    assert codes[0] != codes[1] and codes[0] == codes[2]


def files_of_a_cell(attack: str, model: str = "cnn-small", data: str = "toys") -> set[str]:
    """The modules of this package that the id of a cell depends on."""
    entries = (ATTACKS.entry(attack), MODELS.entry(model), DATASETS.entry(data))
    files = [own_root().module_file(name) for name in (*EVALUATION, *(entry.source for entry in entries))]
    assert None not in files
    found = reachable_files([file for file in files if file is not None], (own_root(),))
    return {file.relative_to(PACKAGE).as_posix() for file in found}


def test_an_fgsm_cell_depends_on_what_computes_its_rows_and_not_on_other_attacks():
    files = files_of_a_cell("fgsm")
    own = {"attacks/gradient_based/iterative.py", "attacks/evaluation.py", "attacks/guard.py", "attacks/losses.py"}
    assert own | {"models/cnn.py", "data/toys/render.py", "utils/sample_random.py", "registry.py"} <= files
    others = ("black_box/", "minimum_norm/", "composite/", "capsule_specific/", "adapters/", "gradient_based/apgd.py")
    assert not [file for file in files if file.startswith(tuple(f"attacks/{other}" for other in others))]
    unrelated = ("analysis/", "cli/", "diagnostics/", "introspection/", "execution/", "training/", "models/matrix")
    assert not [file for file in files if file.startswith(unrelated)]
    assert "attacks/black_box/square.py" in files_of_a_cell("square")


def test_a_capsule_cell_depends_on_routing_and_its_kernels():
    kernels = {f"capsules/{name}.py" for name in ("layers", "routing/em", "kernels/cpu/em", "kernels/cuda/em")}
    assert kernels <= files_of_a_cell("fgsm", "matrix-capsnet-small")
    assert not kernels & files_of_a_cell("fgsm")


def test_the_code_of_a_cell_depends_on_its_parts():
    digests = {
        package_code(EVALUATION, [(MODELS, model), (DATASETS, "toys"), (ATTACKS, attack)])
        for model in ("cnn", "matrix-capsnet")
        for attack in ("fgsm", "square")
    }
    assert len(digests) == 4
    variants = [package_code(EVALUATION, [(MODELS, name)]) for name in ("cnn", "cnn:b", "cnn-small")]
    assert len(set(variants)) == 1  # of one module


def test_a_class_without_a_file_changes_its_cells_when_its_code_does(registries, monkeypatch):
    """As in a notebook, where no source can be found."""
    codes = []
    for body in ("images + 1", "images + 2"):
        names: dict[str, object] = {"__name__": "nowhere", "rc": rc}
        exec(  # noqa: S102
            f"class Cheat(rc.Attack):\n    def run(self, model, images, goal, budget, draws):\n        return {body}",
            names,
        )
        ATTACKS.add("cheat", names["Cheat"], source="nowhere")
        codes.append(external_code(ATTACKS, "cheat"))
    assert codes[0] != codes[1]
