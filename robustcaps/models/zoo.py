"""Models by name: untrained, or with shipped weights or those of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from robustcaps.errors import UserError
from robustcaps.models.cards import (
    ImportedCard,
    ModelCard,
    card_path,
    load_tensors,
    read_any_card,
    read_card,
    read_tensors,
    tensors_digest,
)
from robustcaps.options import validate_options
from robustcaps.registry import MODELS
from robustcaps.utils.devices import pick_device
from robustcaps.utils.seeds import seeded

WEIGHTS = Path(__file__).parent / "weights"
"""Directory of shipped weights: <data>/<model>-<tag>.safetensors and .json."""
IMPORTED_TAGS = {
    "hinton2018": "Download https://storage.googleapis.com/capsule_toronto/norb_em_checkpoints.tar.gz, unpack it, and "
    "run 'robustcaps import hinton2018 FOLDER'."
}
"""How to obtain weights that others published, by their tag."""
TRAINED_ON = {"mnist-c": "mnist"}
"""Datasets that models are tested on with the shipped weights of another."""


def build_model(name: str, *, classes: int, channels: int, size: int, seed: int = 0, **options: Any) -> nn.Module:
    """Build an untrained model.

    Args:
        name: A registered model, such as "matrix-capsnet".
        classes: Number of classes.
        channels: Number of image channels.
        size: Height and width of the images, in pixels.
        seed: Random seed of the initial weights.
        **options: Options of the model; `robustcaps list models` shows them.

    Returns:
        The model, in training mode on the CPU.
    """
    checked = model_options(name, options)
    with seeded(seed):
        return MODELS.entry(name).factory(classes=classes, channels=channels, size=size, **checked)


def model_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a model, completed by their defaults; raise `UserError` if one is invalid."""
    shape = frozenset({"classes", "channels", "size"})
    return validate_options(MODELS.entry(name).factory, options, where=f"model '{name}'", reserved=shape)


def load_model(
    name: str, *, data: str = "toys", weights: Path | str | None = None, device: str = "auto", **options: Any
) -> nn.Module:
    """Load a trained model.

    Args:
        name: A registered model, optionally with the tag of its weights: "cnn:b"; by default the first tag.
        data: The dataset that the shipped weights were trained on.
        weights: A file written by `train` or `import`, instead of shipped weights.
        device: "auto", "cpu", "cuda" or "mps".
        **options: Options of the model; they override those of the training.

    Returns:
        The model in eval mode, with frozen parameters.
    """
    model, _, tag = name.partition(":")
    MODELS.entry(model)
    path = find_shipped_weights(model, tag, data) if weights is None else Path(weights)
    return load_weights(path, model=model, tag=tag, **options).to(pick_device(device))


def load_weights(path: Path, *, model: str = "", tag: str = "", **options: Any) -> nn.Module:
    """Return the model that a file and its card describe, in eval mode; refuse it unless `model` and `tag` match."""
    if tag in IMPORTED_TAGS and not path.exists():
        raise UserError(f"{path}: no such file. {IMPORTED_TAGS[tag]}")
    tensors = read_tensors(path)
    card = read_any_card(card_path(path))
    if (model or card.model, tag or card.tag) != (card.model, card.tag):
        expected = f"{model}:{tag}" if tag else model
        raise UserError(f"{path}: weights of a different model: '{card.name}' according to its card, not '{expected}'.")
    network = build_model(
        card.model, classes=card.classes, channels=card.channels, size=card.size, **{**card.options, **options}
    )
    load_tensors(network, tensors, where=str(path))
    if tensors_digest(network.state_dict()) != card.digest:
        raise UserError(f"{path}: the weights do not match their card (different digests).")
    return network.eval().requires_grad_(requires_grad=False)


def trained_card(name: str, *, data: str, weights: Path | str | None) -> ModelCard | ImportedCard:
    """Return the card of the weights that `load_model` loads for the same arguments."""
    model, _, tag = name.partition(":")
    return read_any_card(card_path(find_shipped_weights(model, tag, data) if weights is None else Path(weights)))


def trained_options(name: str, *, data: str, weights: Path | str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all model options that `load_model` uses for the same arguments: those of the card, then `options`."""
    card = trained_card(name, data=data, weights=weights)
    return model_options(card.model, {**card.options, **options})


def shipped_cards() -> list[ModelCard]:
    """Return the cards of all shipped weights, sorted by data, model and tag."""
    cards = [read_card(path) for path in WEIGHTS.glob("*/*.json")]
    return sorted(cards, key=lambda card: (card.data, card.model, card.tag))


def find_shipped_weights(model: str, tag: str, data: str) -> Path:
    """Return the file of shipped weights; an empty tag selects the first one."""
    cards, data = shipped_cards(), TRAINED_ON.get(data, data)
    for card in cards:
        if (card.model, card.data) == (model, data) and tag in ("", card.tag):
            return WEIGHTS / data / f"{card.stem}.safetensors"
    if tag in IMPORTED_TAGS:
        raise UserError(
            f"model '{model}:{tag}' is not shipped. {IMPORTED_TAGS[tag]} Then set weights (--weights FILE)."
        )
    near = [card for card in cards if card.model == model] or cards
    available = ", ".join(f"{card.name} ({card.data})" for card in near) or "none"
    name = f"{model}:{tag}" if tag else model
    raise UserError(
        f"no shipped weights for model '{name}' on data '{data}'; shipped: {available}. "
        f"Train your own: robustcaps train {model} --data {data}; then set weights (--weights FILE)."
    )
