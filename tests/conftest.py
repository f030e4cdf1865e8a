from __future__ import annotations

import robustcaps  # noqa: F401  # isort: skip  # before torch: it says how PyTorch's threads wait for work

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robustcaps.data.base import Data
from robustcaps.registry import ATTACKS, DATASETS, DIAGNOSTICS, KINDS, MODELS, Registry
from tests import command_line

# Virtual machines may promise AMX and not have it. oneDNN reads this once, when it first computes, in whichever test.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels for GPUs are tested on the CPU; read when triton is imported

PLUGIN = '''
import torch
from torch import nn
import robustcaps as rc


@rc.dataset("dots")
def dots(*, split, limit, data_dir, progress, classes: int = 3):
    """A tiny dataset: brighter images have higher classes."""
    generator = torch.Generator().manual_seed(0 if split == "test" else 1)
    labels = torch.arange(60) % classes
    noise = torch.rand(60, 1, 6, 6, generator=generator)
    images = 0.2 + 0.15 * noise + 0.2 * labels[:, None, None, None]
    names = tuple(f"level{k}" for k in range(classes))
    return rc.Data(images[:limit], labels[:limit], names, name="dots", split=split)


@rc.model("levels", pretrained=True)
def levels(*, classes, channels, size, sharpness: float = 40.0):
    """Tells the classes of 'dots' by their brightness."""
    1 / sharpness
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))
    with torch.no_grad():
        centre = torch.tensor([0.275 + 0.2 * k for k in range(classes)])
        model[1].weight.copy_(sharpness * centre[:, None].expand_as(model[1].weight) / (size * size))
        model[1].bias.copy_(-0.5 * sharpness * centre**2)
    return model


@rc.attack("darken")
def darken(model, images, labels, eps, share: float = 1.0):
    """Moves all pixels down by eps."""
    return (images - share * eps).clamp(0, 1)


@rc.attack("broken")
def broken(model, images, labels, eps):
    """Always raises."""
    raise RuntimeError("no luck")
'''

SUITE = """
seeds = [0, 1]

[[data]]
use = "dots"
limit = 30

[[models]]
use = "levels"

[[models]]
use = "levels"
name = "blunt"
sharpness = 10.0

[[attacks]]
use = "clean"

[[attacks]]
use = "fgsm"
eps = [0.0, 0.02, 0.05, 0.1]

[[attacks]]
use = "pgd"
eps = [0.0, 0.02, 0.05, 0.1]
steps = 3

[[attacks]]
use = "fgsm"
name = "fgsm to every class"
goal = "targeted"
target = "every"
eps = [0.0, 0.05, 0.1]
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "tiny_plugin.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(SUITE)
    return path


@contextmanager
def restored_registries() -> Iterator[None]:
    """Forget what is registered in this block."""
    kinds: tuple[Registry[Any], ...] = (ATTACKS, DATASETS, DIAGNOSTICS, KINDS, MODELS)
    before = [(kind.names("loaded"), dict(kind._entries))[1] for kind in kinds]
    yield
    for kind, entries in zip(kinds, before, strict=True):
        kind._entries.clear()
        kind._entries.update(entries)


@pytest.fixture
def registries() -> Iterator[None]:
    """What a test registers in this process is forgotten after it."""
    with restored_registries():
        yield


Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line in a process of its own, in an empty folder."""

    def call(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **environment}
        return command_line.call(tuple(map(str, words)), tmp_path, env)

    return call


class TwoClasses(nn.Module):
    """A linear model of two classes with its margin in closed form."""

    def __init__(self, pixels: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.linear = nn.Linear(pixels, 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(2, pixels, generator=generator))
            self.linear.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(images.flatten(1))
        return logits


@pytest.fixture
def linear() -> TwoClasses:
    return TwoClasses(pixels=2 * 5 * 5)


@pytest.fixture
def linear_data(linear: TwoClasses) -> Data:
    """Images far enough from 0 and 1 that no eps up to 0.2 is clipped; labels mostly as the model says."""
    generator = torch.Generator().manual_seed(1)
    images = 0.25 + 0.5 * torch.rand(64, 2, 5, 5, generator=generator)
    with torch.no_grad():
        difference = linear(images)[:, 0] - linear(images)[:, 1]
        linear.linear.bias[0] -= difference.median() + 0.008  # no sample exactly on the boundary
        labels = linear(images).argmax(1)
    labels[:5] = 1 - labels[:5]
    return Data(images, labels, ("no", "yes"), name="line")


@pytest.fixture
def network() -> nn.Module:
    """A small network with batch norm and dropout, in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 6 * 6, 3)
        ).eval()


@pytest.fixture
def network_data(network: nn.Module) -> Data:
    generator = torch.Generator().manual_seed(2)
    images = torch.rand(37, 1, 8, 8, generator=generator)
    with torch.no_grad():
        labels = network(images).argmax(1)
    labels[::9] = (labels[::9] + 1) % 3
    return Data(images, labels, ("a", "b", "c"), name="random")
