"""Plans: a suite expanded into cells, and mistakes that only show when its parts are built."""

from __future__ import annotations

import contextlib

import pytest
import torch

import robustcaps as rc
from robustcaps.errors import UserError
from robustcaps.models.cards import weights_digest
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import load_suite
from tests import tiny
from tests.suite.test_spec import ASKING, GOOD, HEAD

MISTAKES = {
    "a model twice": (
        GOOD.replace("[[attacks]]", '[[models]]\nuse = "levels"\n[[attacks]]'),
        "x.toml: 'levels / dots / fgsm' is listed twice; remove one of the two entries.",
    ),
    "an attack twice": (
        GOOD + '[[attacks]]\nuse = "fgsm"\neps = [0.1]\n',
        "x.toml: 'levels / dots / fgsm' is listed twice; remove one of the two entries.",
    ),
    "data twice": (
        GOOD.replace("[[models]]", '[[data]]\nuse = "dots"\n[[models]]'),
        "x.toml: 'levels / dots / fgsm' is listed twice; remove one of the two entries.",
    ),
    "an attack twice, once with its norm": (
        GOOD + '[[attacks]]\nuse = "fgsm"\neps = [0.1]\nnorm = "linf"\nunit = "pixel"\n',
        "x.toml: 'levels / dots / fgsm' is listed twice; remove one of the two entries.",
    ),
    "views of what cannot be drawn": (
        GOOD + '[[attacks]]\nuse = "viewpoint"\neps = [5]\n',
        "x.toml: attacks[1]: norm 'viewpoint': 'dots' cannot be drawn from other sides; 'toys' can.",
    ),
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
        "none.safetensors: cannot read the weights: No such file",
    ),
    "reserved model option": (
        GOOD.replace('"levels"', '"levels"\nclasses = 3'),
        "x.toml: models[0]: model 'levels': 'classes' is not an option",
    ),
    "reserved data option": (
        GOOD.replace('"dots"', '"dots"\ndata_dir = "here"'),
        "x.toml: data[0]: dataset 'dots': 'data_dir' is not an option",
    ),
    "same name": (
        GOOD + '[[attacks]]\nuse = "fgsm"\neps = [0.1]\nloss = "margin"\n',
        "x.toml: two different cells are called 'levels / dots / fgsm'; give one attack or model a name",
    ),
    "factory fails": (
        GOOD.replace('"levels"', '"levels"\nsharpness = 0').replace('"fgsm"', '"fgsm"'),
        "x.toml: models[0]: model 'levels' cannot be built: ZeroDivisionError",
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
    "unknown option beside missing data": (
        GOOD.replace('"dots"', '"mnist"') + "los = 'ce'\n",
        "x.toml: attacks[0]: attack 'fgsm': unknown option 'los'. Did you mean 'loss'?",
    ),
    "unknown check": (ASKING + 'checks = ["reech"]\n', "unknown diagnostic 'reech'. Did you mean 'reach'?"),
    "same question": (
        ASKING + "[[diagnostics]]\nsteps = 3\n",
        "x.toml: two different cells are called 'levels / dots / verdict eps 0.1'; give one diagnostic or model a name",
    ),
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
    assert [(cell.model.label, cell.task.attack.label, cell.task.seed) for cell in cells] == [
        (model, attack, seed)
        for model in ("levels", "blunt")
        for attack, seed in [("clean", 0), ("fgsm", 0), ("pgd", 0), ("pgd", 1), ("fgsm to every class", 0)]
    ]
    assert [cell.task.row_count for cell in cells[:5]] == [30, 120, 120, 120, 270]
    assert len({cell.id for cell in cells}) == len(cells)


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


@pytest.mark.parametrize(("attack", "searches"), [("bim", 3), ("minimal", 1), ("deepfool", 1)])
def test_an_attack_that_minimises_is_one_search_for_all_budgets(tmp_path, resolver, attack, searches):
    path = tmp_path / "x.toml"
    path.write_text(HEAD + f'[[attacks]]\nuse = "{attack}"\neps = [0.1, 0.2, 0.3]\n')
    suite = load_suite(path)
    (cell,) = make_plan(suite, resolver, source="x.toml")
    assert cell.work == searches * 60 * resolver.attack(suite.attacks[0]).passes


RANDOM = """
from torch import nn
import robustcaps as rc


@rc.model("random")
def random(*, classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))
"""


@pytest.fixture
def with_random(plugin, tmp_path, registries):
    """A resolver with a plugin's model that has no trained weights."""
    (second := tmp_path / "random_plugin.py").write_text(RANDOM)
    return Resolver(RuntimeConfig(plugins=(plugin, second), device="cpu"))


def plan(tmp_path, resolver, text):
    (path := tmp_path / "x.toml").write_text(text)
    return make_plan(load_suite(path), resolver, source="x.toml")


def test_a_model_without_trained_weights_is_refused(tmp_path, with_random):
    with pytest.raises(UserError) as error:
        plan(tmp_path, with_random, GOOD.replace('"levels"', '"random"'))
    assert str(error.value).startswith("x.toml: models[0]: model 'random' has no trained weights. ")
    ways = ("weights = FILE", "train = {...}", "@rc.model('random', pretrained=True)", "untrained = true")
    assert all(way in str(error.value) for way in ways)


def test_a_surrogate_without_trained_weights_is_refused(tmp_path, with_random):
    attack = '[[attacks]]\nuse = "transfer"\nsurrogate = "random"\nattack = "fgsm"\neps = [0.1]\n'
    with pytest.raises(UserError, match=r"attacks\[0\]: model 'random' has no trained weights"):
        plan(tmp_path, with_random, HEAD + attack)


@pytest.mark.parametrize("allowed", ['use = "random"\nuntrained = true', 'use = "levels"'])
def test_a_model_may_be_declared_untrained_or_pretrained(tmp_path, with_random, allowed):
    (cell,) = plan(tmp_path, with_random, GOOD.replace('use = "levels"', allowed))
    assert cell.task.row_count == 60


def test_a_built_in_model_is_random_only_where_the_suite_says_so(tmp_path, with_random):
    text = '[[data]]\nuse = "toys"\nlimit = 2\n[[models]]\nuse = "cnn-small"\n[[attacks]]\nuse = "clean"\n'
    digests = [
        plan(tmp_path, with_random, each)[0].settings["model"]["digest"]
        for each in (text, text.replace('"cnn-small"', '"cnn-small"\nuntrained = true'))
    ]
    assert digests[0] == weights_digest(rc.load_model("cnn-small", data="toys", device="cpu")) != digests[1]


def test_a_suite_may_skip_the_first_samples(tmp_path, resolver):
    kept = plan(tmp_path, resolver, GOOD)[0]
    skipping = plan(tmp_path, resolver, GOOD.replace('use = "dots"', 'use = "dots"\nskip = 2'))[0]
    assert skipping.id != kept.id
    whole, rest = (resolver.data(cell.data) for cell in (kept, skipping))
    assert resolver.count_samples(skipping.data) == len(rest)
    assert rest.images.equal(resolver.data(kept.data.model_copy(update={"limit": None})).images[2:][: len(rest)])
    assert len(whole) >= len(rest) > 0


def test_a_model_that_the_suite_trains_needs_no_weights(tmp_path, registries):
    tiny.register()
    text = '[[data]]\nuse = "bars"\n[[models]]\nuse = "tiny"\ntrain = { epochs = 1 }\n[[attacks]]\nuse = "clean"\n'
    (cell,) = plan(tmp_path, Resolver(RuntimeConfig(device="cpu")), text)
    assert cell.model.train is not None and cell.kind == "attack"


def test_diagnostics_have_a_cell_per_eps_if_their_kind_takes_any(tmp_path, resolver):
    text = ASKING + 'eps = [0.05, 0.1]\nlimit = 8\n[[diagnostics]]\nuse = "gradients"\n'
    cells = plan(tmp_path, resolver, text)
    verdicts = ["levels / dots / verdict eps 0.05", "levels / dots / verdict eps 0.1"]
    assert [cell.label for cell in cells] == [*verdicts, "levels / dots / gradients"]
    assert [cell.kind for cell in cells] == ["verdict", "verdict", "gradients"]
    assert [cell.task.eps for cell in cells] == [0.05, 0.1, None]
    assert all(cell.task.row_count is None and cell.task.time_limit is None for cell in cells)
    assert len({cell.id for cell in cells}) == 3


def test_surrogates_are_those_of_the_suite_or_of_the_zoo(tmp_path, resolver):
    head = '[[data]]\nuse = "toys"\nlimit = 2\n[[models]]\nuse = "cnn-small"\nname = "mine"\n'
    attack = '[[attacks]]\nuse = "transfer"\nname = "{0}"\nsurrogate = "{0}"\nattack = "fgsm"\neps = [0.1]\n'
    own, zoo = plan(tmp_path, resolver, head + attack.format("mine") + attack.format("cnn-small"))
    assert own.task.surrogates["mine"] == own.model
    assert zoo.task.surrogates["cnn-small"].name is None and zoo.task.surrogates["cnn-small"].use == "cnn-small"


def test_the_preparation_of_data_is_reported(tmp_path, registries):
    heard = []

    @rc.dataset("slow")
    def slow(*, split, limit, data_dir, progress):
        progress(1, 2)
        return rc.Data(torch.zeros(2, 1, 6, 6), torch.tensor([0, 1]), ("a", "b"), name="slow")

    text = '[[data]]\nuse = "slow"\n[[models]]\nuse = "cnn-small"\nuntrained = true\n[[attacks]]\nuse = "clean"\n'
    (path := tmp_path / "x.toml").write_text(text)
    with contextlib.suppress(UserError):  # the images are too small for the network
        make_plan(load_suite(path), Resolver(), source="x.toml", progress=lambda *step: heard.append(step))
    assert heard == [(1, 2)]
