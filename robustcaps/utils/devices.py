"""Selection of the torch device."""

from __future__ import annotations

import torch

from robustcaps.errors import UserError


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
