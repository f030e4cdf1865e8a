"""Weights on disk: a safetensors file and, beside it, a model card (JSON) that records how they were trained."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import safetensors.torch
import torch
from pydantic import BaseModel, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

from robustcaps.errors import UserError
from robustcaps.options import first_problem
from robustcaps.training_options import TrainingOptions
from robustcaps.utils.files import write_atomically

CardType = TypeVar("CardType", bound=BaseModel)
Fraction = Annotated[float, Field(ge=0, le=1)]


class ModelDescription(BaseModel):
    """A model, its options and the dataset that it is trained on."""

    model: str
    options: dict[str, Any]
    tag: Annotated[str, Field(pattern="^[a-z0-9]+$")]
    data: str
    data_options: dict[str, Any] = {}
    """Options set by the user; they apply to both splits."""
    data_digest: str
    """SHA-256 of the training samples, including held-out ones."""
    classes: PositiveInt
    channels: PositiveInt
    size: PositiveInt
    class_names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name that `load_model` accepts, such as 'cnn:a'."""
        return f"{self.model}:{self.tag}"

    @property
    def stem(self) -> str:
        """The name of the weights file without its suffix."""
        return f"{self.model}-{self.tag}"


class TrainingSettings(TrainingOptions, ModelDescription):
    """Everything that determines the weights of a training: the options, completed by the model's recipe."""

    epochs: PositiveInt
    batch_size: PositiveInt
    lr: PositiveFloat
    warmup_steps: NonNegativeInt
    final_lr: Fraction
    clip: PositiveFloat | None
    weight_decay: NonNegativeFloat

    @classmethod
    def parse(cls, fields: Mapping[str, Any], *, where: str) -> Self:
        """Return validated settings in the form in which JSON restores them (tuples become lists)."""
        try:
            return cls.model_validate_json(cls.model_validate(fields).model_dump_json())
        except ValidationError as error:
            raise UserError(f"{where}: {first_problem(error)}") from error


class RoutingVitals(BaseModel):
    """Whether a capsule network's routing is alive, measured on test samples: see `introspection.vitals`."""

    status: Literal["alive", "soft", "inert"]
    n: PositiveInt
    layers: dict[str, dict[str, float]]
    """By layer: normalised assignment entropy, sigma over the floor, share of dead capsules."""
    changed: dict[str, Fraction]
    """By intervention: the share of predictions that it changes."""


class ModelCard(TrainingSettings):
    """The training settings of a weights file, its accuracy and its origin."""

    parameters: PositiveInt
    accuracy: Fraction
    """On the test split without held-out samples, measured with the stored weights."""
    n_test: PositiveInt
    interval: tuple[Fraction, Fraction]
    """95 % Wilson confidence interval of the accuracy."""
    validation_accuracy: Fraction | None
    validation: str
    """Description of the validation samples."""
    robust_accuracy: Fraction | None = None
    """After adversarial training: on the first 1,000 test samples, under PGD with 20 steps at `adversary_eps`."""
    routing: RoutingVitals | None = None
    """The vital signs of routing, of capsule networks."""
    seconds: NonNegativeFloat
    command: str
    """The command that reproduces the training."""
    versions: dict[str, str]
    machine: str
    digest: str
    """`tensors_digest` of the loaded model's `state_dict()`; excludes buffers that are derived from options."""
    date: dt.date


class ImportedCard(ModelDescription):
    """The origin of weights that were trained elsewhere; their accuracy is known only once it was measured here."""

    source: str
    """Who trained the weights, and where they were published."""
    source_digests: dict[str, str]
    """SHA-256 of the files that were imported."""
    variables: dict[str, str]
    """The name in those files of each part of the network."""
    unused: tuple[str, ...] = ()
    """Variables of those files that the network does not use."""
    parameters: PositiveInt
    accuracy: Fraction | None
    """On the test split, measured with the stored weights; None if it was not measured."""
    n_test: PositiveInt | None
    interval: tuple[Fraction, Fraction] | None
    """95 % Wilson confidence interval of the accuracy."""
    evaluation: str
    """What the accuracy was measured on, or why it was not."""
    command: str
    """The command that imported the weights."""
    versions: dict[str, str]
    machine: str
    digest: str
    """As in `ModelCard`."""
    date: dt.date


