from __future__ import annotations

import json

import pytest

from robustcaps.errors import UserError
from robustcaps.execution.runner import run
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import load_suite
from robustcaps.suite.train_models import data_to_train_on

HEAD = '[[data]]\nuse = "dots"\n[[models]]\nuse = "levels"\n'
GOOD = HEAD + '[[attacks]]\nuse = "fgsm"\neps = [0.1]\n'
ASKING = HEAD + "[[diagnostics]]\n"

MISTAKES = {
    "malformed": ("[[data]\n", "x.toml: not valid TOML: "),
    "unknown key": (GOOD + "[[atacks]]\n", "x.toml: unknown key 'atacks'. Did you mean 'attacks'?"),
    "no attacks": (HEAD, "x.toml: a suite needs attacks or diagnostics"),
    "empty attacks": ("attacks = []\n" + HEAD, "x.toml: a suite needs attacks or diagnostics"),
    "negative eps": (
        GOOD.replace("[0.1]", "[0.1, -0.2]"),
        "x.toml: attacks[0].eps[1]: must not be negative (given: -0.2)",
    ),
    "eps a word": (
        GOOD.replace("[0.1]", '"large"'),
        "x.toml: attacks[0].eps[0]: must be a finite number (given: 'large')",
    ),
    "eps nan": (GOOD.replace("[0.1]", "nan"), "must be a finite number (given: nan)"),
    "eps empty": (GOOD.replace("[0.1]", "[]"), "x.toml: attacks[0].eps: list should have at least 1 item"),
    "eps missing": (GOOD.replace("eps = [0.1]", ""), "x.toml: attacks[0]: eps: missing"),
    "unknown attack": (
        GOOD.replace("fgsm", "fgms"),
        "x.toml: attacks[0].use: unknown attack 'fgms'. Did you mean 'fgsm'?",
    ),
    "unknown model": (
        GOOD.replace("levels", "level"),
        "x.toml: models[0].use: unknown model 'level'. Did you mean 'levels'?",
    ),
    "unknown data": (GOOD.replace("dots", "dotz"), "x.toml: data[0].use: unknown dataset 'dotz'. Did you mean 'dots'?"),
    "unknown attack option": (
        GOOD + "los = 'ce'\n",
        "x.toml: attacks[0]: attack 'fgsm': unknown option 'los'. Did you mean 'loss'?",
    ),
    "unknown model option": (
        GOOD.replace('"levels"', '"levels"\nsharpnes = 2.0'),
        "x.toml: models[0]: model 'levels': unknown option 'sharpnes'. Did you mean 'sharpness'?",
    ),
    "unknown data option": (
        GOOD.replace('"dots"', '"dots"\nclases = 2'),
        "x.toml: data[0]: dataset 'dots': unknown option 'clases'. Did you mean 'classes'?",
    ),
    "unknown class": (
        GOOD + 'goal = "targeted"\ntarget = "level9"\n',
        "x.toml: attacks[0]: target: unknown class 'level9'. Did you mean 'level2'?",
    ),
    "weights missing": (
        GOOD.replace('use = "levels"', 'use = "cnn"\nweights = "none.safetensors"'),
        "none.safetensors: cannot be read: No such file",
    ),
    "reserved model option": (
        GOOD.replace('"levels"', '"levels"\nclasses = 3'),
        "x.toml: models[0]: model 'levels': 'classes' is no option",
    ),
    "reserved data option": (
        GOOD.replace('"dots"', '"dots"\ndata_dir = "here"'),
        "x.toml: data[0]: dataset 'dots': 'data_dir' is no option",
    ),
    "same name": (
        GOOD + '[[attacks]]\nuse = "fgsm"\neps = [0.1]\nloss = "margin"\n',
        "x.toml: two different cells are called 'levels / dots / fgsm'; give one attack or model a name",
    ),
    "factory fails": (
        GOOD.replace('"levels"', '"levels"\nsharpness = 0').replace('"fgsm"', '"fgsm"'),
        "x.toml: models[0]: model 'levels' cannot be made: ZeroDivisionError",
    ),
    "unknown diagnostic": (
        ASKING + 'use = "verdct"\n',
        "x.toml: diagnostics[0]: unknown diagnostic 'verdct'. Did you mean 'verdict'?",
    ),
    "unknown diagnostic option": (
        ASKING + "stps = 3\n",
        "x.toml: diagnostics[0]: diagnostic 'verdict': unknown option 'stps'. Did you mean 'steps'?",
    ),
    "unknown option of a check": (
        ASKING + 'use = "loss-surface"\nlest = 0.1\n',
        "x.toml: diagnostics[0]: diagnostic 'loss-surface': unknown option 'lest'. Did you mean 'least'?",
    ),
    "unknown loss": (ASKING + "loss = 'cee'\n", "x.toml: diagnostics[0]: diagnostic 'verdict': loss: input should be"),
    "diagnosis without a ball": (ASKING + "eps = 0\n", "x.toml: diagnostics[0].eps[0]: input should be greater than 0"),
    "diagnosis of no model": (
        ASKING + "models = ['cnn']\n",
        "x.toml: diagnostics[0]: models: there is no 'cnn' in this suite",
    ),
    "model for no data": (
        GOOD.replace('"levels"', '"levels"\ndata = ["dotz"]'),
        "x.toml: models[0]: data: there is no 'dotz' in this suite. Did you mean 'dots'?",
    ),
    "attack on no data": (
        GOOD + "data = ['dots', 'toys']\n",
        "x.toml: attacks[0]: data: there is no 'toys' in this suite. Choose from: dots.",
    ),
    "diagnosis on no data": (
        ASKING + "data = ['dot']\n",
        "x.toml: diagnostics[0]: data: there is no 'dot' in this suite. Did you mean 'dots'?",
    ),
    "model for nothing": (
        GOOD.replace('"levels"', '"levels"\ndata = []'),
        "x.toml: models[0].data: list should have at least 1 item",
    ),
    "unknown option beside missing data": (
        GOOD.replace('"dots"', '"mnist"') + "los = 'ce'\n",
        "x.toml: attacks[0]: attack 'fgsm': unknown option 'los'. Did you mean 'loss'?",
    ),
    "unknown check": (ASKING + 'checks = ["reech"]\n', "unknown diagnostic 'reech'. Did you mean 'reach'?"),
    "same question": (
        ASKING + "[[diagnostics]]\nsteps = 3\n",
        "x.toml: two different cells are called 'levels / dots / verdict eps 0.1'; give one diagnostic or model a name",
    ),
    "limit": (GOOD.replace('"dots"', '"dots"\nlimit = 0'), "x.toml: data[0].limit: input should be greater than"),
}


