"""The fifty figures: ten of each category, each a list of convex parts."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from robustcaps.data.toys.parts import Part, normalised
from robustcaps.data.toys.shapes import animals, cars, humans, planes, trucks

INSTANCES_PER_CATEGORY = 10


@dataclass(frozen=True)
class Figure:
    """A figure that stands on z = 0 and fits into a sphere of radius 1."""

    name: str
    parts: tuple[Part, ...]

    @property
    def height(self) -> float:
        """How high the figure is."""
        return max(float(part.centre[2] + part.reach()[2]) for part in self.parts)


@functools.cache
def figures() -> tuple[Figure, ...]:
    """Return all figures, the ten instances of each category after one another, in the order of the labels."""
    rooms = (animals.FIGURES, humans.FIGURES, planes.FIGURES, trucks.FIGURES, cars.FIGURES)
    return tuple(Figure(build.__name__, tuple(normalised(build()))) for room in rooms for build in room)
