from __future__ import annotations

import copy
import functools
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import robustcaps as rc
from robustcaps.attacks.model_snapshot import ModelSnapshot
from robustcaps.capsules import layers
from robustcaps.errors import UserError
from robustcaps.models.base import CapsuleClassifier, Classifier
from robustcaps.models.matrix_capsnet import MatrixCapsNet
from robustcaps.models.precision import TRAINING_METHODS, Precision
from robustcaps.suite.cell import Cell
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import load_suite
from tests import tiny
from tests.conftest import Cli

ZOO = ["cnn", "cnn-small", "vector-capsnet", "vector-capsnet-small", "matrix-capsnet", "matrix-capsnet-small"]
COMPILED, AUTOCAST = Precision(compile=True), Precision(autocast=True)
STUBBORN = '''
import robustcaps as rc
from torch import nn


class Stubborn(nn.Flatten):
    def forward(self, images):
        return super().forward(images) * (2 if images.sum() > 0 else 3)


@rc.model("stubborn", pretrained=True)
def stubborn(*, classes, channels, size):
    """Asks its images what to do: not one graph."""
    return nn.Sequential(Stubborn(), nn.Linear(channels * size * size, classes))
'''


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are captured whole as ever, and then run as they are."""
    torch.compiler.reset()
    monkeypatch.setenv("CXX", sys.executable)  # no C++ compiler is asked for anything
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


def build_small(name: str) -> Classifier:
    options: dict[str, Any] = {"filters": 4, "types": (2, 3, 2)} if name.startswith("matrix") else {}
    model = rc.build_model(name, classes=3, channels=1, size=24, **options)
    assert isinstance(model, Classifier)
    if isinstance(model, MatrixCapsNet):
        model.initialise(images_of(8))
    return model.eval()


def images_of(n: int, size: int = 24) -> Tensor:
    return torch.rand(n, 1, size, size, generator=torch.Generator().manual_seed(n))


def gradient(model: nn.Module, images: Tensor) -> Tensor:
    images = images.clone().requires_grad_()
    (found,) = torch.autograd.grad(model(images).logsumexp(1).sum(), images)
    return found


def test_a_model_is_left_as_it_is_unless_asked():
    model = build_small("cnn-small")
    kind = type(model)
    assert Precision().apply(model, name="cnn-small") is model
    assert type(model) is kind
    assert Precision().enabled == {}


@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn-small", "vector-capsnet-small", "matrix-capsnet-small"])
def test_all_that_attacks_ask_for_is_compiled_for_any_batch(name: str):
    model, expected = build_small(name), build_small(name)
    COMPILED.apply(model, name=name)
    assert isinstance(model, CapsuleClassifier) == isinstance(expected, CapsuleClassifier)
    for n in (9, 4, 1):
        images, labels = images_of(n), torch.arange(n) % 3
        close = functools.partial(torch.testing.assert_close, rtol=1e-3, atol=1e-5)
        close(model(images), expected(images))
        close(model.classify(images).scores, expected.classify(images).scores)
        close(gradient(model, images), gradient(expected, images))
        close(model.training_loss(images, labels), expected.training_loss(images, labels))
        if isinstance(model, CapsuleClassifier) and isinstance(expected, CapsuleClassifier):
            close(model.votes(images), expected.votes(images))


@pytest.mark.usefixtures("quick_compiler")
def test_more_models_of_a_class_than_pytorch_likes_are_compiled():
    for classes in range(2, 12):
        model = COMPILED.apply(nn.Sequential(nn.Flatten(), nn.Linear(24 * 24, classes)), name="linear")
        assert model(images_of(3)).shape == (3, classes)


@pytest.mark.usefixtures("quick_compiler")
def test_evaluation_guards_and_counts_as_ever():
    model, data = build_small("cnn-small"), (images_of(17), torch.arange(17) % 3)
    attack = rc.load_attack("bim", eps=[0.05], steps=3)
    expected = rc.evaluate(model, data, attack, batch_size=8)
    found = rc.evaluate(COMPILED.apply(model, name="cnn-small"), data, attack, batch_size=8)
    assert found.drop(columns=["linf", "l2"]).equals(expected.drop(columns=["linf", "l2"]))
    assert set(found["violation"]) == {""}


def test_a_guard_finds_and_mends_a_prepared_model():
    model, images = build_small("cnn-small"), images_of(4)
    AUTOCAST.apply(model, name="cnn-small")
    expected = model(images)
    snapshot = ModelSnapshot.take(model)
    model.forward = lambda images: torch.zeros(len(images), 3)
    assert snapshot.restore() == "changed-structure"
    assert torch.equal(model(images), expected)


@pytest.mark.parametrize("precision", [COMPILED, AUTOCAST])
def test_a_model_keeps_its_class(precision: Precision):
    model = build_small("vector-capsnet-small")
    kind = type(model)
    precision.apply(model, name="vector-capsnet-small")
    assert type(model) is kind


def test_scores_are_computed_like_the_logits():
    model, images = build_small("vector-capsnet-small"), images_of(4)
    expected = model.scores(images)
    AUTOCAST.apply(model, name="vector-capsnet-small")
    assert torch.equal(model.scores(images), model.classify(images).scores)
    assert not torch.equal(model.scores(images), expected)


def test_a_copy_of_a_prepared_model_is_a_model_of_its_own():
    model, images = build_small("cnn-small"), images_of(4)
    AUTOCAST.apply(model, name="cnn-small")
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.data.zero_()
    assert twin(images).abs().max() == 0
    assert model(images).abs().max() > 0


@pytest.mark.parametrize("name", ZOO)
def test_autocast_is_near_float32_and_routing_never_leaves_it(name: str, monkeypatch: pytest.MonkeyPatch):
    seen: list[torch.dtype] = []
    for routing in ("em_routing", "dynamic_routing"):
        original = getattr(layers, routing)

        def watched(*tensors: Any, original: Any = original, **options: Any) -> Any:
            seen.extend(x.dtype for x in tensors if isinstance(x, Tensor))
            assert not torch.is_autocast_enabled("cpu")
            return original(*tensors, **options)

        monkeypatch.setattr(layers, routing, watched)
    model, expected, images = build_small(name), build_small(name), images_of(4)
    AUTOCAST.apply(model, name=name)
    logits, grad = model(images), gradient(model, images)
    assert logits.dtype == grad.dtype == torch.float32
    assert model.scores(images).dtype == model.training_loss(images, torch.arange(4) % 3).dtype == torch.float32
    assert set(seen) == (set() if name.startswith("cnn") else {torch.float32})
    assert not torch.equal(logits, expected(images))
    torch.testing.assert_close(logits, expected(images), rtol=0.05, atol=0.05)
    cosine = torch.cosine_similarity(grad.flatten(), gradient(expected, images).flatten(), dim=0)
    assert cosine > 0.98


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiler")
def test_autocast_can_be_compiled():
    model, expected, images = build_small("matrix-capsnet-small"), build_small("matrix-capsnet-small"), images_of(4)
    Precision(compile=True, autocast=True).apply(model, name="matrix-capsnet-small")
    AUTOCAST.apply(expected, name="matrix-capsnet-small")
    torch.testing.assert_close(model(images), expected(images), rtol=1e-3, atol=1e-4)


def cells(suite: Path, plugin: Path, precision: Precision) -> list[Cell]:
    return make_plan(load_suite(suite), Resolver(RuntimeConfig(plugins=(plugin,), precision=precision)), source="suite")


@pytest.mark.usefixtures("registries", "quick_compiler")
def test_cells_of_another_execution_are_other_cells(suite: Path, plugin: Path):
    plain = cells(suite, plugin, Precision())
    assert all("precision" not in cell.settings for cell in plain)
    ids = {cell.id for cell in plain}
    for precision in (COMPILED, AUTOCAST, Precision(compile=True, autocast=True)):
        other = {cell.id for cell in cells(suite, plugin, precision)}
        assert len(other) == len(plain)
        assert not other & ids
        ids |= other


@pytest.mark.usefixtures("quick_compiler")
def test_a_model_that_does_not_compile_is_named():
    class Asking(nn.Flatten):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) * (2 if images.sum() > 0 else 3)

    model = COMPILED.apply(Asking(), name="asking")
    with pytest.raises(UserError, match="--compile: model 'asking' cannot be compiled into one graph: ") as error:
        model(images_of(2))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("switch", ["--compile", "--autocast"])
@pytest.mark.usefixtures("registries", "quick_compiler")
def test_training_takes_the_switches(switch: str, tmp_path: Path):
    tiny.register()
    compiled = switch == "--compile"
    plain = rc.train("tiny", data="bars", out=tmp_path / "plain", epochs=3)
    card = rc.train("tiny", data="bars", out=tmp_path / "switched", epochs=3, compile=compiled, autocast=not compiled)
    assert card.command == f"{plain.command} {switch}"
    assert card.accuracy == pytest.approx(plain.accuracy, abs=0.15)
    assert (card.digest == plain.digest) == compiled  # captured and run as it is, it rounds alike


def test_training_leaves_the_forward_pass_alone():
    model, images = build_small("cnn-small"), images_of(4)
    expected = model(images)
    AUTOCAST.apply(model, name="cnn-small", methods=TRAINING_METHODS)
    assert torch.equal(model(images), expected)


@pytest.mark.slow
def test_the_command_names_a_model_that_does_not_compile(cli: Cli, plugin: Path, tmp_path: Path):
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(STUBBORN)
    result = cli("attack", "stubborn", "fgsm", "--data", "dots", "--compile", "--plugin", plugin, "--plugin", stubborn)
    assert result.returncode == 2
    assert "model 'stubborn' cannot be compiled into one graph" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler, g++")
def test_the_command_compiles_to_machine_code(cli: Cli, plugin: Path):
    words = ("attack", "levels", "bim", "--data", "dots", "--limit", "40", "--batch-size", "16", "--plugin", plugin)
    plain, compiled = cli(*words), cli(*words, "--compile")
    assert compiled.returncode == 0, compiled.stderr
    assert compiled.stdout == plain.stdout


@pytest.mark.usefixtures("registries")
def test_without_a_compiler_nothing_is_begun(suite: Path, plugin: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="no 'no-such-compiler'"):
        cells(suite, plugin, COMPILED)
    with pytest.raises(UserError, match="no 'no-such-compiler'"):
        rc.train("cnn-small", out=tmp_path / "out", compile=True, device="cpu")
    assert not (tmp_path / "out").exists()
    COMPILED.check(torch.device("cuda"))
