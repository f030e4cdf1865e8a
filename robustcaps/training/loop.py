"""The training loop: Adam with warm-up and cosine decay; every epoch is seeded, logged and checkpointed."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer

from robustcaps.data.base import Data
from robustcaps.errors import TrainingFailed
from robustcaps.models.base import Classifier
from robustcaps.models.cards import TrainingSettings
from robustcaps.models.inference import eval_mode
from robustcaps.training.accuracy import accuracy_score, predict_classes
from robustcaps.training.adversary import Adversary
from robustcaps.training.checkpoint import LogRow, get_number, restore_checkpoint, write_checkpoint
from robustcaps.training.health import count_classes, describe_predictions, has_collapsed, prediction_metrics
from robustcaps.training.progress import TrainingProgress
from robustcaps.training.samples import add_noise, centre_crop, random_batches
from robustcaps.training.targets import objects_per_image, training_targets
from robustcaps.utils.files import write_atomically
from robustcaps.utils.seeds import derive_seed, seeded

TRAIN_ACCURACY_SAMPLES = 500
"""Number of random training samples that the training accuracy of an epoch is measured on."""
INITIALISATION_SAMPLES = 64
"""Number of those that initialise a model's weights and that its health metrics are measured on."""
STOP_CHECKS_PER_EPOCH = 8
"""How often per epoch, including its end, the validation error is compared with `stop_error`."""
MIN_STEPS_BEFORE_COLLAPSE = 500
"""Before this step few predicted classes are normal: the model is untrained and running statistics lag behind."""


@dataclass(frozen=True)
class TrainingRun:
    """Settings, samples, output folder and device of a training."""

    settings: TrainingSettings
    data: Data
    validation: Data | None
    folder: Path
    device: torch.device
    progress: TrainingProgress

    @property
    def steps(self) -> int:
        """Number of steps per epoch."""
        return math.ceil(len(self.data) / self.settings.batch_size)

    @property
    def adversary(self) -> Adversary | None:
        """The adversary of adversarial training."""
        return Adversary.from_settings(self.settings)

    @property
    def checkpoint(self) -> Path:
        """File of the last complete epoch; deleted when the training is finished."""
        return self.folder / "checkpoint.safetensors"

    @property
    def log(self) -> Path:
        """File of the log."""
        return self.folder / "log.csv"

    @property
    def weights(self) -> Path:
        """File of the weights; the card beside it is written last."""
        return self.folder / f"{self.settings.stem}.safetensors"


def fit(run: TrainingRun, model: Classifier) -> list[LogRow]:
    """Train a model from its checkpoint, or from scratch; return the log, one row per epoch.

    An epoch depends only on the weights before it and on (seed, epoch), so a resumed run ends with identical weights.
    """
    settings, device = run.settings, run.device
    images, labels = run.data.images.to(device), training_targets(run.data).to(device)
    generator = torch.Generator().manual_seed(derive_seed(settings.seed, 0))
    rows = torch.randperm(len(images), generator=generator)[:TRAIN_ACCURACY_SAMPLES].to(device)
    train_sample = centre_crop(images[rows], settings.size), labels[rows].cpu()
    optimizer = create_optimizer(model.to(device), train_sample[0][:INITIALISATION_SAMPLES], settings)
    log = restore_checkpoint(run.checkpoint, model, optimizer) if run.checkpoint.exists() else []
    run.progress.started(settings.epochs, run.steps, done=len(log))
    stop_if_collapsed(run, log, train_sample[1])
    for epoch in range(len(log) + 1, settings.epochs + 1):
        if has_reached_stop_error(settings, log):
            break
        start = time.perf_counter()
        order_seed = derive_seed(settings.seed, epoch, 0)
        batches = random_batches(images, labels, size=settings.size, steps=run.steps, seed=order_seed)
        with seeded(derive_seed(settings.seed, epoch, 1), device):
            loss, lr = run_epoch(run, model, optimizer, batches, epoch)
        row: LogRow = {"epoch": epoch, "loss": loss, **measure_epoch(run, model, train_sample)}
        row |= {"lr": lr, "seconds": round(time.perf_counter() - start, 3)}
        log.append(row)
        write_checkpoint(run.checkpoint, settings, model, optimizer, log)
        write_log(run.log, log)
        run.progress.epoch_end(epoch, row)
        stop_if_collapsed(run, log, train_sample[1])
    warn_if_above_stop_error(run, log)
    return log


