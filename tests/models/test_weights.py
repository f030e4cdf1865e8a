from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from robustcaps.errors import UserError
from robustcaps.models import zoo
from robustcaps.models.cards import ModelCard, read_card, read_tensors, tensors_digest, weights_digest, write_weights
from robustcaps.models.zoo import build_model, load_model, shipped_cards
from robustcaps.registry import MODELS
from tests import tiny

SHAPE = {"classes": 3, "channels": 1, "size": 8}


@pytest.fixture(autouse=True)
def _tiny_models(monkeypatch):
    MODELS.names()
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))
    MODELS.add("tiny", tiny.tiny)
    MODELS.add("other", tiny.looker)


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """An empty folder of shipped weights."""
    monkeypatch.setattr(zoo, "WEIGHTS", tmp_path)
    return tmp_path


def put(path: Path, *, seed: int = 0, half: bool = True, **changes: Any) -> ModelCard:
    """Write weights and a card as `train` does."""
    path.parent.mkdir(exist_ok=True, parents=True)
    model = build_model("tiny", seed=seed, **SHAPE)
    write_weights(path, model, half=half)
    model.load_state_dict(read_tensors(path))
    fields: dict[str, Any] = {
        "model": "tiny",
        "options": {"width": 4, "fault": ""},
        "tag": "a",
        "seed": seed,
        "data": "bars",
        "data_digest": "0",
        "limit": None,
        "holdout": 1,
        **SHAPE,
        "class_names": ("x", "y", "z"),
        "half": half,
        "epochs": 1,
        "batch_size": 1,
        "lr": 1.0,
        "warmup_steps": 0,
        "final_lr": 0.1,
        "clip": None,
        "weight_decay": 0.0,
        "parameters": 1,
        "accuracy": 0.9,
        "n_test": 10,
        "interval": (0.6, 1.0),
        "seconds": 1.0,
        "validation_accuracy": None,
        "validation": "",
        "command": "",
        "versions": {},
        "machine": "",
        "digest": tensors_digest(model.state_dict()),
        "date": dt.date(2024, 1, 1),
    }
    card = ModelCard(**{**fields, **changes})
    path.with_suffix(".json").write_text(card.model_dump_json())
    return card


def test_initial_weights_depend_on_the_seed_alone():
    before = torch.get_rng_state()
    first = build_model("tiny", **SHAPE)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    assert weights_digest(build_model("tiny", **SHAPE)) == weights_digest(first)
    assert weights_digest(build_model("tiny", seed=1, **SHAPE)) != weights_digest(first)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("tinny", {}, "unknown model 'tinny'. Did you mean 'tiny'?"),
        ("tiny", {"widht": 1}, "model 'tiny': unknown option 'widht'. Did you mean 'width'?"),
        ("tiny", {"width": "wide"}, "model 'tiny': width: .*valid integer.*'wide'"),
    ],
)
def test_unknown_names_and_options_are_named(name, options, problem):
    with pytest.raises(UserError, match=problem):
        build_model(name, **SHAPE, **options)


@pytest.mark.parametrize("half", [True, False])
def test_weights_come_back_as_they_were_written(tmp_path, half):
    path = tmp_path / "mine.safetensors"
    card = put(path, seed=5, half=half)
    model = load_model("tiny", weights=str(path), device="cpu")
    for name, tensor in build_model("tiny", seed=5, **SHAPE).state_dict().items():
        expected = tensor.half().to(tensor.dtype) if half and tensor.is_floating_point() else tensor
        assert torch.equal(model.state_dict()[name], expected)
        assert model.state_dict()[name].dtype == tensor.dtype
    assert tensors_digest(model.state_dict()) == card.digest
    stored = {tensor.dtype for tensor in read_tensors(path).values()}
    assert stored == {torch.float16 if half else torch.float32, torch.int64}


def test_a_number_too_large_for_half_precision_keeps_its_own(tmp_path):
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, 1e5)
    write_weights(tmp_path / "file", model, half=True)
    tensors = read_tensors(tmp_path / "file")
    assert torch.equal(tensors["weight"], model.weight)
    assert tensors["bias"].dtype == torch.float16


