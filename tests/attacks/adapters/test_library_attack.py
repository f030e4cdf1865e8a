"""Every attack of torchattacks and foolbox, as one table: valid, counted, seeded, and nothing else is touched."""

from __future__ import annotations

import importlib.util
import inspect
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import robustcaps as rc
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.data.base import Data
from robustcaps.errors import UserError
from robustcaps.options import options_schema
from robustcaps.registry import ATTACKS, Registry
from robustcaps.utils.sample_random import Draws

torchattacks = pytest.importorskip("torchattacks")
foolbox = pytest.importorskip("foolbox")

from foolbox.attacks import brendel_bethge  # noqa: E402

from robustcaps.attacks.adapters import foolbox_attacks, torchattacks_attacks  # noqa: E402

LIBRARIES = {"torchattacks": torchattacks_attacks, "foolbox": foolbox_attacks}
ALL = {f"{prefix}.{name}": spec for prefix, module in LIBRARIES.items() for name, spec in module.ATTACK_SPECS.items()}
EPS = {"linf": 0.4, "l2": 4.0, "l1": 16.0}
ANYWHERE = {"linf": 1.0, "l2": 8.0, "l1": 64.0, "l0": 64}
TARGET = 4

FEW = {
    "steps": 6,
    "max_iterations": 30,
    "num_iter_set": 4,
    "nb_iter": 3,
    "nb_sample": 16,
    "n_queries": 100,
    "restarts": 3,
    "repeats": 30,
    "directions": 30,
    "binary_search_steps": 4,
    "alpha": 0.1,
    "initial_gradient_eval_steps": 10,
    "max_gradient_eval_steps": 20,
    "rel_stepsize": 0.3,
    "initial_const": 10.0,
}
"""What an option is set to where an attack has it, so that all are quick and most succeed."""
OWN = {
    "torchattacks.pgdl2": {"alpha": 2.0},
    "torchattacks.pgdrsl2": {"alpha": 2.0},
    "torchattacks.ffgsm": {"alpha": 0.5},
    "torchattacks.cw": {"c": 10.0, "steps": 30, "lr": 0.2},
    "torchattacks.onepixel": {"pixels": 5},
    "torchattacks.tifgsm": {"len_kernel": 3},
    "foolbox.l2_carlini_wagner": {"steps": 30, "stepsize": 0.1},
    "foolbox.ead": {"steps": 30, "initial_stepsize": 0.1},
    "foolbox.ddn": {"steps": 20},
    "foolbox.l0_fmn": {"steps": 30},
    "foolbox.salt_and_pepper_noise": {"steps": 60},
    "foolbox.pointwise": {"l2_binary_search": False},
    **{name: {"steps": 1} for name in ALL if "brendel_bethge" in name},
}
MAY_FAIL = {
    "foolbox.virtual_adversarial",
    "foolbox.genattack",
    "foolbox.l1_adam_pgd",
    "foolbox.sparse_l1_descent",
    "torchattacks.jsma",
    "torchattacks.onepixel",
    "torchattacks.spsa",
}
"""Weak ones, and all that add noise."""
ASK_NOTHING = {"foolbox.inversion", "foolbox.l2_contrast_reduction"} | {
    name
    for name in ALL
    if name.endswith("noise") and "repeats" not in inspect.signature(ALL[name].attack_class).parameters
} - {"foolbox.salt_and_pepper_noise", "foolbox.linear_search_blended_uniform_noise"}
"""Attacks that do not query the model."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Threads only wait for each other on images as small as these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def _uncompiled_optimisers():
    """Brendel and Bethge's optimisers in plain Python: foolbox compiles each for minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numba", None)
        patch.setitem(sys.modules, "numba.experimental", None)
        spec = importlib.util.spec_from_file_location("foolbox.attacks.uncompiled", brendel_bethge.__file__)
        plain = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(plain)
    with pytest.MonkeyPatch.context() as patch:
        for norm, short in {"L0": "L0", "L1": "L1", "L2": "L2", "Linfinity": "Linf"}.items():
            attack, make = getattr(brendel_bethge, f"{norm}BrendelBethgeAttack"), getattr(plain, f"{short}Optimizer")
            patch.setattr(attack, "instantiate_optimizer", lambda _, make=make: make())
        yield


@pytest.fixture(scope="module")
def prototypes():
    """Five classes of 8x8 images, with pixels at 0 and 1, and the model that picks the nearest prototype."""
    generator = torch.Generator().manual_seed(0)
    centres = (torch.rand(5, 1, 8, 8, generator=generator) * 1.4 - 0.2).clamp(0, 1)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 5)).eval()
    with torch.no_grad():
        model[2].weight.copy_(2 * centres.flatten(1))
        model[2].bias.copy_(-centres.flatten(1).square().sum(1))
    noise = 0.1 * torch.rand(4, 1, 8, 8, generator=generator) - 0.05
    images = (centres[:4] + noise).clamp(0, 1)
    return model, Data(images, torch.arange(4), tuple("abcde"), name="prototypes")


