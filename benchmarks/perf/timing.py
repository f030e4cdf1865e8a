"""How long something takes: medians, and things to be compared taking turns, since machines are noisy."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Action = Callable[[], object]
Name = TypeVar("Name")

ROUNDS = 3
TURN = 0.3
"""Seconds for which a quick action is repeated when its turn has come."""
IDLE = 0.5
"""The load average up to which a machine is idle enough for times to mean something."""


def seconds(action: Action, repeats: int = 5) -> float:
    """Return the median time of an action over some repeats, after one to warm up."""
    action()
    return statistics.median(stopwatch(action) for _ in range(repeats))


def side_by_side(actions: Mapping[Name, Action]) -> dict[Name, float]:
    """Return the median time of each action; they take turns, so that a slower minute hits them all."""
    times: dict[Name, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            end = time.perf_counter() + TURN
            times[name].append(stopwatch(action))
            while time.perf_counter() < end:
                times[name].append(stopwatch(action))
    return {name: statistics.median(taken) for name, taken in times.items()}


def stopwatch(action: Action) -> float:
    """Return the seconds that an action takes once."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def load_average() -> float:
    """Return how many processes have been running on average in the last minute."""
    return os.getloadavg()[0]
