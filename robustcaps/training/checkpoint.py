"""Checkpoints: model and optimizer tensors of one epoch in a single file, with settings and log in its header."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from robustcaps.errors import UserError
from robustcaps.models.cards import TrainingSettings, load_tensors, read_tensors, serialize_tensors
from robustcaps.utils.files import write_atomically

LogRow = dict[str, float | str | None]
"""The metrics of one epoch: a row of log.csv."""


def get_number(row: LogRow, name: str) -> float | None:
    """Return a number of the log, or None if it was not measured."""
    value = row.get(name)
    return None if isinstance(value, str) else value


def write_checkpoint(
    path: Path, settings: TrainingSettings, model: nn.Module, optimizer: Optimizer, log: list[LogRow]
) -> None:
    """Write a checkpoint; a single file, so that its parts are always consistent."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"optimizer.{index}.{key}": tensor for index, key, tensor in _optimizer_tensors(optimizer)}
    header = {"settings": settings.model_dump_json(), "log": json.dumps(log)}
    write_atomically(path, serialize_tensors(tensors, header))


def read_settings(path: Path) -> TrainingSettings:
    """Return the settings of a checkpoint's training."""
    return TrainingSettings.parse(_read_header(path, "settings"), where=str(path))


def restore_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer) -> list[LogRow]:
    """Load a checkpoint into model and optimizer; return its log."""
    tensors = read_tensors(path)
    load_tensors(model, _strip_prefix(tensors, "model."), where=str(path))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _strip_prefix(tensors, "optimizer.").items():
        index, key = name.split(".")
        state.setdefault(int(index), {})[key] = _in_layout_of(parameters[int(index)], tensor)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    log: list[LogRow] = _read_header(path, "log")
    return log


def _read_header(path: Path, key: str) -> Any:
    """Return a JSON value from the header of a safetensors file."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()[key])
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: damaged or not a checkpoint; delete it to start again.") from error


def _strip_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _in_layout_of(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Return an optimizer's tensor in the memory layout of its parameter: fused Adam reads both in one order."""
    if tensor.shape != parameter.shape:
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)


def _optimizer_tensors(optimizer: Optimizer) -> Iterator[tuple[int, str, Tensor]]:
    """Yield the optimizer's tensors, each with the index of its parameter and its name."""
    for index, state in optimizer.state_dict()["state"].items():
        for key, tensor in state.items():
            yield index, key, tensor