def load(name, norm, goal="untargeted", eps=None):
    fields = options_schema(ATTACKS.entry(name).factory).model_fields
    options = {option: value for option, value in FEW.items() if option in fields} | OWN.get(name, {})
    goal_options = {"goal": goal, "target": TARGET if goal == "targeted" else None}
    radius = (ANYWHERE if ALL[name].minimises else EPS)[norm or own_norm(name)]
    return rc.load_attack(name, eps=radius if eps is None else eps, norm=norm, **goal_options, **options)


def goal_of(attack, data):
    targets = torch.full_like(data.labels, TARGET)
    return rc.Targeted(targets) if attack.goal_spec.goal == "targeted" else rc.Untargeted(data.labels)


def own_norm(name):
    return ALL[name].norms[0] if ALL[name].norms[0] in ("l1", "l0") else ALL[name].norms[-1]


def is_dear(name):
    return any(word in name for word in ("brendel", "pointwise", "autoattack"))


def cases():
    for name, spec in ALL.items():
        shared = spec.minimises and name not in ("torchattacks.fab", "foolbox.hop_skip_jump")
        for norm in [own_norm(name)] if shared else spec.norms:
            for goal in spec.goals[:1] if is_dear(name) else spec.goals:
                yield name, norm, "targeted" if goal is rc.Targeted else "untargeted"


@pytest.mark.parametrize(("name", "norm", "goal"), list(cases()))
@pytest.mark.filterwarnings("ignore")
def test_attacks_propose_valid_images_and_leave_the_rest_alone(prototypes, name, norm, goal):
    model, data = prototypes
    attack, counts = load(name, norm, goal), Counts.zeros(len(data))
    goal = goal_of(attack, data)
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    (batch,) = attack.sweep(CountedModel(model, counts), data.images, goal, attack.budgets)
    assert batch.violations == [None] * len(data)
    assert torch.equal(torch.get_rng_state(), generators[0]) and random.getstate() == generators[1]
    assert (np.random.get_state()[1] == generators[2]).all()  # noqa: NPY002
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert (counts.forwards.min() > 0) == (name not in ASK_NOTHING)
    fooled = goal.reached(model(batch.images).argmax(1))
    assert fooled.any() or name in MAY_FAIL or "noise" in name
    assert (batch.images != data.images).any() or name in MAY_FAIL or "noise" in name


@pytest.mark.parametrize("name", [name for name in ALL if not is_dear(name)])
@pytest.mark.filterwarnings("ignore")
def test_a_seed_gives_the_same_images_again_and_another_seed_others_if_randomised(prototypes, name):
    model, data = prototypes
    attack = load(name, own_norm(name), "targeted" if rc.Untargeted not in ALL[name].goals else "untargeted")
    goal, images, indices = goal_of(attack, data).select(torch.arange(2)), data.images[:2], torch.arange(2)
    first, again, *other = (
        next(attack.sweep(model, images, goal, attack.budgets, Draws(seed, indices))).images
        for seed in ((0, 0, 1) if attack.randomised else (0, 1))
    )
    assert torch.equal(first, again)
    found = not torch.equal(first, images) and name not in MAY_FAIL
    assert not found or not any(torch.equal(first, image) for image in other)


def test_every_exported_attack_is_adapted_or_left_out_with_a_reason():
    classes = [spec.attack_class for spec in torchattacks_attacks.ATTACK_SPECS.values()]
    assert len(set(classes)) == len(classes)
    bases = {base for each in classes for base in each.__mro__}
    left_out = {name for name in torchattacks.__all__ if getattr(torchattacks, name) not in bases}
    assert {name.lower() for name in left_out} == torchattacks_attacks.EXCLUDED.keys()
    exported = {kind for kind in vars(foolbox.attacks).values() if inspect.isclass(kind)} - {foolbox.attacks.Attack}
    classes = [spec.attack_class for spec in foolbox_attacks.ATTACK_SPECS.values()]
    assert len(set(classes)) == len(classes) and set(classes) <= exported
    assert len(exported - set(classes)) == len(foolbox_attacks.EXCLUDED)
    for prefix, module in LIBRARIES.items():
        for name, reason in module.EXCLUDED.items():
            with pytest.raises(UserError) as error:
                rc.load_attack(f"{prefix}.{name}", eps=0.1)
            assert str(error.value) == f"attack '{prefix}.{name}' is left out: {reason}"


