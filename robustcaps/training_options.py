"""The options of a training, declared once for `train`, suites, the command line and model cards; imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from robustcaps.options import MAX_COUNT, MAX_SEED

Holdout = Annotated[
    int, Field(ge=0, description="Training instances per class held out for validation; 0 trains on all samples.")
]


class TrainingOptions(BaseModel):
    """Options of a training; each description is the help text of the command-line option of that name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: int = Field(
        default=0, ge=0, le=MAX_SEED, description="Random seed of the initial weights, sample order and augmentation."
    )
    epochs: int | None = Field(
        default=None, ge=1, le=MAX_COUNT, description="Number of epochs (default: the model's recipe)."
    )
    batch_size: int | None = Field(
        default=None, ge=1, le=MAX_COUNT, description="Batch size (default: the model's recipe)."
    )
    lr: float | None = Field(default=None, gt=0, description="Peak learning rate (default: the model's recipe).")
    limit: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="Maximum number of samples of each split.")
    holdout: Holdout = 1
    adversary_eps: float | None = Field(
        default=None, gt=0, le=1, description="Adversarial training: linf radius, in pixel values of [0, 1]."
    )
    adversary_steps: int | None = Field(
        default=None, ge=1, validate_default=True, description="Adversarial training: gradient steps per batch."
    )
    noise: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Standard deviation of Gaussian noise added to training images, for randomised smoothing.",
    )
    holdout_test: int | None = Field(
        default=None,
        ge=1,
        description="Validate on this many test samples, the last ones, instead.",
    )
    stop_error: float | None = Field(
        default=None, ge=0, lt=1, description="Stop early once the validation error (0 to 1) is at most this."
    )
    half: bool = Field(default=True, description="Store the weights as float16.")

    @field_validator("adversary_steps")
    @classmethod
    def _check_adversary(cls, steps: int | None, info: ValidationInfo) -> int | None:
        if (steps is None) != (info.data.get("adversary_eps") is None):
            raise ValueError("adversarial training needs both adversary_eps and adversary_steps")
        return steps

    @field_validator("holdout_test")
    @classmethod
    def _check_holdout(cls, samples: int | None, info: ValidationInfo) -> int | None:
        if samples is not None and info.data.get("holdout"):
            raise ValueError("replaces held-out training samples and requires holdout = 0")
        return samples

    @field_validator("stop_error")
    @classmethod
    def _check_validation_samples(cls, stop_error: float | None, info: ValidationInfo) -> float | None:
        if stop_error is not None and info.data.get("holdout") == 0 and info.data.get("holdout_test") is None:
            raise ValueError("needs validation samples; set holdout or holdout_test")
        return stop_error

    def command_arguments(self) -> list[str]:
        """Return the options as arguments of `robustcaps train`; unset ones and `half`, the default, are left out."""
        arguments: list[str] = []
        for name in TrainingOptions.model_fields:
            value, flag = getattr(self, name), name.replace("_", "-")
            if isinstance(value, bool):
                arguments += [] if value else [f"--no-{flag}"]
            elif value is not None:
                arguments += [f"--{flag}", str(value)]
        return arguments
