"""How networks are computed: as they are written, compiled as a whole, or in bfloat16 where that does no harm."""

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
from robustcaps.models.base import Classifier, Reading

ATTACKED = ("forward", "read", "votes", "training_loss")
"""What attacks ask of a zoo model."""
TRAINED = ("training_loss",)
"""What training asks of it; accuracies are measured on the network as it is written."""

VARIANTS = 256
"""So many compiled forms of one method are kept: every network of a class has its own, with gradient and without."""

Method = Callable[..., Any]


@dataclass(frozen=True)
class Precision:
    """Switches that change how results are rounded: those that are on belong to the settings of what is computed."""

    compile: bool = False
    autocast: bool = False

    @property
    def switched_on(self) -> dict[str, bool]:
        """The switches that are on."""
        return {name: on for name, on in asdict(self).items() if on}

    def check(self, device: torch.device) -> None:
        """Refuse to compile for a CPU without the C++ compiler that PyTorch would look for."""
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
        if self.compile and device.type == "cpu" and shutil.which(compiler) is None:
            raise UserError(
                f"--compile: on a CPU it needs a C++ compiler, and there is no '{compiler}' (CXX names one)."
            )

    def prepare(self, model: nn.Module, *, name: str, methods: tuple[str, ...] = ATTACKED) -> nn.Module:
        """Return the same model, whose methods (of a plain module: `forward`) are from now on computed like this.

        It becomes an instance of a subclass of its own class, so that nothing else about it changes.
        """
        if not self.switched_on:
            return model
        kind = type(model)
        asked = methods if isinstance(model, Classifier) else ("forward",)
        body = {method: self._carry(getattr(kind, method), name) for method in asked if hasattr(kind, method)}
        words = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        model.__class__ = types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(words | body))
        return model

    def try_out(self, model: nn.Module, images: Tensor, *, name: str) -> None:
        """Compile a prepared model, forward and backward, if it is to be; say so if it cannot be."""
        if self.compile:
            with torch.enable_grad(), _naming(name):
                images = images.detach().clone().requires_grad_()
                torch.autograd.grad(model(images).sum(), images)

    def _carry(self, method: Method, name: str) -> Method:
        method = _in_bfloat16(method) if self.autocast else method
        return _compiled(method, name) if self.compile else method


def _in_bfloat16(method: Method) -> Method:
    """Let PyTorch take bfloat16 where it thinks fit (convolutions, matrix products); what comes out is float32."""

    @functools.wraps(method)
    def run(model: nn.Module, images: Tensor, *rest: Any, **options: Any) -> Any:
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            return _in_float32(method(model, images, *rest, **options))

    return run


def _in_float32(found: Any) -> Any:
    if isinstance(found, Reading):
        return Reading(_in_float32(found.logits), _in_float32(found.scores), _in_float32(found.poses))
    return found.float() if isinstance(found, Tensor) else found


def _compiled(method: Method, name: str) -> Method:
    """Compile a method at its first call, for batches of any size; one that calls another becomes one graph with it."""
    from torch._dynamo import config  # noqa: PLC0415  a second that only those who compile should wait

    compiled = torch.compile(method, fullgraph=True, dynamic=True)

    @functools.wraps(method)
    def run(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(*args, **options)
        with _naming(name), config.patch(cache_size_limit=VARIANTS):
            return compiled(*args, **options)

    return run


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say in one line which model does not compile."""
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415

    try:
        yield
    except TorchDynamoException as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"--compile: model '{name}' cannot be compiled as a whole: {reason}") from error