def test_no_argument_the_harness_sets_is_an_option():
    ours = {"model", "eps", "norm", "seed", "targeted", "device", "n_classes", "verbose", "distance", "init_attack"}
    for name in ALL:
        fields = options_schema(ATTACKS.entry(name).factory).model_fields
        assert not ours & fields.keys()
        assert not any(field.is_required() for field in fields.values())


MISTAKES = [
    ("torchattacks.mifgms", {}, "Did you mean 'torchattacks.mifgsm'?"),
    ("torchattacks.pgd", {"steps": 0}, "steps: input should be greater than or equal to 1"),
    ("torchattacks.pgd", {"alpha": "big"}, "alpha: input should be a valid number"),
    ("torchattacks.pgd", {"seed": 3}, "unknown option 'seed'"),
    ("torchattacks.apgd", {"loss": "mse"}, "loss: input should be 'ce' or 'dlr'"),
    ("torchattacks.apgd", {"goal": "targeted"}, "'torchattacks.apgd' does not support targeted goals"),
    ("torchattacks.jsma", {"goal": "untargeted"}, "'torchattacks.jsma' does not support untargeted goals"),
    ("torchattacks.cw", {"norm": "linf"}, "'torchattacks.cw' supports l2 only, not 'linf'"),
    ("foolbox.linf_pgd", {"random_start": "often"}, "random_start: input should be a valid boolean"),
    ("foolbox.ead", {"decision_rule": "L2"}, "decision_rule: input should be 'EN'"),
]


@pytest.mark.parametrize(("name", "words", "message"), MISTAKES, ids=[message for *_, message in MISTAKES])
def test_mistakes_are_named(name, words, message):
    with pytest.raises(UserError) as error:
        rc.load_attack(name, eps=0.1, **words)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("ours", "theirs", "norm"),
    [
        (("fgsm", {}), ("torchattacks.fgsm", {}), "linf"),
        (("fgsm", {}), ("foolbox.linf_fast_gradient", {}), "linf"),
        (("fgsm", {}), ("foolbox.l2_fast_gradient", {}), "l2"),
        (
            ("bim", {"steps": 5, "step": 0.2, "early_stop": False}),
            ("foolbox.linf_basic_iterative", {"steps": 5}),
            "linf",
        ),
        (("bim", {"steps": 5, "step": 0.2, "early_stop": False}), ("foolbox.l2_basic_iterative", {"steps": 5}), "l2"),
    ],
)
def test_the_same_attack_finds_the_same_images_here_and_there(network, network_data, ours, theirs, norm):
    found = []
    for name, options in (ours, theirs):
        attack = rc.load_attack(name, eps=[0.02 * EPS[norm], 0.2 * EPS[norm]], norm=norm, **options)
        sweep = attack.sweep(network, network_data.images, rc.Untargeted(network_data.labels), attack.budgets)
        found.append(torch.stack([batch.images for batch in sweep]))
    assert torch.allclose(*found, atol=1e-5)


def test_each_sample_keeps_to_its_own_radius(prototypes):
    model, data = prototypes
    images = data.images.clone()
    images[0] = 0.5  # without contrast: its ball is a point
    for name in ("torchattacks.pgd", "foolbox.linf_pgd"):
        attack = rc.load_attack(name, eps=0.5, unit="std")
        rows = rc.evaluate(model, (images, model(images).argmax(1)), attack)
        radii = 0.5 * images.std((1, 2, 3), correction=0)
        assert rows["valid"].all()
        assert rows["linf"].to_numpy()[0] == 0 and (rows["linf"].to_numpy()[1:] > 0).all()
        assert (rows["linf"].to_numpy() <= radii.numpy() + 1e-6).all()


def test_a_minimal_attack_searches_once_for_all_budgets(prototypes):
    model, data = prototypes
    for name in ("torchattacks.deepfool", "foolbox.l2_deepfool"):
        one, many = (rc.evaluate(model, data, load(name, "l2", eps=eps)) for eps in ([1.0], [1.0, 2.0, 3.0]))
        assert one["backwards"].sum() == many["backwards"].sum() > 0


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        *((f"foolbox.{name}", "l1") for name in ("l1_pgd", "sparse_l1_descent", "l1_fmn", "ead")),
        *(("foolbox.l0_fmn", "l0"), ("torchattacks.eadl1", "l1"), ("torchattacks.sparsefool", "l0")),
    ],
)
def test_sparse_attacks_are_measured_in_their_own_norm(prototypes, name, norm):
    model, data = prototypes
    attack = load(name, None, eps=[4.0, 64.0])
    assert {budget.norm for budget in attack.budgets} == {norm} and attack.minimises_norm == ALL[name].minimises
    rows = rc.evaluate(model, data, attack)
    sizes = rows["size"]
    assert rows["valid"].all() and (sizes <= rows["eps"] * (1 + 1e-6) + 1e-4).all() and sizes.max() > 0
    assert set(rows["norm"]) == {norm} and set(rows["unit"]) == {"count" if norm == "l0" else "pixel"}
    if norm == "l0":
        assert (sizes == sizes.round()).all() and rows["fooled"].any()
    if ALL[name].minimises:
        assert not load(name, "l2").minimises_norm


