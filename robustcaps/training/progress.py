"""Progress reports of a training; the code that trains does not print."""

from __future__ import annotations

from collections.abc import Mapping


class TrainingProgress:
    """Callbacks of a training that do nothing; override those you need. Epochs and steps count from 1."""

    def training(self, name: str) -> None:
        """Report the name of the next model, where several are trained."""

    def loading(self, done: int, total: int) -> None:
        """Report the number of images loaded."""

    def started(self, epochs: int, steps: int, done: int) -> None:
        """Report the number of epochs, of steps per epoch, and of epochs that an earlier run has completed."""

    def step(self, epoch: int, step: int, steps: int, loss: float, lr: float) -> None:
        """Report a completed step of an epoch."""

    def epoch_end(self, epoch: int, metrics: Mapping[str, float | str | None]) -> None:
        """Report a completed epoch and its row of the log."""

    def warn(self, message: str) -> None:
        """Report a problem that does not stop the training."""

    def finished(self) -> None:
        """Report the end of all trainings."""