def test_a_loaded_model_is_frozen_and_still_gives_gradients_of_images(tmp_path):
    put(tmp_path / "mine.safetensors")
    model = load_model("tiny:a", weights=tmp_path / "mine.safetensors", device="cpu")
    images = torch.rand(2, 1, 8, 8, requires_grad=True)
    model(images).sum().backward()
    assert images.grad is not None
    assert bool(images.grad.any())
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_options_given_when_loading_win_over_those_of_the_training(tmp_path):
    put(tmp_path / "mine.safetensors")
    plain, changed = (
        load_model("tiny", weights=tmp_path / "mine.safetensors", device="cpu", **options)
        for options in ({}, {"fault": "collapse"})
    )
    assert tensors_digest(plain.state_dict()) == tensors_digest(changed.state_dict())
    assert weights_digest(plain) != weights_digest(changed)  # a buffer that is derived from the option
    assert changed(torch.rand(9, 1, 8, 8)).argmax(1).tolist() == [1] * 9


def test_a_card_from_before_there_were_adversaries_tells_of_ordinary_training(tmp_path):
    path = tmp_path / "mine.json"
    card = put(path.with_suffix(".safetensors"))
    older = card.model_dump_json(exclude={"adversary_eps", "adversary_steps", "robust_accuracy"})
    assert "adversary" not in older
    path.write_text(older)
    assert read_card(path) == card
    assert (card.adversary_eps, card.adversary_steps, card.robust_accuracy) == (None, None, None)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def rewrite(**changes: torch.Tensor | None) -> Callable[[Path], None]:
    """Return a function that replaces tensors of a file, or drops them."""

    def change(path: Path) -> None:
        tensors = {**read_tensors(path), **{name.replace("__", "."): tensor for name, tensor in changes.items()}}
        path.write_bytes(
            safetensors.torch.save({name: tensor for name, tensor in tensors.items() if tensor is not None})
        )

    return change


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: path.unlink(), "cannot read the weights: No such file"),
    "empty": (lambda path: path.write_bytes(b""), "not a complete safetensors file"),
    "text": (lambda path: path.write_text("weights, honestly"), "not a complete safetensors file"),
    "truncated": (truncate, "not a complete safetensors file"),
    "no card": (
        lambda path: path.with_suffix(".json").unlink(),
        r"mine\.json: no such file; weights of the zoo need their model card beside them",
    ),
    "broken card": (lambda path: path.with_suffix(".json").write_text("{"), r"mine\.json: invalid model card"),
    "poor card": (
        lambda path: path.with_suffix(".json").write_text("{}"),
        r"mine\.json: invalid model card: model: ",
    ),
    "other card": (
        lambda path: put(path, model="other"),
        "weights of a different model: 'other:a' according to its card, not 'tiny'",
    ),
    "lacking": (rewrite(layers__0__bias=None), r"different model: the file is missing 'layers\.0\.bias'\."),
    "more": (
        rewrite(layers__0__bias=None, extra=torch.ones(1), third=torch.ones(1)),
        r"the file is missing 'layers\.0\.bias' and unexpectedly has 'extra' and 1 more\.",
    ),
    "shape": (rewrite(layers__0__bias=torch.ones(9)), r"'layers\.0\.bias' is \(9,\) in the file, \(4,\) in the model"),
    "not finite": (rewrite(layers__0__bias=torch.full((4,), torch.nan)), r"'layers\.0\.bias' contains NaN"),
    "changed": (rewrite(layers__0__bias=torch.ones(4)), "the weights do not match their card"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path, case):
    damage, problem = BAD_FILES[case]
    path = tmp_path / "mine.safetensors"
    put(path)
    damage(path)
    with pytest.raises(UserError, match=problem) as caught:
        load_model("tiny", weights=path, device="cpu")
    assert str(path.with_suffix("")) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_that_change_the_architecture_do_not_fit(tmp_path):
    put(tmp_path / "mine.safetensors")
    with pytest.raises(
        UserError, match=r"mine\.safetensors: weights of a different model: 'layers\.0\.weight' is \(4, 1, 3, 3\)"
    ):
        load_model("tiny", weights=tmp_path / "mine.safetensors", width=5)


