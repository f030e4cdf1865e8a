"""The fifty figures: ten of each category, each a list of convex parts.

Within a category the order decides who is seen in training (4, 6, 7, 8, 9) and who is not, as in smallNORB: the more
unusual shapes are, so that an unseen figure always has some relative among the seen ones.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from robustcaps.data.toys.parts import Part, normalised
from robustcaps.data.toys.shapes import animals, cars, humans, planes, trucks

INSTANCES_PER_CATEGORY = 10

_CAR_SIZE = 0.74
"""Cars are smaller than trucks; at equal size, unseen instances are confused too often."""


@dataclass(frozen=True)
class Figure:
    """A figure that stands on z = 0 and fits into a sphere of radius 1."""

    name: str
    parts: tuple[Part, ...]

    @property
    def height(self) -> float:
        """Height of the figure."""
        return max(float(part.centre[2] + part.reach()[2]) for part in self.parts)


@functools.cache
def figures() -> tuple[Figure, ...]:
    """Return all figures, the ten instances of each category after one another, in the order of the labels."""
    rooms = ((animals, 1.0), (humans, 1.0), (planes, 1.0), (trucks, 1.0), (cars, _CAR_SIZE))
    return tuple(
        Figure(build.__name__, tuple(normalised(build(), size))) for room, size in rooms for build in room.FIGURES
    )
