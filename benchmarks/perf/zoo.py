"""How long each network of the zoo takes, beside the CNN."""

from __future__ import annotations

from functools import partial

from rich.table import Table

from benchmarks.perf.implementations import attack, batch_of, build, forward
from benchmarks.perf.timing import seconds

MODELS = ("cnn", "cnn-small", "vector-capsnet-small", "vector-capsnet", "matrix-capsnet-small", "matrix-capsnet")
BATCH = 32


def measure_models() -> Table:
    """Return milliseconds per image of a forward pass, and of a forward and backward pass of an attack."""
    grid = Table("model", "forward ms", "attack ms", "against cnn", title="models, 32x32, per image")
    images, labels = batch_of(BATCH)
    baseline = 0.0
    for name in MODELS:
        network = build(name, "robustcaps").eval().requires_grad_(requires_grad=False)
        once = seconds(partial(forward, network, images)) / BATCH * 1e3
        both = seconds(partial(attack, network, images, labels)) / BATCH * 1e3
        baseline = baseline or both
        grid.add_row(name, f"{once:.2f}", f"{both:.2f}", f"{both / baseline:.1f} x")
    return grid
