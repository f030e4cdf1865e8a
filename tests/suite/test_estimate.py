"""How long a suite takes: from passes that were timed."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from robustcaps.errors import UserError
from robustcaps.suite import estimate as estimates
from robustcaps.suite.estimate import Speed, Stopwatch, estimate, format_duration, measure_speed
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import load_suite
from tests import tiny

SECONDS = {
    0.0: "1 s",
    40.4: "40 s",
    89.4: "89 s",
    90: "2 min",
    720: "12 min",
    5399: "90 min",
    5400: "2 h",
    10800: "3 h",
}
SECONDS |= {47 * 3600: "47 h", 72 * 3600: "3 days"}


@pytest.mark.parametrize(("seconds", "words"), SECONDS.items())
def test_durations_are_said_as_people_do(seconds, words):
    assert format_duration(seconds) == words


@pytest.fixture
def resolver(plugin, registries):
    return Resolver(RuntimeConfig(plugins=(plugin,), device="cpu"))


@pytest.fixture
def steady(monkeypatch):
    """Every model takes a second for a pass and three for a gradient; those with three classes ten times as long."""

    def speed(model: nn.Module, images: torch.Tensor) -> Speed:
        factor = 10.0 if model(images).shape[1] > 2 else 1.0
        return Speed(factor, 3 * factor)

    monkeypatch.setattr(estimates, "measure_speed", speed)


def lines_of(tmp_path, text, resolver):
    path = tmp_path / "x.toml"
    path.write_text(text)
    suite = load_suite(path)
    return estimate(suite, make_plan(suite, resolver, source="x.toml"), resolver)


SETS = """
[[data]]
use = "dots"
name = "two"
classes = 2
limit = 10

[[data]]
use = "dots"
name = "three"
limit = 10

[[models]]
use = "levels"

[[models]]
use = "levels"
name = "blunt"
sharpness = 10.0
data = ["two"]
"""


@pytest.mark.usefixtures("steady")
def test_time_is_passes_times_their_duration(tmp_path, resolver):
    attack = '[[attacks]]\nuse = "noise"\ntries = 5\neps = [0.1, 0.2]\n'
    lines = lines_of(tmp_path, SETS + attack, resolver)
    assert [(line.model, line.data, line.work) for line in lines] == [
        ("levels", "two", 2 * 10 * 5),
        ("blunt", "two", 2 * 10 * 5),
        ("levels", "three", 2 * 10 * 5 * 10),
    ]
    assert all(line.training == 0 for line in lines)


@pytest.mark.usefixtures("steady")
def test_images_for_several_models_are_crafted_once_and_at_the_speed_of_the_surrogate(tmp_path, resolver):
    attack = '[[attacks]]\nuse = "transfer"\nsurrogate = "levels"\nattack = { use = "bim", steps = 4 }\neps = [0.1]\n'
    first, second, other = (line.work for line in lines_of(tmp_path, SETS + attack, resolver))
    assert (first, second, other) == (10 * (1 + 3 * 4) + 10, 10, 100 * (1 + 3 * 4) + 100)


@pytest.mark.usefixtures("steady", "registries")
@pytest.mark.parametrize(
    ("how", "gradients"),
    [
        ("limit = 20, epochs = 3", 20 * 3),
        ("limit = 20", 20 * tiny.RECIPE.epochs),
        ("limit = 20, epochs = 1, adversary_eps = 0.1, adversary_steps = 4", 20 * 5),
    ],
)
def test_training_is_its_gradients_too(tmp_path, how, gradients):
    tiny.register()
    text = f'[[data]]\nuse = "bars"\n[[models]]\nuse = "tiny"\ntrain = {{ {how} }}\n[[attacks]]\nuse = "clean"\n'
    (line,) = lines_of(tmp_path, text, Resolver(RuntimeConfig(device="cpu")))
    assert line.training == gradients * 30
    assert line.total == line.training + line.work


@pytest.mark.usefixtures("steady", "registries")
def test_a_training_without_a_limit_is_on_the_whole_train_split(tmp_path):
    tiny.register()
    resolver = Resolver(RuntimeConfig(device="cpu"))
    text = '[[data]]\nuse = "bars"\nlimit = 2\n[[models]]\nuse = "tiny"\ntrain = { epochs = 1 }\n'
    (line,) = lines_of(tmp_path, text + '[[attacks]]\nuse = "clean"\n', resolver)
    assert line.training == 30 * len(tiny.bars(split="train", limit=None, data_dir=None, progress=None))


def test_a_model_that_cannot_be_trained_is_named(tmp_path, resolver):
    text = '[[data]]\nuse = "dots"\n[[models]]\nuse = "levels"\ntrain = {}\n[[attacks]]\nuse = "clean"\n'
    with pytest.raises(UserError, match="model 'levels' cannot be trained"):
        lines_of(tmp_path, text, resolver)


def test_a_model_is_timed_and_left_as_it_was(network):
    network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    speed = measure_speed(network, torch.rand(4, 1, 8, 8))
    assert speed.forward > 0 and speed.gradient > 0
    assert network.training and all(part.training for part in network.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(weight.grad is None for weight in network.parameters())


class Hard(nn.Module):
    """Gives no gradients."""

    def forward(self, images):
        return (images.flatten(1)[:, :3] > 0.5).float()


def test_a_model_without_gradients_is_timed_all_the_same():
    speed = measure_speed(Hard(), torch.rand(4, 1, 8, 8))
    assert speed.per_pass >= speed.forward > 0


def test_a_model_that_fails_is_named(tmp_path, resolver, monkeypatch):
    def fail(model: nn.Module, images: torch.Tensor) -> Speed:
        raise RuntimeError("no luck\nat all")

    monkeypatch.setattr(estimates, "measure_speed", fail)
    suite = tmp_path / "x.toml"
    suite.write_text(SETS + '[[attacks]]\nuse = "clean"\n')
    loaded = load_suite(suite)
    with pytest.raises(UserError, match=r"model 'levels' fails on random images: RuntimeError: no luck$"):
        Stopwatch(resolver).speed(loaded.models[0], loaded.data[0])


def test_check_says_how_long_each_model_takes_and_all(cli, suite, plugin):
    result = cli("check", suite, "--plugin", plugin)
    assert result.returncode == 0, result.stderr
    assert re.search(
        r"^levels on dots: about \d+ s at most \(.* ms per image, .* with its gradient\)$", result.stdout, re.MULTILINE
    )
    assert re.search(r"passes at most: about \d+ s at most, on this machine \(\w+, \d+ threads?\)\.$", result.stdout)
