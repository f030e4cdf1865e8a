"""A model with rebuilt gradients: those of its recorded operations instead of those that it gives autograd."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from robustcaps.capsules.kernels.backends import definition_only
from robustcaps.diagnostics.checks.recorded_pass import RecordedPass, Substitution
from robustcaps.diagnostics.checks.shielded_model import ModelFailed, ShieldedModel

MAX_BYTES = 2**29
"""Memory for the intermediate results of a recorded pass; larger batches are recorded in parts."""


class RebuiltModel(nn.Module):
    """The outputs of a shielded model, with gradients by the chain rule over its recorded operations."""

    def __init__(self, shielded: ShieldedModel, substitution: Substitution = "steps") -> None:
        super().__init__()
        self.shielded = shielded
        self.substitution: Substitution = substitution
        self.bytes_per_image = 0

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs; their backward pass records the operations of another forward pass."""
        if not (torch.is_grad_enabled() and images.requires_grad):
            return self.shielded.checked_outputs(images)
        return _RebuiltBackward.apply(images, self)  # type: ignore[no-any-return,no-untyped-call]

    def record(self, images: Tensor) -> RecordedPass:
        """Record a pass; to hold assignments constant, fused kernels are replaced by their definition in torch."""
        with definition_only() if self.substitution == "assignments" else nullcontext():
            recorded = RecordedPass.record(self.shielded.checked_outputs, images)
        self.bytes_per_image = max(1, recorded.nbytes // len(images))
        return recorded

    def gradient(self, images: Tensor, output_gradients: Tensor) -> Tensor:
        """Return the gradient of <outputs, output_gradients> in the images, 0 if the operations cannot be repeated."""
        if not self.bytes_per_image:
            with torch.random.fork_rng(devices=[]):
                self.record(images[:2])
        size = max(2, MAX_BYTES // self.bytes_per_image)
        parts = zip(torch.split(images, size), torch.split(output_gradients, size), strict=True)
        try:
            return torch.cat([self.record(part).gradient(gradient, self.substitution) for part, gradient in parts])
        except (RuntimeError, TypeError, ValueError, ModelFailed) as error:  # an operation without a derivative
            self.shielded.gradient_error = str(error).strip().partition("\n")[0]
            return torch.zeros_like(images)


class _RebuiltBackward(torch.autograd.Function):
    """A forward pass whose backward pass runs the recorded operations again."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, rebuilt: RebuiltModel) -> Tensor:
        ctx.rebuilt, ctx.images, ctx.random_state = rebuilt, images.detach(), torch.get_rng_state()
        return rebuilt.shielded.checked_outputs(ctx.images).detach()

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor) -> tuple[Tensor, None]:
        outer_state = torch.get_rng_state()
        torch.set_rng_state(ctx.random_state)  # a randomised model draws what it drew in the forward pass
        try:
            return ctx.rebuilt.gradient(ctx.images, output_gradients[0]), None
        finally:
            torch.set_rng_state(outer_state)
