"""Who hears how a training goes: what computes does not print."""

from __future__ import annotations

from collections.abc import Mapping


class Listener:
    """Hears nothing; override what you want to hear. Epochs and steps count from 1."""

    def training(self, name: str) -> None:
        """Hear which model is to be trained next, where there are several."""

    def loading(self, done: int, total: int) -> None:
        """Hear how many images of the data are ready."""

    def started(self, epochs: int, steps: int, done: int) -> None:
        """Hear how long the training is, `steps` an epoch, and how many of its epochs a former run has done."""

    def step(self, epoch: int, step: int, steps: int, loss: float, lr: float) -> None:
        """Hear that a step of an epoch is done."""

    def epoch_end(self, epoch: int, metrics: Mapping[str, float | str | None]) -> None:
        """Hear the line of the log that the epoch has added."""

    def warn(self, message: str) -> None:
        """Hear that something looks wrong, though the training goes on."""

    def finished(self) -> None:
        """Hear that the last epoch is over."""
