"""The rules that an attack can break, each with its name in the rows and a sentence for tables and reports.

This module imports no torch, so that tables and reports can use it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Violation(StrEnum):
    """A rule that an attack broke; the value is what the `violation` column of the rows holds."""

    sentence: str
    """What the attack did, to be read after its name."""

    def __new__(cls, name: str, sentence: str) -> Self:
        """Return a member that equals its name and carries a sentence."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.sentence = sentence
        return member

    NOT_A_TENSOR = "not-a-tensor", "returned something other than a plain tensor"
    WRONG_SHAPE = "wrong-shape", "returned images of a different shape or number"
    WRONG_DTYPE = "wrong-dtype", "returned images of a different dtype"
    WRONG_DEVICE = "wrong-device", "returned images on a different device"
    NOT_FINITE = "not-finite", "returned an image that contains NaN or infinity"
    OUTSIDE_BOX = "outside-box", "returned an image with pixels below 0 or above 1"
    OUTSIDE_BALL = "outside-ball", "returned an image farther than eps from the original"
    NO_PARAMETERS = "no-parameters", "returned no parameters of the transformations that made its images"
    OUTSIDE_RANGE = "outside-range", "returned an image of a transformation beyond eps"
    OTHER_IMAGE = "other-image", "returned an image that its transformation does not give"
    WRONG_ORDER = "wrong-order", "returned images in a different order than the samples"
    CHANGED_INPUTS = "changed-inputs", "modified the images or labels in place"
    CHANGED_WEIGHTS = "changed-weights", "modified the model's weights"
    CHANGED_BUFFERS = "changed-buffers", "modified the model's buffers"
    CHANGED_STRUCTURE = "changed-structure", "modified the model's layers, methods, classes, hooks or settings"
    CHANGED_MODE = "changed-mode", "left the model or one of its modules in a different mode (train or eval)"
    CHANGED_REQUIRES_GRAD = "changed-requires-grad", "changed requires_grad of the model's weights"
    CHANGED_COUNTS = "changed-counts", "modified the counts of its own forward and backward passes"
    CHANGED_GRAD_MODE = "changed-grad-mode", "left autograd switched on or off"
    CHANGED_GLOBAL_RNG = (
        "changed-global-rng",
        "used the global random state of torch, numpy or Python instead of `draws`",
    )
    CHANGED_TORCH_SETTINGS = (
        "changed-torch-settings",
        "changed torch's default dtype, default device, number of threads or precision",
    )
    RAISED = "raised", "raised an exception"
    EXITED = "exited", "ended its process"
    TIMED_OUT = "timed-out", "exceeded its time limit"
    FLOODED_OUTPUT = "flooded-output", "printed more than a megabyte"


CELL_VIOLATIONS = frozenset({Violation.RAISED, Violation.EXITED, Violation.TIMED_OUT, Violation.FLOODED_OUTPUT})
"""Violations that make a whole cell fail, so that it has no rows."""

ROW_VIOLATIONS = frozenset(Violation) - CELL_VIOLATIONS
"""Violations that make single rows invalid; an invalid sample counts as not fooled."""

_SENTENCES = {str(violation): violation.sentence for violation in Violation}


def describe_violation(name: str) -> str:
    """Return the sentence of a violation by name; an unknown name, from another version, is returned unchanged."""
    return _SENTENCES.get(name, name)
