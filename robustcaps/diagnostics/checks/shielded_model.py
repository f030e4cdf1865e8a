"""The examined model behind a shield: whatever goes wrong on the way back to the image is a zero gradient."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustcaps.errors import UserError


class ModelFailed(Exception):  # noqa: N818  as TrainingFailed and PluginFailed are
    """The examined model raised, or tried to exit, when it was asked about images."""


class Subject(nn.Module):
    """Any module from images to outputs (n, classes), as attacks can work on it.

    A model that lets no gradient through, or raises when asked for one, has the gradient 0; numbers it draws from
    Python's or numpy's generators come from streams of its own.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.states = random.Random(0).getstate(), np.random.RandomState(0).get_state()
        self.complaint = ""
        """What the model raised when it was asked for a gradient."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs as float32; gradients of them are shielded."""
        if not (torch.is_grad_enabled() and images.requires_grad):
            return self.answer(images)
        return _Shield.apply(images, self)  # type: ignore[no-any-return,no-untyped-call]

    def answer(self, images: Tensor) -> Tensor:
        """Return the model's own outputs, checked; the model gets a copy, which it may overwrite."""
        with self._own_generators():
            try:
                outputs = self.model(images.clone())
            except (Exception, SystemExit) as error:
                raise ModelFailed(f"{type(error).__name__}: {_first_line(error)}") from error
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(images):
            what = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            n = len(images)
            raise UserError(f"the model must answer {n} images with outputs ({n}, classes), not {what}.")
        if outputs.is_complex():
            raise UserError("the model must answer with real numbers, not complex ones.")
        return outputs.clone().float() if outputs.is_inference() else outputs.float()

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        outside = random.getstate(), np.random.get_state()  # noqa: NPY002  the legacy state is what models draw from
        self._set(self.states)
        try:
            yield
        finally:
            self.states = random.getstate(), np.random.get_state()  # noqa: NPY002
            self._set(outside)

    @staticmethod
    def _set(states: tuple[Any, Any]) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


class _Shield(torch.autograd.Function):
    """A forward pass whose backward pass cannot raise."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, subject: Subject) -> Tensor:
        ctx.subject, ctx.images = subject, images.detach().requires_grad_()
        with torch.enable_grad():
            try:
                ctx.outputs = subject.answer(ctx.images)
            except ModelFailed as error:  # such as numpy() on a tensor that wants a gradient
                subject.complaint = _first_line(error)
                ctx.outputs = subject.answer(images.detach())
        outputs: Tensor = ctx.outputs
        return outputs.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        try:
            (found,) = torch.autograd.grad(ctx.outputs, ctx.images, gradients[0], allow_unused=True)
        except Exception as error:  # noqa: BLE001  such as outputs without a graph, or a backward pass that raises
            ctx.subject.complaint = _first_line(error)
            found = None
        return torch.zeros_like(ctx.images) if found is None else found, None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
