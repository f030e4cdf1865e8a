"""What a sweep over ten eps costs together and one eps at a time."""

from __future__ import annotations

from functools import partial

from rich.table import Table

import robustcaps as rc
from benchmarks.perf.timing import side_by_side
from robustcaps.attacks import Attack

SWEEP = [0.01 * k for k in range(1, 11)]
IMAGES = 64


def measure_sweep() -> Table:
    """Return the seconds and the passes per image of both ways."""
    model = rc.load_model("cnn", data="toys", device="cpu")
    data = rc.load_data("toys", limit=IMAGES)
    columns = ("attack", "ten eps in one call s", "one by one s", "ratio", "forwards", "backwards")
    grid = Table(*columns, title=f"cnn, {IMAGES} toys")

    def evaluate(attacks: list[Attack]) -> None:
        for attack in attacks:
            rc.evaluate(model, data, attack)

    for name in ("fgsm", "bim"):
        together = rc.load_attack(name, eps=SWEEP)
        alone = [rc.load_attack(name, eps=eps) for eps in SWEEP]
        taken = side_by_side({"together": partial(evaluate, [together]), "alone": partial(evaluate, alone)})
        cost = rc.evaluate(model, data, together)[["forwards", "backwards"]].sum() / len(data)
        times = (f"{taken['together']:.2f}", f"{taken['alone']:.2f}", f"{taken['alone'] / taken['together']:.1f} x")
        passes = (f"{cost['forwards']:.1f}", f"{cost['backwards']:.1f}")
        grid.add_row(name, *times, *passes)
    return grid
