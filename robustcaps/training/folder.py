"""The folder of a training: new, unfinished or finished, and never somebody else's."""

from __future__ import annotations

from robustcaps.errors import UserError
from robustcaps.models.cards import Card, Settings, card_file, read_card
from robustcaps.training.checkpoint import read_settings
from robustcaps.training.loop import Training


def open_folder(training: Training, *, resume: bool) -> Card | None:
    """Make the folder, and refuse one that holds anything but this very training; return its card if it is finished."""
    folder, card_path = training.folder, card_file(training.weights)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror}.") from error
    card = read_card(card_path) if card_path.exists() else None
    found: Settings | None = card
    if found is None and training.checkpoint.exists():
        found = read_settings(training.checkpoint)
    if found is None:
        for path in (training.log, training.weights):
            if path.exists():
                raise UserError(f"{path} is there already, from another training; choose another folder (--out).")
        return None
    different = differences(found, training.settings)
    if different:
        raise UserError(f"{folder} holds a training with {different}; choose the same settings or another folder.")
    if not resume:
        raise UserError(f"{folder} holds this training already; resume it, or choose another folder (--out).")
    return card


def differences(found: Settings, wanted: Settings) -> str:
    """Say which settings of a training found on disk are not the wanted ones."""
    pairs = [(name, getattr(found, name), getattr(wanted, name)) for name in Settings.model_fields]
    return ", ".join(f"{name}={there!r} (not {here!r})" for name, there, here in pairs if there != here)