def create_optimizer(model: Classifier, images: Tensor, settings: TrainingSettings) -> Optimizer:
    """Initialise the model from images, if it supports that, and return its optimizer.

    Without weight decay AdamW equals Adam; `fused` takes a quarter of the time on a CPU.
    """
    initialise = getattr(model, "initialise", None)
    if initialise is not None:
        with seeded(derive_seed(settings.seed, 0, 1), images.device):
            initialise(images)
    parameter_groups = getattr(model, "parameter_groups", None)
    groups = [{"params": list(model.parameters())}] if parameter_groups is None else parameter_groups(settings.lr)
    optimizer = AdamW(groups, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer


def run_epoch(
    run: TrainingRun, model: Classifier, optimizer: Optimizer, batches: Iterator[tuple[Tensor, Tensor]], epoch: int
) -> tuple[float, float]:
    """Train for one epoch, or until `stop_error` is reached; return the mean loss and the last learning rate."""
    settings, steps, adversary = run.settings, run.steps, run.adversary
    total_steps = settings.epochs * steps
    model.train()
    loss_sum, lr, samples = 0.0, 0.0, 0
    for step, (images, labels) in enumerate(batches, start=1):
        done = (epoch - 1) * steps + step - 1
        elapsed = done / total_steps
        factor = lr_factor(done, total_steps, warmup_steps=settings.warmup_steps, final_lr=settings.final_lr)
        lr = settings.lr * factor
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
        if adversary is not None:
            seed = derive_seed(settings.seed, epoch, 2, step)
            images = adversary.perturb(model, images, labels, elapsed=elapsed, seed=seed)  # noqa: PLW2901
        if settings.noise is not None:
            images = add_noise(images, settings.noise, seed=derive_seed(settings.seed, epoch, 3, step))  # noqa: PLW2901
        try:
            loss = take_step(model, optimizer, images, labels, elapsed=elapsed, clip=settings.clip)
        except FloatingPointError as error:
            raise TrainingFailed(
                f"{settings.stem} on {settings.data}: {error} at epoch {epoch}, step {step} of {steps}, "
                f"learning rate {lr:.3g}. {suggest_remedies(settings)}"
            ) from error
        loss_sum += loss * len(labels)
        samples += len(labels)
        run.progress.step(epoch, step, steps, loss, lr)
        if step < steps and step % math.ceil(steps / STOP_CHECKS_PER_EPOCH) == 0 and should_stop(run, model):
            break
    return loss_sum / samples, lr


def has_reached_stop_error(settings: TrainingSettings, log: list[LogRow]) -> bool:
    """Return whether the training stops before its last epoch: the last validation error is at most `stop_error`.

    The first of several checks per epoch that meets the criterion stops the training, similar to Hinton et al. (2018),
    who stopped by the test error on familiar views. Choosing the closest of many checkpoints would come closer to the
    desired error, but would need the whole training and could pick a random fluctuation. The learning rate follows the
    schedule of the whole training. The validation error at the first crossing is biased low; it only serves to stop,
    and comparisons use other samples.
    """
    accuracy = get_number(log[-1], "validation_accuracy") if log else None
    return settings.stop_error is not None and is_within_error(accuracy, settings.stop_error)


def should_stop(run: TrainingRun, model: Classifier) -> bool:
    """Return whether the model's validation error is at most `stop_error`; False if that is not set."""
    stop_error = run.settings.stop_error
    return stop_error is not None and is_within_error(validation_accuracy(run, model), stop_error)


def is_within_error(accuracy: float | None, max_error: float) -> bool:
    """Return whether the error is at most `max_error`, up to rounding; False if the accuracy is unknown."""
    return accuracy is not None and 1 - accuracy <= max_error + 1e-9


def validation_accuracy(run: TrainingRun, model: Classifier) -> float | None:
    """Return the accuracy on the validation samples, or None if there are none."""
    if run.validation is None:
        return None
    labels = training_targets(run.validation)
    return accuracy_score(predict_classes(model, run.validation.images, objects_per_image(labels)), labels)


def warn_if_above_stop_error(run: TrainingRun, log: list[LogRow]) -> None:
    """Warn if the validation error is still above `stop_error` after the last epoch."""
    settings, accuracy = run.settings, get_number(log[-1], "validation_accuracy")
    if settings.stop_error is not None and accuracy is not None and not has_reached_stop_error(settings, log):
        run.progress.warn(
            f"{settings.stem} on {settings.data} did not reach a validation error of {settings.stop_error:.1%}: "
            f"it is {1 - accuracy:.1%} after all {settings.epochs} epochs. The final weights are kept."
        )


def take_step(
    model: Classifier, optimizer: Optimizer, images: Tensor, labels: Tensor, *, elapsed: float, clip: float | None
) -> float:
    """Take an optimizer step on the batch's mean loss and return that loss.

    Raises:
        FloatingPointError: The loss or the gradient is not finite; the weights are unchanged.
    """
    loss = model.training_loss(images, labels, progress=elapsed).mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = get_total_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    loss_value, norm_value = torch.stack([loss.detach(), norm]).tolist()  # synchronises with the device only once
    for quantity, value in (("loss", loss_value), ("gradient norm", norm_value)):
        if not math.isfinite(value):
            raise FloatingPointError(f"the {quantity} is {value}")
    if clip is not None:
        clip_grads_with_norm_(model.parameters(), clip, norm)
    optimizer.step()
    return float(loss_value)


def lr_factor(step: int, steps: int, *, warmup_steps: int, final_lr: float) -> float:
    """Return the learning rate of a step as a fraction of its peak.

    It rises linearly for `warmup_steps`, but at most a fifth of all steps, then decays to `final_lr` like a cosine.
    """
    warmup = min(warmup_steps, steps // 5)
    if step < warmup:
        return (step + 1) / warmup
    decay = (step - warmup) / max(1, steps - warmup - 1)
    return final_lr + (1 - final_lr) * (1 + math.cos(math.pi * decay)) / 2


def measure_epoch(run: TrainingRun, model: Classifier, train_sample: tuple[Tensor, Tensor]) -> LogRow:
    """Return training accuracy, validation accuracy, robust accuracy (adversarial training) and health metrics."""
    images, labels = train_sample
    predictions = predict_classes(model, images, objects_per_image(labels))
    row: LogRow = {"train_accuracy": accuracy_score(predictions, labels)}
    row["validation_accuracy"] = validation_accuracy(run, model)
    if run.adversary is not None:
        row["robust_accuracy"] = run.adversary.robust_accuracy(model, images, labels, seed=run.settings.seed)
    row |= prediction_metrics(predictions, run.settings.classes)
    with eval_mode(model):
        return row | model.health_metrics(images[:INITIALISATION_SAMPLES])


def stop_if_collapsed(run: TrainingRun, log: list[LogRow], labels: Tensor) -> None:
    """Warn if the last epoch ended with a collapsed model (see `has_collapsed`); stop if the one before did, too.

    Epochs that end before `MIN_STEPS_BEFORE_COLLAPSE` are ignored. The decision depends on the log only, so a resumed
    training stops at once.
    """
    settings, counts = run.settings, count_classes(labels, run.settings.classes)
    recent = list(enumerate(log, start=1))[-2:]
    collapsed = [
        epoch for epoch, row in recent if epoch * run.steps >= MIN_STEPS_BEFORE_COLLAPSE and has_collapsed(row, counts)
    ]
    if len(log) not in collapsed:
        return
    message = (
        f"{settings.stem} on {settings.data} has collapsed: after epoch {len(log)} of {settings.epochs} it predicts "
        f"{describe_predictions(log[-1], settings.class_names)} for {len(labels)} training samples "
        f"({log[-1]['train_accuracy']:.0%} correct)."
    )
    if len(collapsed) == 1:
        run.progress.warn(f"{message} If the next epoch ends like this, the training stops.")
        return
    raise TrainingFailed(
        f"{message} So did epoch {len(log) - 1}. {suggest_remedies(settings)} "
        f"See {run.log}; resuming in the same folder stops here again."
    )


def suggest_remedies(settings: TrainingSettings) -> str:
    """Return what to try after a failed training, as text."""
    floor = settings.options.get("variance_floor")
    variance = "" if floor is None else f", a larger variance floor (--set variance_floor={2 * floor:g})"
    eps = "" if settings.adversary_eps is None else ", a smaller --adversary-eps"
    remedies = f"a lower learning rate (--lr {settings.lr / 3:.1g}){variance}{eps} or another --seed"
    return f"Try {remedies} in a new folder (--out)."


def write_log(path: Path, log: list[LogRow]) -> None:
    """Write the log as CSV; metrics that were not measured are empty."""
    text = io.StringIO()
    columns = dict.fromkeys(name for row in log for name in row)
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(log)
    write_atomically(path, text.getvalue())
