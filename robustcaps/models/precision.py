"""Compiled and mixed-precision (bfloat16) execution of models."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustcaps.errors import UserError
from robustcaps.models.base import Classifier, ClassifierOutput

ATTACK_METHODS = ("forward", "classify", "votes", "training_loss")
"""Methods of a zoo model that attacks call."""
TRAINING_METHODS = ("training_loss",)
"""Methods that training calls; accuracies are measured in float32, without compilation."""

MAX_COMPILED_VARIANTS = 256
"""Compiled variants kept per method: one for each model of a class, with and without gradients."""

Method = Callable[..., Any]


@dataclass(frozen=True)
class Precision:
    """Execution switches that change rounding, and therefore belong to the settings of a result."""

    compile: bool = False
    autocast: bool = False

    @property
    def enabled(self) -> dict[str, bool]:
        """The switches that are on."""
        return {name: on for name, on in asdict(self).items() if on}

    def check(self, device: torch.device) -> None:
        """Raise `UserError` if compiling for a CPU without the C++ compiler that PyTorch needs."""
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
        if self.compile and device.type == "cpu" and shutil.which(compiler) is None:
            raise UserError(f"--compile: needs a C++ compiler on a CPU, but there is no '{compiler}' (set CXX).")

    def apply(self, model: nn.Module, *, name: str, methods: tuple[str, ...] = ATTACK_METHODS) -> nn.Module:
        """Make a model's methods (of a plain module: `forward`) run compiled or in bfloat16; return the same model.

        The methods are overridden on the instance, so that its class and `isinstance` checks stay the same. They are
        bound methods, which `copy.deepcopy` binds to the copy.
        """
        if not self.enabled:
            return model
        for method in methods if isinstance(model, Classifier) else ("forward",):
            original = getattr(type(model), method, None)
            if original is not None:
                setattr(model, method, types.MethodType(self._transform(original, name), model))
        return model

    def warm_up(self, model: nn.Module, images: Tensor, *, name: str) -> None:
        """Compile a model's forward and backward pass now, if enabled; raise `UserError` if that is impossible."""
        if self.compile:
            with torch.enable_grad(), _rename_compile_errors(name):
                images = images.detach().clone().requires_grad_()
                torch.autograd.grad(model(images).sum(), images)

    def _transform(self, method: Method, name: str) -> Method:
        method = _autocast_method(method) if self.autocast else method
        return _compile_method(method, name) if self.compile else method


def _autocast_method(method: Method) -> Method:
    """Run a method under bfloat16 autocast (convolutions, matrix products); its results are float32."""

    @functools.wraps(method)
    def run(model: nn.Module, images: Tensor, *args: Any, **options: Any) -> Any:
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            return _to_float32(method(model, images, *args, **options))

    return run


def _to_float32(result: Any) -> Any:
    if isinstance(result, ClassifierOutput):
        return ClassifierOutput(_to_float32(result.logits), _to_float32(result.scores), _to_float32(result.poses))
    return result.float() if isinstance(result, Tensor) else result


def _compile_method(method: Method, name: str) -> Method:
    """Compile a method at its first call, for any batch size; nested compiled methods become part of one graph."""
    from torch._dynamo import config  # noqa: PLC0415  takes a second to import

    compiled = torch.compile(method, fullgraph=True, dynamic=True)

    @functools.wraps(method)
    def run(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(*args, **options)
        with _rename_compile_errors(name), config.patch(cache_size_limit=MAX_COMPILED_VARIANTS):
            return compiled(*args, **options)

    return run


@contextmanager
def _rename_compile_errors(model_name: str) -> Iterator[None]:
    """Turn compilation errors into a one-line `UserError` that names the model."""
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415

    try:
        yield
    except TorchDynamoException as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"--compile: model '{model_name}' cannot be compiled into one graph: {reason}") from error
