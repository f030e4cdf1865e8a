"""A wrapper around the diagnosed model: a backward pass that fails yields a zero gradient instead of an exception."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustcaps.errors import UserError


class ModelFailed(Exception):  # noqa: N818  named like TrainingFailed and PluginFailed
    """The diagnosed model raised an exception, or tried to exit, in a forward pass."""


class ShieldedModel(nn.Module):
    """Any module from images to outputs (n, classes), in a form that attacks can work on.

    Where the model has no gradient, or raises in the backward pass, the gradient is 0. Random numbers that it takes
    from the generators of Python or numpy come from separate streams.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.generator_states = random.Random(0).getstate(), np.random.RandomState(0).get_state()
        self.gradient_error = ""
        """The first line of the last exception in a forward or backward pass with gradients."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs as float32; their backward pass cannot raise."""
        if not (torch.is_grad_enabled() and images.requires_grad):
            return self.checked_outputs(images)
        return _ShieldedBackward.apply(images, self)  # type: ignore[no-any-return,no-untyped-call]

    def checked_outputs(self, images: Tensor) -> Tensor:
        """Return the outputs of the model, which gets a copy of the images that it may overwrite."""
        with self._own_generators():
            try:
                outputs = self.model(images.clone())
            except (Exception, SystemExit) as error:
                raise ModelFailed(f"{type(error).__name__}: {_first_line(error)}") from error
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(images):
            actual = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise UserError(f"the model must return outputs of shape ({len(images)}, classes), not {actual}.")
        if outputs.is_complex():
            raise UserError("the model must return real outputs, not complex ones.")
        return outputs.clone().float() if outputs.is_inference() else outputs.float()

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        outer_states = random.getstate(), np.random.get_state()  # noqa: NPY002  models use the legacy generator
        self._set_generators(self.generator_states)
        try:
            yield
        finally:
            self.generator_states = random.getstate(), np.random.get_state()  # noqa: NPY002
            self._set_generators(outer_states)

    @staticmethod
    def _set_generators(states: tuple[Any, Any]) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


class _ShieldedBackward(torch.autograd.Function):
    """A forward pass whose backward pass returns 0 instead of raising."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, shielded: ShieldedModel) -> Tensor:
        ctx.shielded, ctx.images = shielded, images.detach().requires_grad_()
        with torch.enable_grad():
            try:
                ctx.outputs = shielded.checked_outputs(ctx.images)
            except ModelFailed as error:  # such as numpy() on a tensor that requires grad
                shielded.gradient_error = _first_line(error)
                ctx.outputs = shielded.checked_outputs(images.detach())
        outputs: Tensor = ctx.outputs
        return outputs.detach()

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor) -> tuple[Tensor, None]:
        try:
            (gradient,) = torch.autograd.grad(ctx.outputs, ctx.images, output_gradients[0], allow_unused=True)
        except Exception as error:  # noqa: BLE001  such as outputs without a graph, or a backward hook that raises
            ctx.shielded.gradient_error = _first_line(error)
            gradient = None
        return torch.zeros_like(ctx.images) if gradient is None else gradient, None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
