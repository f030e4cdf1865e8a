"""The torch device: its selection and its memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from robustcaps.errors import UserError

Result = TypeVar("Result")


def pick_device(name: str = "auto") -> torch.device:
    """Return the named device; 'auto' takes cuda, then mps, then cpu."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{name}' is not available: {str(error).splitlines()[0]}") from error
    return device


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the device or the machine has no memory left."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text


def halve_until_it_fits(compute: Callable[[int], Result], batch_size: int) -> tuple[Result, int]:
    """Return what `compute` returns for a batch size, and that size: half as often as memory runs out."""
    while True:
        try:
            return compute(batch_size), batch_size
        except Exception as error:
            if batch_size < 2 or not is_out_of_memory(error):
                raise
        free_memory()  # only now, because the exception holds what was allocated
        batch_size //= 2


def free_memory() -> None:
    """Give memory that is no longer needed back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