@pytest.fixture
def resolver(plugin, registries):
    return Resolver(RuntimeConfig(plugins=(plugin,)))


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_with_file_and_place(tmp_path, resolver, text, message):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        make_plan(load_suite(path), resolver, source="x.toml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_suite_unfolds_into_cells(suite, resolver):
    cells = make_plan(load_suite(suite), resolver, source="tiny.toml")
    assert [(cell.model.label, cell.attack.label, cell.seed) for cell in cells] == [
        (model, attack, seed)
        for model in ("levels", "blunt")
        for attack, seed in [("clean", 0), ("fgsm", 0), ("pgd", 0), ("pgd", 1), ("fgsm to every class", 0)]
    ]
    assert [cell.rows for cell in cells[:5]] == [30, 120, 120, 120, 270]
    assert len({cell.id for cell in cells}) == len(cells)


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
    assert ids(text.replace("eps = [0.0, 0.02, 0.05, 0.1]", "eps = [0.1, 0.02, 0.0, 0.05]\nloss = 'ce'")) == first
    changed = ids(text.replace("steps = 3", "steps = 4"))
    assert [new == old for new, old in zip(changed, first, strict=True)] == [True, True, False, False, True] * 2
    sharper = ids(text.replace("sharpness = 10.0", "sharpness = 11.0"))
    assert [new == old for new, old in zip(sharper, first, strict=True)] == [True] * 5 + [False] * 5


TWO_SETS = """
[[data]]
use = "dots"
name = "many"

[[data]]
use = "dots"
name = "few"
limit = 6

[[models]]
use = "levels"

[[models]]
use = "levels"
name = "blunt"
sharpness = 10.0
data = ["few"]

[[attacks]]
use = "fgsm"
eps = [0.1]

[[attacks]]
use = "bim"
eps = [0.1]
data = ["few"]
models = ["blunt"]

[[diagnostics]]
use = "gradients"
data = ["many"]
"""


def test_models_attacks_and_diagnostics_are_for_the_data_they_name(tmp_path, resolver):
    path = tmp_path / "two.toml"
    path.write_text(TWO_SETS)
    cells = make_plan(load_suite(path), resolver, source="two.toml")
    assert [cell.label for cell in cells] == [
        "levels / many / fgsm",
        "levels / many / gradients",
        "levels / few / fgsm",
        "blunt / few / fgsm",
        "blunt / few / bim",
    ]


def test_the_record_of_a_run_has_models_only_with_the_data_they_are_for(tmp_path):
    path = tmp_path / "x.toml"
    sets = "".join(f'[[data]]\nuse = "toys"\nname = "{name}"\nlimit = 2\n' for name in ("one", "other"))
    path.write_text(sets + '[[models]]\nuse = "cnn-small"\ndata = ["other"]\n[[attacks]]\nuse = "clean"\n')
    made = run(path, tmp_path / "out", device="cpu")
    record = json.loads((made.out / "run.json").read_text())
    assert [(model["label"], model["data"]) for model in record["models"]] == [("cnn-small", "other")]
    assert [cell["names"]["data"] for cell in record["cells"]] == ["other"]


def test_a_model_is_trained_on_the_data_it_is_for(tmp_path):
    path = tmp_path / "x.toml"
    text = '[[data]]\nuse = "toys"\n[[data]]\nuse = "mnist"\n[[attacks]]\nuse = "clean"\n'
    text += '[[models]]\nuse = "cnn"\ntrain = {}\n[[models]]\nuse = "cnn"\ntrain = {}\ndata = ["mnist"]\n'
    path.write_text(text)
    suite = load_suite(path)
    with pytest.raises(UserError, match=r"has one dataset: say which, e.g. data = \['toys'\]"):
        data_to_train_on(suite.models[0], suite)
    assert data_to_train_on(suite.models[1], suite).use == "mnist"


@pytest.mark.parametrize(("attack", "searches"), [("bim", 3), ("minimal", 1), ("deepfool", 1)])
def test_an_attack_that_minimises_is_one_search_for_all_budgets(tmp_path, resolver, attack, searches):
    path = tmp_path / "x.toml"
    path.write_text(HEAD + f'[[attacks]]\nuse = "{attack}"\neps = [0.1, 0.2, 0.3]\n')
    suite = load_suite(path)
    (cell,) = make_plan(suite, resolver, source="x.toml")
    assert cell.work == searches * 60 * resolver.attack(suite.attacks[0]).passes
