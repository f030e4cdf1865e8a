"""Models by name: built with fresh weights, or loaded with the ones that are shipped or that you trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from robustcaps.errors import UserError
from robustcaps.models.cards import Card, card_file, digest_of, fill, read_card, read_tensors
from robustcaps.options import validate_options
from robustcaps.registry import MODELS
from robustcaps.utils.devices import pick_device
from robustcaps.utils.seeds import seeded

WEIGHTS = Path(__file__).parent / "weights"
"""Shipped weights: <data>/<model>-<tag>.safetensors and .json."""


def build_model(name: str, *, classes: int, channels: int, size: int, seed: int = 0, **options: Any) -> nn.Module:
    """Return an untrained model; its initial weights depend on the seed alone."""
    checked = model_options(name, options)
    with seeded(seed):
        return MODELS.entry(name).factory(classes=classes, channels=channels, size=size, **checked)


def model_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a model, defaults filled in, or say which one is wrong."""
    given = frozenset({"classes", "channels", "size"})
    return validate_options(MODELS.entry(name).factory, options, where=f"model '{name}'", given=given)


def load_model(
    name: str, *, data: str = "toys", weights: Path | str | None = None, device: str = "auto", **options: Any
) -> nn.Module:
    """Return a trained model, ready to be evaluated; 'cnn:b' is the cnn with tag b, 'cnn' the one with the first tag.

    The weights are the shipped ones for `data`, or those of a file. Options given here win over those of the training.
    """
    model, _, tag = name.partition(":")
    MODELS.entry(model)
    path = find_shipped(model, tag, data) if weights is None else Path(weights)
    return load_weights(path, model=model, tag=tag, **options).to(pick_device(device))


def load_weights(path: Path, *, model: str = "", tag: str = "", **options: Any) -> nn.Module:
    """Return the model that a file and its card describe, in eval mode; `model` and `tag` are what it should be."""
    tensors = read_tensors(path)
    card = read_card(card_file(path))
    if (model or card.model, tag or card.tag) != (card.model, card.tag):
        wanted = f"{model}:{tag}" if tag else model
        raise UserError(f"{path}: weights of another model: its card says '{card.name}', not '{wanted}'.")
    network = build_model(
        card.model, classes=card.classes, channels=card.channels, size=card.size, **{**card.options, **options}
    )
    fill(network, tensors, where=str(path))
    if digest_of(network.state_dict()) != card.digest:
        raise UserError(f"{path}: the weights are not those that its card describes (their digests differ).")
    return network.eval().requires_grad_(requires_grad=False)


def trained_card(name: str, *, data: str, weights: Path | str | None) -> Card:
    """Return the card of the weights that `load_model` would take."""
    model, _, tag = name.partition(":")
    return read_card(card_file(find_shipped(model, tag, data) if weights is None else Path(weights)))


def trained_options(name: str, *, data: str, weights: Path | str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options that `load_model` would build a model with: its card's, and those given over them."""
    card = trained_card(name, data=data, weights=weights)
    return model_options(card.model, {**card.options, **options})


def shipped() -> list[Card]:
    """Return the cards of all shipped weights, in order of data, model and tag."""
    cards = [read_card(path) for path in WEIGHTS.glob("*/*.json")]
    return sorted(cards, key=lambda card: (card.data, card.model, card.tag))


def find_shipped(model: str, tag: str, data: str) -> Path:
    """Return the file of shipped weights; the first tag where none is asked for."""
    cards = shipped()
    for card in cards:
        if (card.model, card.data) == (model, data) and tag in ("", card.tag):
            return WEIGHTS / data / f"{card.stem}.safetensors"
    there = ", ".join(f"{card.name} ({card.data})" for card in cards) or "none"
    wanted = f"{model}:{tag}" if tag else model
    raise UserError(
        f"no weights are shipped for model '{wanted}' on data '{data}'; there are: {there}. "
        f"Train your own: robustcaps train {model} --data {data}; then load_model('{model}', weights=FILE)."
    )
