"""The training loop: epochs of Adam with warm-up and cosine, each one seeded, logged and checkpointed."""

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
from robustcaps.models.cards import Settings
from robustcaps.training.accuracy import predict, share_right
from robustcaps.training.adversary import Adversary
from robustcaps.training.checkpoint import Row, number, restore_checkpoint, write_checkpoint
from robustcaps.training.health import count_classes, describe_guesses, has_collapsed, name_predictions
from robustcaps.training.listener import Listener
from robustcaps.training.samples import centre_crop, random_batches
from robustcaps.training.targets import labels_to_learn, objects_in
from robustcaps.utils.files import write_atomically
from robustcaps.utils.seeds import derive_seed, seeded

PROBE = 500
"""So many train samples, chosen at random, tell the train accuracy of an epoch."""
FIRST_LOOK = 64
"""So many of them a model may look at to set its initial weights, and to tell its vital signs."""

CHECKS = 8
"""How often in an epoch, its end included, a training looks whether its `stop_error` is reached."""
UNTRAINED = 500
"""After fewer steps a network may give few answers for want of training; running statistics lag behind, too."""


@dataclass(frozen=True)
class Training:
    """All that a run of the loop needs."""

    settings: Settings
    data: Data
    held: Data | None
    folder: Path
    device: torch.device
    listener: Listener

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return math.ceil(len(self.data) / self.settings.batch_size)

    @property
    def adversary(self) -> Adversary | None:
        """Who replaces the batches, in adversarial training."""
        return Adversary.of(self.settings)

    @property
    def checkpoint(self) -> Path:
        """Where the last epoch is kept while the training is unfinished."""
        return self.folder / "checkpoint.safetensors"

    @property
    def log(self) -> Path:
        """Where the log goes."""
        return self.folder / "log.csv"

    @property
    def weights(self) -> Path:
        """Where the weights go; their card stands beside them when all is done."""
        return self.folder / f"{self.settings.stem}.safetensors"


def fit(training: Training, model: Classifier) -> list[Row]:
    """Train a model from where its checkpoint is, or from the start; return the log, one row per epoch.

    Each epoch depends on the weights before it and on (seed, epoch) alone, so a resumed run ends with the same bits.
    """
    settings, device = training.settings, training.device
    images, labels = training.data.images.to(device), labels_to_learn(training.data).to(device)
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(derive_seed(settings.seed, 0)))[:PROBE]
    probe = centre_crop(images[rows.to(device)], settings.size), labels[rows.to(device)].cpu()
    optimizer = prepare(model.to(device), probe[0][:FIRST_LOOK], settings)
    log = restore_checkpoint(training.checkpoint, model, optimizer) if training.checkpoint.exists() else []
    training.listener.started(settings.epochs, training.steps, done=len(log))
    stop_if_collapsed(training, log, probe[1])
    for epoch in range(len(log) + 1, settings.epochs + 1):
        if has_reached(settings, log):
            break
        began = time.perf_counter()
        order = derive_seed(settings.seed, epoch, 0)
        batches = random_batches(images, labels, size=settings.size, steps=training.steps, seed=order)
        with seeded(derive_seed(settings.seed, epoch, 1), device):
            loss, lr = run_epoch(training, model, optimizer, batches, epoch)
        row: Row = {"epoch": epoch, "loss": loss, **measure(training, model, probe)}
        row |= {"lr": lr, "seconds": round(time.perf_counter() - began, 3)}
        log.append(row)
        write_checkpoint(training.checkpoint, settings, model, optimizer, log)
        write_log(training.log, log)
        training.listener.epoch_end(epoch, row)
        stop_if_collapsed(training, log, probe[1])
    warn_if_missed(training, log)
    return log


