"""The output folder of a training: new, unfinished or finished."""

from __future__ import annotations

from robustcaps.errors import UserError
from robustcaps.models.cards import ModelCard, TrainingSettings, card_path, read_card
from robustcaps.training.checkpoint import read_settings
from robustcaps.training.loop import TrainingRun
from robustcaps.utils.files import make_folder


def open_folder(run: TrainingRun, *, resume: bool) -> ModelCard | None:
    """Create the folder and return the card if the training is finished; refuse a folder of another training."""
    folder, card_file = run.folder, card_path(run.weights)
    try:
        make_folder(folder)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{folder}: cannot create the folder: {reason}.") from error
    card = read_card(card_file) if card_file.exists() else None
    stored: TrainingSettings | None = card
    if stored is None and run.checkpoint.exists():
        stored = read_settings(run.checkpoint)
    if stored is None:
        for path in (run.log, run.weights):
            if path.exists():
                raise UserError(f"{path} exists already, from another training; choose another folder (--out).")
        return None
    differences = describe_differences(stored, run.settings)
    if differences:
        raise UserError(
            f"{folder} contains a training with {differences}; use the same settings or choose another folder (--out)."
        )
    if not resume:
        raise UserError(f"{folder} contains this training already; resume it or choose another folder (--out).")
    return card


def describe_differences(stored: TrainingSettings, requested: TrainingSettings) -> str:
    """Return the settings of a stored training that differ from the requested ones, as text."""
    pairs = [(name, getattr(stored, name), getattr(requested, name)) for name in TrainingSettings.model_fields]
    return ", ".join(f"{name}={old!r} (requested: {new!r})" for name, old, new in pairs if old != new)
