"""The columns that hold example images of attack cells: their names, and how an image is encoded in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

EXAMPLE_COLUMNS = ("original", "adversarial", "clean_confidence", "adv_confidence", "image_shape")
"""Images as bytes, the softmax probability of the predicted class before and after, and the shape, as '1x32x32'."""
EXAMPLE_NAMES = (
    *("model", "data", "attack", "norm", "eps", "unit", "goal", "target", "seed"),
    *("index", "label", "clean_pred", "adv_pred", "fooled", "valid"),
)
"""The columns that say what an example shows."""
PIXEL = np.dtype("<u2")
MAX_PIXEL = np.iinfo(PIXEL).max


def encode_image(image: NDArray[Any]) -> bytes:
    """Return an image (channels, height, width) in [0,1] as little-endian 16-bit integers in C-order."""
    content: bytes = np.rint(np.clip(image, 0, 1) * MAX_PIXEL).astype(PIXEL).tobytes()
    return content


def decode_image(content: bytes, shape: str) -> NDArray[np.float64]:
    """Return the image (channels, height, width) in [0,1] of its bytes and its shape, as '1x32x32'."""
    sizes = [int(size) for size in shape.split("x")]
    image: NDArray[np.float64] = np.frombuffer(content, PIXEL).reshape(sizes) / MAX_PIXEL
    return image