def prepare(model: Classifier, images: Tensor, settings: Settings) -> Optimizer:
    """Let the model set its weights by a look at some images, where it can; return Adam with its parameters.

    Without weight decay AdamW is Adam; `fused` takes a quarter of the time on a CPU.
    """
    initialise = getattr(model, "initialise", None)
    if initialise is not None:
        with seeded(derive_seed(settings.seed, 0, 1), images.device):
            initialise(images)
    grouped = getattr(model, "parameter_groups", None)
    groups = [{"params": list(model.parameters())}] if grouped is None else grouped(settings.lr)
    optimizer = AdamW(groups, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer


def run_epoch(
    training: Training, model: Classifier, optimizer: Optimizer, batches: Iterator[tuple[Tensor, Tensor]], epoch: int
) -> tuple[float, float]:
    """Train on every sample once, or until `stop_error` is reached; return the mean loss and the last learning rate."""
    settings, steps, adversary = training.settings, training.steps, training.adversary
    total = settings.epochs * steps
    model.train()
    loss_sum, lr, seen = 0.0, 0.0, 0
    for step, (images, labels) in enumerate(batches, start=1):
        done = (epoch - 1) * steps + step - 1
        factor = lr_factor(done, total, warmup_steps=settings.warmup_steps, final_lr=settings.final_lr)
        lr = settings.lr * factor
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
        if adversary is not None:
            seed = derive_seed(settings.seed, epoch, 2, step)
            images = adversary.perturb(model, images, labels, progress=done / total, seed=seed)  # noqa: PLW2901
        try:
            loss = take_step(model, optimizer, images, labels, progress=done / total, clip=settings.clip)
        except FloatingPointError as error:
            raise TrainingFailed(
                f"{settings.stem} on {settings.data}: {error} at epoch {epoch}, step {step} of {steps}, "
                f"learning rate {lr:.3g}. {way_out(settings)}"
            ) from error
        loss_sum += loss * len(labels)
        seen += len(labels)
        training.listener.step(epoch, step, steps, loss, lr)
        if settings.stop_error is not None and step < steps and step % math.ceil(steps / CHECKS) == 0:
            if is_good_enough(validation_accuracy(training, model), settings.stop_error):
                break
            model.train()
    return loss_sum / seen, lr


def has_reached(settings: Settings, log: list[Row]) -> bool:
    """Tell whether a training is to stop before its last epoch: the held-out error of its last row is small enough.

    It stops at the first of several looks an epoch that finds it so. Hinton et al. (2018) stopped likewise, by the test
    error on familiar views (here: that on some test samples, or on train samples held out). To choose the nearest of
    many checkpoints would come nearer to the wanted error, but train to the end for nothing, and pick an early
    fluctuation or a late one by chance. The learning rate follows the schedule of the whole training, wherever that
    ends. Chance makes the held-out error at the first crossing a little too small: it serves to stop, and what is
    compared is measured on other samples.
    """
    accuracy = number(log[-1], "validation_accuracy") if log else None
    return settings.stop_error is not None and is_good_enough(accuracy, settings.stop_error)


def is_good_enough(accuracy: float | None, stop_error: float) -> bool:
    """Tell whether no larger share than `stop_error` is wrong; rounding does not count."""
    return accuracy is not None and 1 - accuracy <= stop_error + 1e-9


def validation_accuracy(training: Training, model: Classifier) -> float | None:
    """Return the accuracy on the held-out samples, if there are any; the model is in eval mode afterwards."""
    if training.held is None:
        return None
    labels = labels_to_learn(training.held)
    return share_right(predict(model, training.held.images.to(training.device), objects_in(labels)), labels)


def warn_if_missed(training: Training, log: list[Row]) -> None:
    """Say so if all epochs are over and the held-out error is still larger than it should be at the end."""
    settings, accuracy = training.settings, number(log[-1], "validation_accuracy")
    if settings.stop_error is not None and accuracy is not None and not has_reached(settings, log):
        training.listener.warn(
            f"{settings.stem} on {settings.data} has not come down to an error of {settings.stop_error:.1%} on the "
            f"held-out samples: after all {settings.epochs} epochs it is {1 - accuracy:.1%}. These weights count."
        )


def take_step(
    model: Classifier, optimizer: Optimizer, images: Tensor, labels: Tensor, *, progress: float, clip: float | None
) -> float:
    """Move the weights against the gradient of the batch's mean loss, if all is finite; return the loss."""
    loss = model.training_loss(images, labels, progress=progress).mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = get_total_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    loss_value, norm_value = torch.stack([loss.detach(), norm]).tolist()  # waits for the device once, not for each
    for what, value in (("loss", loss_value), ("gradient's norm", norm_value)):
        if not math.isfinite(value):
            raise FloatingPointError(f"the {what} is {value}")
    if clip is not None:
        clip_grads_with_norm_(model.parameters(), clip, norm)
    optimizer.step()
    return float(loss_value)


def lr_factor(step: int, steps: int, *, warmup_steps: int, final_lr: float) -> float:
    """Return the share of the learning rate at a step: linear warm-up (a fifth of the steps at most), then a cosine."""
    warmup = min(warmup_steps, steps // 5)
    if step < warmup:
        return (step + 1) / warmup
    way = (step - warmup) / max(1, steps - warmup - 1)
    return final_lr + (1 - final_lr) * (1 + math.cos(math.pi * way)) / 2


def measure(training: Training, model: Classifier, probe: tuple[Tensor, Tensor]) -> Row:
    """Return the accuracies on train samples (also under the adversary) and on held-out ones, and signs of illness."""
    adversary = training.adversary
    images, labels = probe
    guesses = predict(model, images, objects_in(labels))
    row: Row = {"train_accuracy": share_right(guesses, labels)}
    row["validation_accuracy"] = validation_accuracy(training, model)
    if adversary is not None:
        row["robust_accuracy"] = adversary.robust_accuracy(model, images, labels, seed=training.settings.seed)
    row |= describe_guesses(guesses, training.settings.classes)
    return row | model.vital_signs(images[:FIRST_LOOK])


def stop_if_collapsed(training: Training, log: list[Row], labels: Tensor) -> None:
    """Warn after an epoch that ended with a collapsed network (see `has_collapsed`); stop if the next one does too.

    Epochs that end within the first `UNTRAINED` steps do not count: a healthy network may know nothing by then. What
    counts is in the log, so that a training resumed after it was stopped stops at once.
    """
    settings, counts = training.settings, count_classes(labels, training.settings.classes)
    recent = list(enumerate(log, start=1))[-2:]
    ill = [epoch for epoch, row in recent if epoch * training.steps >= UNTRAINED and has_collapsed(row, counts)]
    if len(log) not in ill:
        return
    message = (
        f"{settings.stem} on {settings.data} has collapsed: after epoch {len(log)} of {settings.epochs} its answers to "
        f"{len(labels)} train samples are {name_predictions(log[-1], settings.class_names)}; "
        f"{log[-1]['train_accuracy']:.0%} are right."
    )
    if len(ill) == 1:
        training.listener.warn(f"{message} If the next epoch ends like this, the training stops.")
        return
    raise TrainingFailed(
        f"{message} Epoch {len(log) - 1} ended like this, too. {way_out(settings)} The log is {training.log}; "
        f"the same command in the same folder stops here again."
    )


def way_out(settings: Settings) -> str:
    """Say what to try after a training that went wrong; its folder is left alone."""
    floor = settings.options.get("variance_floor")
    softer = "" if floor is None else f", a larger variance floor (--set variance_floor={2 * floor:g})"
    weaker = "" if settings.adversary_eps is None else ", a smaller --adversary-eps"
    ways = f"a lower learning rate (--lr {settings.lr / 3:.1g}){softer}{weaker}"
    return f"Try {ways} or another --seed, in a new folder (--out)."


def write_log(path: Path, log: list[Row]) -> None:
    """Write the log as CSV; nothing stands for 'not measured', as in rows of older checkpoints."""
    text = io.StringIO()
    columns = dict.fromkeys(name for row in log for name in row)
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(log)
    write_atomically(path, text.getvalue())