def test_samples_without_a_start_do_not_stop_the_others():
    brightness = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).eval()
    with torch.no_grad():
        brightness[1].weight.copy_(torch.stack([torch.zeros(64), torch.ones(64)]))
        brightness[1].bias.copy_(torch.tensor([45.0, 0.0]))  # no noise is as bright as that
        images = torch.stack([torch.full((1, 8, 8), 0.2), torch.full((1, 8, 8), 0.9)])
    attack = rc.load_attack("foolbox.boundary", eps=10.0, norm="l2", steps=20)
    rows = rc.evaluate(brightness, (images, torch.tensor([0, 1])), attack)
    assert rows["fooled"].tolist() == [False, True] and rows["valid"].all()


def test_too_few_classes_or_too_many_channels_are_named(network, network_data):
    with pytest.raises(UserError, match="APGDT of torchattacks needs at least 4 classes, but the model has 3"):
        rc.evaluate(network, network_data, rc.load_attack("torchattacks.apgdt", eps=0.1))
    wide, images = nn.Sequential(nn.Flatten(), nn.Linear(4 * 16, 2)), torch.full((2, 4, 4, 4), 0.5)
    with pytest.raises(UserError, match="at most 3 channels, but the images have 4"):
        rc.evaluate(wide, (images, wide(images).argmax(1)), rc.load_attack("torchattacks.tifgsm", eps=0.1))


def test_weights_may_be_frozen_and_gradients_kept(prototypes):
    model, data = prototypes
    model[2].bias.requires_grad_(False)  # noqa: FBT003
    model[2].weight.grad = torch.ones_like(model[2].weight)
    try:
        assert rc.evaluate(model, data, load("torchattacks.cw", "l2"))["valid"].all()
        assert not model[2].bias.requires_grad and (model[2].weight.grad == 1).all()
    finally:
        model[2].bias.requires_grad_()
        model[2].weight.grad = None


LIST = """
import sys, robustcaps as rc
rc.load_attack("fgsm", eps=0.1)
assert "robustcaps.attacks.adapters" not in sys.modules
from robustcaps.cli.app import main
sys.argv = ["robustcaps", "list", "attacks"]
main()
"""


def test_without_the_libraries_the_rest_works_and_the_list_says_how_to_get_them(tmp_path):
    for name in LIBRARIES:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('none', name='{name}')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LIST]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=120)
    for name in LIBRARIES:
        assert f"{name}.* needs {name}: pip install 'robustcaps[attacks]'." in result.stdout
    assert "fgsm" in result.stdout and "foolbox.boundary" not in result.stdout


def test_libraries_are_imported_only_when_their_names_are_asked_for(monkeypatch):
    requested = []
    monkeypatch.setattr(ATTACKS, "_problem", requested.append)
    ATTACKS.names("fgsm*"), ATTACKS.entry("fgsm")
    assert requested == ["fgsm"]
    ATTACKS.names("torch*")
    assert requested == ["fgsm", "torchattacks"]


def test_a_missing_library_is_named_in_one_line(monkeypatch):
    registry = Registry("fruit", "robustcaps.errors")
    registry.provide("json", "json.decoder", extra="fruits")
    registry.provide("nothing_of_this_name", "nothing_of_this_name", extra="fruits")
    with pytest.raises(UserError) as error:
        registry.entry("nothing_of_this_name.kiwi")
    assert str(error.value) == (
        "fruit 'nothing_of_this_name.kiwi' needs nothing_of_this_name: pip install 'robustcaps[fruits]'."
    )
    assert registry.names() == []
    assert registry.missing() == [
        "nothing_of_this_name.* needs nothing_of_this_name: pip install 'robustcaps[fruits]'."
    ]
    registry.exclude("json.plum", "it is a prune.")
    with pytest.raises(UserError, match=r"^fruit 'json\.plum' is left out: it is a prune\.$"):
        registry.entry("json.plum")
    monkeypatch.setitem(sys.modules, "json.decoder", None)
    with pytest.raises(UserError, match=r"fruit 'json\.fig' needs json, which cannot be imported: "):
        registry.entry("json.fig")
