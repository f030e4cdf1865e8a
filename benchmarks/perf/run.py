"""Speed, measured side by side in one run: what counts is the ratio, since machines are noisy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import robustcaps as rc
from robustcaps.data.toys.factors import sample_factors
from robustcaps.data.toys.render import render
from robustcaps.data.toys.scene import scenes_of

REPEATS = 5
MODELS = ("cnn", "cnn-small", "vector-capsnet-small", "vector-capsnet", "matrix-capsnet-small")
BATCH = 32
SWEEP = [0.01 * k for k in range(1, 11)]


def seconds(action: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of an action over some repeats, after one to warm up."""
    action()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure_models(console: Console) -> None:
    """Print milliseconds per image of a forward pass and of a forward and backward pass."""
    grid = Table("model", "forward ms", "forward+backward ms", "against cnn", title="models, 32x32, per image")
    baseline = 0.0
    for name in MODELS:
        model = rc.build_model(name, classes=5, channels=1, size=32).eval()
        images = torch.rand(BATCH, 1, 32, 32, generator=torch.Generator().manual_seed(0))
        forward = seconds(lambda: _forward(model, images)) / BATCH * 1e3  # noqa: B023
        both = seconds(lambda: _both(model, images)) / BATCH * 1e3  # noqa: B023
        baseline = baseline or both
        grid.add_row(name, f"{forward:.2f}", f"{both:.2f}", f"{both / baseline:.1f} x")
    console.print(grid)


@torch.no_grad()
def _forward(model: torch.nn.Module, images: torch.Tensor) -> None:
    model(images)


def _both(model: torch.nn.Module, images: torch.Tensor) -> None:
    images = images.clone().requires_grad_()
    torch.autograd.grad(model(images).logsumexp(1).sum(), images)


def measure_sweep(console: Console) -> None:
    """Print what a sweep over ten eps costs together and one eps at a time."""
    model = rc.load_model("cnn", data="toys", device="cpu")
    data = rc.load_data("toys", limit=200)
    grid = Table(
        "attack", "ten eps in one call s", "one by one s", "ratio", "forwards", "backwards", title="cnn, 200 toys"
    )
    for name in ("fgsm", "bim"):
        together = rc.load_attack(name, eps=SWEEP)
        alone = [rc.load_attack(name, eps=eps) for eps in SWEEP]
        one_call = seconds(lambda: rc.evaluate(model, data, together), repeats=3)  # noqa: B023
        each = seconds(lambda: [rc.evaluate(model, data, attack) for attack in alone], repeats=3)  # noqa: B023
        cost = rc.evaluate(model, data, together)[["forwards", "backwards"]].sum() / len(data)
        passes = (f"{cost['forwards']:.1f}", f"{cost['backwards']:.1f}")
        grid.add_row(name, f"{one_call:.2f}", f"{each:.2f}", f"{each / one_call:.1f} x", *passes)
    console.print(grid)


def measure_drawing(console: Console) -> None:
    """Print how many toys one core draws in a second."""
    samples = torch.arange(90).numpy()
    scenes = scenes_of(sample_factors("train", samples), "left")
    rate = len(samples) / seconds(lambda: render(scenes))
    console.print(f"toys: {rate:.0f} images of 96x96 a second and core")


def main() -> None:
    """Measure everything."""
    console = Console(width=120)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    measure_drawing(console)
    measure_models(console)
    measure_sweep(console)


if __name__ == "__main__":
    main()