class Trap:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


def test_nothing_is_unpickled(tmp_path):
    path = tmp_path / "mine.safetensors"
    put(path)
    path.write_bytes(pickle.dumps(Trap(tmp_path / "trace")))
    with pytest.raises(UserError, match="not a complete safetensors file"):
        load_model("tiny", weights=path)
    assert not (tmp_path / "trace").exists()


def test_shipped_weights_are_found_by_data_model_and_tag(shelf):
    expected = {
        ("tiny", "bars"): put(shelf / "bars" / "tiny-a.safetensors", seed=1),
        ("tiny:b", "bars"): put(shelf / "bars" / "tiny-b.safetensors", seed=2, tag="b"),
        ("tiny", "plain"): put(shelf / "plain" / "tiny-c.safetensors", seed=3, tag="c", data="plain"),
    }
    for (name, data), card in expected.items():
        assert tensors_digest(load_model(name, data=data, device="cpu").state_dict()) == card.digest
    assert shipped_cards() == list(expected.values())


@pytest.mark.parametrize(("name", "data"), [("tiny:z", "bars"), ("tiny", "plain"), ("other", "bars")])
def test_what_is_not_shipped_is_said_with_what_is(shelf, name, data):
    put(shelf / "bars" / "tiny-a.safetensors")
    model = name.split(":")[0]
    with pytest.raises(UserError) as caught:
        load_model(name, data=data)
    assert f"model '{name}' on data '{data}'; shipped: tiny:a (bars)." in str(caught.value)
    assert f"robustcaps train {model} --data {data}" in str(caught.value)


def test_an_unknown_model_is_not_looked_for_among_the_weights():
    with pytest.raises(UserError, match=r"unknown model 'tinny'\. Did you mean 'tiny'\?"):
        load_model("tinny")


def test_an_empty_shelf_ships_nothing(shelf):
    assert shipped_cards() == []
    with pytest.raises(UserError, match="shipped: none"):
        load_model("tiny", data=shelf.name)


def module(**tensors: torch.Tensor) -> nn.Module:
    made = nn.Module()
    for name, tensor in tensors.items():
        made.register_buffer(name, tensor)
    return made


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.zeros(2, 3), "y": torch.ones(())},
        {"x": torch.zeros(2, 3), "z": torch.zeros(())},
        {"x": torch.zeros(3, 2), "y": torch.zeros(())},
        {"x": torch.zeros(2, 3).int(), "y": torch.zeros(())},
        {"x": torch.zeros(2, 3)},
        {"x": torch.zeros(2, 3), "y": torch.zeros(()), "z": torch.zeros(0)},
        {"x": torch.zeros(2, 3).bfloat16(), "y": torch.zeros(())},
    ],
)
def test_the_digest_sees_names_shapes_dtypes_and_bytes(other):
    base = {"x": torch.zeros(2, 3), "y": torch.zeros(())}
    assert weights_digest(module(**base)) != weights_digest(module(**other))


def test_the_digest_does_not_see_order_layout_or_mode():
    x, y = torch.rand(2, 3), torch.rand(4)
    expected = weights_digest(module(x=x, y=y))
    assert weights_digest(module(y=y, x=x.T.contiguous().T).train()) == expected
    assert weights_digest(module(y=y, x=x).eval()) == expected


@pytest.mark.parametrize("card", shipped_cards(), ids=lambda card: f"{card.data}-{card.stem}")
def test_every_shipped_file_fits_its_card(card):
    model = load_model(card.name, data=card.data, device="cpu")
    assert tensors_digest(model.state_dict()) == card.digest
    assert sum(parameter.numel() for parameter in model.parameters()) == card.parameters
    assert card.interval[0] <= card.accuracy <= card.interval[1]
