"""What there is, by name; and the decorators that add to it."""

from __future__ import annotations

from robustcaps.registry import ATTACKS, DATASETS, DIAGNOSTICS, MODELS

model = MODELS.register
"""Decorator: register a factory (*, classes, channels, size, **options) -> nn.Module as a model."""
dataset = DATASETS.register
"""Decorator: register a factory (*, split, limit, data_dir, progress, **options) -> Data as a dataset."""


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the models, built in and from plugins, that match a wildcard pattern."""
    return MODELS.names(pattern)


def list_datasets(pattern: str = "*") -> list[str]:
    """Return the names of the datasets that match a wildcard pattern."""
    return DATASETS.names(pattern)


def list_attacks(pattern: str = "*") -> list[str]:
    """Return the names of the attacks that match a wildcard pattern."""
    return ATTACKS.names(pattern)


def list_diagnostics(pattern: str = "*") -> list[str]:
    """Return the names of the diagnostics that match a wildcard pattern."""
    return DIAGNOSTICS.names(pattern)