def card_path(weights: Path) -> Path:
    """Return the path of the card of a weights file."""
    return weights.with_suffix(".json")


def read_card(path: Path) -> ModelCard:
    """Read the card of weights that were trained here; raise `UserError` if it is missing or invalid."""
    return _read_card(ModelCard, path)


def read_any_card(path: Path) -> ModelCard | ImportedCard:
    """Read the card of weights that were trained here or imported."""
    _check_regular(path)
    try:
        imported = "source_digests" in json.loads(path.read_bytes())
    except (OSError, ValueError, TypeError):
        imported = False  # reported below
    return _read_card(ImportedCard, path) if imported else read_card(path)


def _check_regular(path: Path) -> None:
    """Refuse to read a pipe, a device or a folder as a card."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a regular file; a model card is a JSON file.")


def _read_card(kind: type[CardType], path: Path) -> CardType:
    """Read a card of this kind."""
    _check_regular(path)
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such file; weights of the zoo need their model card beside them, as `robustcaps train` "
            "writes it. For weights trained elsewhere, register a model of your own (docs/extend/model.md)."
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot read the model card: {error.strerror}.") from error
    except ValidationError as error:
        raise UserError(f"{path}: invalid model card: {first_problem(error)}") from error


def write_weights(path: Path, model: nn.Module, *, half: bool) -> None:
    """Write a model's parameters and buffers; `half` stores float16 unless a value would overflow."""
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    if half:
        tensors = {name: _to_half(tensor) for name, tensor in tensors.items()}
    write_atomically(path, serialize_tensors(tensors))


def serialize_tensors(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return tensors as the bytes of a safetensors file; tied tensors are stored separately."""
    layout = torch.contiguous_format
    separate = {name: tensor.detach().cpu().clone(memory_format=layout) for name, tensor in tensors.items()}
    return safetensors.torch.save(separate, metadata)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raise `UserError` if it is damaged or contains non-finite values."""
    if path.exists() and not path.is_file():  # reading a pipe or a device may never end
        raise UserError(f"{path}: not a regular file; weights are a safetensors file.")
    try:
        tensors = safetensors.torch.load(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot read the weights: {error.strerror}.") from error
    except SafetensorError as error:
        hint = " A checkpoint of PyTorch belongs into a model of your own (docs/extend/model.md)." * (
            path.suffix in (".pt", ".pth", ".ckpt", ".bin")
        )
        raise UserError(f"{path}: not a complete safetensors file: {error}.{hint}") from error
    for name in sorted(tensors):
        if not bool(torch.isfinite(tensors[name]).all()):
            raise UserError(f"{path}: '{name}' contains NaN or infinite values.")
    return tensors


def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor], *, where: str) -> None:
    """Copy tensors into a model that must have exactly these names and shapes."""
    expected = model.state_dict()
    missing, unexpected = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unexpected:
        problems = (("is missing", missing), ("unexpectedly has", unexpected))
        text = " and ".join(f"{verb} {_summarise_names(names)}" for verb, names in problems if names)
        raise UserError(f"{where}: weights of a different model: the file {text}.")
    for name, tensor in expected.items():
        if tensors[name].shape != tensor.shape:
            shapes = f"{tuple(tensors[name].shape)} in the file, {tuple(tensor.shape)} in the model"
            raise UserError(f"{where}: weights of a different model: '{name}' is {shapes}.")
    model.load_state_dict(dict(tensors))


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 of any model's parameters and buffers."""
    return tensors_digest({**dict(model.named_parameters()), **dict(model.named_buffers())})


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names, shapes, dtypes and bytes of tensors, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _to_half(tensor: Tensor) -> Tensor:
    """Return a float tensor as float16, unless a value would overflow."""
    if not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    return half if bool(torch.isfinite(half).all()) else tensor


def _summarise_names(names: list[str]) -> str:
    """Return the first name and the number of others."""
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
