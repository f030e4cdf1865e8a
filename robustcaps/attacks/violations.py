"""Every rule an attack can break, by name. A broken rule fools nobody; it is told in tables, reports and failures."""

from __future__ import annotations

IN_ROWS = {
    "not-a-tensor": "returned something that is no plain tensor, or nothing at all",
    "wrong-shape": "returned images of another shape, or another number of them",
    "wrong-dtype": "returned images of another dtype",
    "wrong-device": "returned images on another device",
    "not-finite": "returned an image with NaN or infinity in it",
    "outside-box": "returned an image with pixels below 0 or above 1",
    "outside-ball": "returned an image farther from the original than eps",
    "wrong-order": "returned an image in the place of another: outside its own ball, inside that of another sample",
    "changed-inputs": "changed the images or labels it was given",
    "changed-weights": "changed the model's weights",
    "changed-buffers": "changed the model's buffers",
    "changed-structure": "changed the model's layers, methods, classes, hooks or settings",
    "changed-mode": "left the model, or a part of it, in another mode (train or eval)",
    "changed-requires-grad": "left weights with another requires_grad",
    "changed-counts": "changed what is counted of its passes",
    "changed-grad-mode": "left autograd switched off, or on",
    "changed-global-rng": "drew from or seeded the generators of torch, numpy or Python; `draws` is there for that",
    "changed-torch-settings": "left torch with another default dtype or device, number of threads, or precision",
}
"""What makes the rows it is found in invalid; the others of its cell count."""

IN_CELLS = {
    "raised": "raised an exception",
    "exited": "ended its process",
    "timed-out": "did not end within its time limit",
    "flooded-output": "printed more than a megabyte",
}
"""What makes a whole cell fail: it has no rows."""

VIOLATIONS = {**IN_ROWS, **IN_CELLS}
