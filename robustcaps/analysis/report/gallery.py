"""The gallery: example images of a run as compact data, which the page decodes when it shows them.

Originals have 8 bits. Perturbations have 8 bits of their own range, so that small ones are not rounded away. All bytes
are compressed together.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robustcaps.attacks.example_columns import decode_image

MAX_BYTES = 2_000_000
"""Of larger galleries, compressed, the last samples are left out."""
NAMES = ["data", "model", "attack", "goal", "norm", "unit"]
SERIES = [*NAMES, "target", "seed", "index"]
"""Columns that identify the images of one sample over the eps of one attack."""
STEPS = 127
"""Of a perturbation, on each side of zero."""


def gallery_data(examples: pd.DataFrame, classes: Mapping[str, Sequence[str]]) -> dict[str, Any] | None:
    """Return the gallery of example rows (see `Results.examples`) for JSON; None if there are none.

    samples: what is attacked, with the place of the original in the pixels. series: for every sample and attack the
    prediction before, and after at every eps, with the place of the perturbation and its unit. pixels: all bytes,
    deflated, as base64. left_out: samples that would make the page too large.
    """
    shown = examples[examples["seed"] == examples.groupby(["data", "attack"])["seed"].transform("min")]
    indices = list(dict.fromkeys(shown["index"]))
    for count in range(len(indices), 0, -1):
        gallery = _encode(shown[shown["index"].isin(indices[:count])])
        pixels = base64.b64encode(zlib.compress(bytes(gallery.pixels), 9)).decode()
        if len(pixels) <= MAX_BYTES or count == 1:
            parts = {"samples": gallery.samples, "series": gallery.series, "pixels": pixels}
            return {**parts, "classes": dict(classes), "left_out": len(indices) - count}
    return None


@dataclass
class _Gallery:
    """Samples, series and the bytes of their images."""

    pixels: bytearray = field(default_factory=bytearray)
    samples: list[dict[str, Any]] = field(default_factory=list)
    series: list[dict[str, Any]] = field(default_factory=list)

    def add_pixels(self, values: NDArray[Any]) -> int:
        """Append bytes and return where they start."""
        self.pixels += values.tobytes()
        return len(self.pixels) - values.nbytes


def _encode(examples: pd.DataFrame) -> _Gallery:
    """Return the gallery of rows that have images."""
    gallery = _Gallery()
    places: dict[tuple[Any, Any], int] = {}
    for _, rows in examples.sort_values("eps", kind="stable").groupby(SERIES, sort=False):
        steps = rows.to_dict("records")
        first = steps[0]
        original = _decode(first["original"], first["image_shape"])
        sample = (first["data"], first["index"])
        if sample not in places:
            places[sample] = len(gallery.samples)
            gallery.samples.append(_describe_sample(first, original, gallery))
        gallery.series.append(
            {
                **{name: str(first[name]) for name in NAMES},
                "sample": places[sample],
                "target": int(first["target"]),
                "clean": [int(first["clean_pred"]), _share(first["clean_confidence"])],
                "steps": [_encode_step(step, original, gallery) for step in steps],
            }
        )
    return gallery


def _describe_sample(row: Mapping[Any, Any], original: NDArray[Any], gallery: _Gallery) -> dict[str, Any]:
    """Return a sample's dataset, index, label and shape, and the place of its original."""
    channels, height, width = original.shape
    place = gallery.add_pixels(np.rint(original * 255).astype(np.uint8))
    names = {"data": str(row["data"]), "index": int(row["index"]), "label": int(row["label"])}
    return {**names, "channels": channels, "height": height, "width": width, "at": place}


def _encode_step(row: Mapping[Any, Any], original: NDArray[Any], gallery: _Gallery) -> dict[str, Any]:
    """Return what a sample became at one eps: the perturbation is `unit` times its signed bytes."""
    change = _decode(row["adversarial"], row["image_shape"]) - original
    largest = float(np.abs(change).max())
    steps = np.rint(change / largest * STEPS) if largest else np.zeros_like(change)
    return {
        "eps": float(row["eps"]),
        "to": [int(row["adv_pred"]), _share(row["adv_confidence"])],
        "state": "invalid" if not row["valid"] else "fooled" if row["fooled"] else "held",
        "largest": round(largest, 6),
        "unit": float(f"{largest / STEPS:.6g}"),
        "at": gallery.add_pixels(steps.astype(np.int8)),
    }


def _share(value: Any) -> float | None:
    """Return a probability with four digits, None where there is no answer."""
    return None if pd.isna(value) else round(float(value), 4)


def _decode(content: bytes, shape: str) -> NDArray[np.float64]:
    """Return the visible channels of an image in [0,1]: all three, or the first, which is the left of a stereo pair."""
    image = decode_image(content, shape)
    return image if len(image) == 3 else image[:1]
