"""Weights on disk: a safetensors file, and beside it a card that says what they are and how they were made."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import safetensors.torch
import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)
from safetensors import SafetensorError
from torch import Tensor, nn

from robustcaps.errors import UserError
from robustcaps.options import first_problem
from robustcaps.suite.spec import AdversaryEps, AdversarySteps, HoldoutTest, StopError
from robustcaps.utils.files import write_atomically

Share = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """Everything that decides which weights a training ends with."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str
    options: dict[str, Any]
    tag: Annotated[str, Field(pattern="^[a-z0-9]+$")]
    seed: NonNegativeInt
    data: str
    data_options: dict[str, Any] = {}
    """Those that were given, of both splits."""
    data_digest: str
    """SHA-256 of the train samples, held-out ones included."""
    limit: PositiveInt | None
    holdout: NonNegativeInt
    classes: PositiveInt
    channels: PositiveInt
    size: PositiveInt
    class_names: tuple[str, ...]
    epochs: PositiveInt
    batch_size: PositiveInt
    lr: PositiveFloat
    warmup_steps: NonNegativeInt
    final_lr: Share
    clip: PositiveFloat | None
    weight_decay: NonNegativeFloat
    half: bool
    adversary_eps: AdversaryEps | None = None
    adversary_steps: AdversarySteps = None
    holdout_test: HoldoutTest = None
    stop_error: StopError = None

    @classmethod
    def parse(cls, fields: Mapping[str, Any], *, where: str) -> Self:
        """Return validated settings as they will be read back from JSON (a tuple option becomes a list)."""
        try:
            return cls.model_validate_json(cls.model_validate(fields).model_dump_json())
        except ValidationError as error:
            raise UserError(f"{where}: {first_problem(error)}") from error

    @property
    def stem(self) -> str:
        """The file name of the weights, without its ending."""
        return f"{self.model}-{self.tag}"


class Card(Settings):
    """What a file of weights is, how it was made, and how good it is."""

    parameters: PositiveInt
    accuracy: Share
    """On the test split, less what is held out of it, measured with the file as written."""
    n_test: PositiveInt
    interval: tuple[Share, Share]
    """Wilson's, 95 %."""
    validation_accuracy: Share | None
    validation: str
    """Which samples were held out."""
    robust_accuracy: Share | None = None
    """Of adversarial training: on the first 1,000 test samples, under PGD with 20 steps at `adversary_eps`."""
    seconds: NonNegativeFloat
    command: str
    """Trains these weights again."""
    versions: dict[str, str]
    machine: str
    digest: str
    """`digest_of` the model's `state_dict()` as loaded: what the file holds, and not what the code derives from it."""
    date: dt.date

    @property
    def name(self) -> str:
        """What `load_model` takes."""
        return f"{self.model}:{self.tag}"


def card_file(weights: Path) -> Path:
    """Return where the card of a weights file lies."""
    return weights.with_suffix(".json")


def read_card(path: Path) -> Card:
    """Read a card, or say what is wrong with it."""
    try:
        return Card.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}. `robustcaps train` writes it.") from error
    except ValidationError as error:
        raise UserError(f"{path}: not a card of weights: {first_problem(error)}") from error


def write_weights(path: Path, model: nn.Module, *, half: bool) -> None:
    """Write a model's parameters and buffers; `half` stores float16 wherever that holds the numbers."""
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    if half:
        tensors = {name: _halve(tensor) for name, tensor in tensors.items()}
    write_atomically(path, pack(tensors))


def pack(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return tensors as the bytes of a safetensors file; tied ones are stored one by one."""
    layout = torch.contiguous_format
    alone = {name: tensor.detach().cpu().clone(memory_format=layout) for name, tensor in tensors.items()}
    return safetensors.torch.save(alone, metadata)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file of finite numbers, or say what is wrong with it."""
    try:
        tensors = safetensors.torch.load(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    except SafetensorError as error:
        raise UserError(f"{path}: not a whole safetensors file: {error}.") from error
    for name in sorted(tensors):
        if not bool(torch.isfinite(tensors[name]).all()):
            raise UserError(f"{path}: '{name}' holds NaN or infinite numbers.")
    return tensors


def fill(model: nn.Module, tensors: Mapping[str, Tensor], *, where: str) -> None:
    """Copy tensors into a model that must have exactly these names and shapes."""
    slots = model.state_dict()
    missing, foreign = sorted(slots.keys() - tensors.keys()), sorted(tensors.keys() - slots.keys())
    if missing or foreign:
        problems = [f"{word} {_few(names)}" for word, names in (("lacks", missing), ("has also", foreign)) if names]
        raise UserError(f"{where}: weights of another model: the file {' and '.join(problems)}.")
    for name, slot in slots.items():
        if tensors[name].shape != slot.shape:
            there, here = tuple(tensors[name].shape), tuple(slot.shape)
            raise UserError(f"{where}: weights of another model: '{name}' is {there} in the file, {here} in the model.")
    model.load_state_dict(dict(tensors))


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 of any model's parameters and buffers."""
    return digest_of({**dict(model.named_parameters()), **dict(model.named_buffers())})


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors: names, shapes, dtypes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _halve(tensor: Tensor) -> Tensor:
    """Return a float tensor as float16, unless a number would overflow."""
    if not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    return half if bool(torch.isfinite(half).all()) else tensor


def _few(names: list[str]) -> str:
    """Name the first one and how many more there are."""
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
