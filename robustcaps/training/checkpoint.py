"""A training at the end of an epoch, in one file: tensors of model and optimizer, settings and log in its header."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor, nn
from torch.optim import Optimizer

from robustcaps.errors import UserError
from robustcaps.models.cards import Settings, fill, pack, read_tensors
from robustcaps.utils.files import write_atomically

Row = dict[str, float | str | None]
"""A line of the log: what an epoch came to."""


def number(row: Row, name: str) -> float | None:
    """Return a number of the log, or None where it was not measured."""
    value = row.get(name)
    return None if isinstance(value, str) else value


def write_checkpoint(path: Path, settings: Settings, model: nn.Module, optimizer: Optimizer, log: list[Row]) -> None:
    """Write the checkpoint; one file, so that its parts always belong together."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"optimizer.{index}.{key}": tensor for index, key, tensor in _moments(optimizer)}
    write_atomically(path, pack(tensors, {"settings": settings.model_dump_json(), "log": json.dumps(log)}))


def read_settings(path: Path) -> Settings:
    """Return the settings that a checkpoint was made with."""
    return Settings.parse(_header(path, "settings"), where=str(path))


def restore_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer) -> list[Row]:
    """Put model and optimizer back to where the checkpoint left them; return its log."""
    tensors = read_tensors(path)
    fill(model, _part(tensors, "model."), where=str(path))
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _part(tensors, "optimizer.").items():
        index, key = name.split(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    log: list[Row] = _header(path, "log")
    return log


def _header(path: Path, key: str) -> Any:
    """Return a JSON value of a safetensors file's header."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()[key])
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: damaged, or not a checkpoint; delete it to begin anew.") from error


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _moments(optimizer: Optimizer) -> Iterator[tuple[int, str, Tensor]]:
    """Yield the optimizer's own tensors, each with the number of its parameter."""
    for index, state in optimizer.state_dict()["state"].items():
        for key, tensor in state.items():
            yield index, key, tensor
