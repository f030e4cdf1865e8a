"""smallNORB as TFRecords, made from official files."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from robustcaps.data.norb import FILE_NAMES, ROWS, read_header, read_rows
from tests.tensorflow_files import example, record

NAMES = {"train": "trainduo-az.tfrecords", "test": "testduo-az.tfrecords"}


def records_of(folder: Path, split: str) -> Iterator[bytes]:
    """Yield the records of a folder of official files, as the released code writes them."""
    arrays = []
    for kind, row in ROWS.items():
        path = folder / FILE_NAMES[split].format(kind)
        header = read_header(path, *row)
        arrays.append(next(read_rows(path, header, header.shape[0], header.shape[0])))
    for pixels, category, info in zip(*arrays, strict=True):
        sizes = {"height": [96], "width": [96], "depth": [2]}
        content = example(**sizes, label=[int(category)], meta=info.tolist(), image_raw=pixels.tobytes())
        yield record(content)


def archive_of(folder: Path, *, reverse: bool = False) -> bytes:
    """Return a .tar.gz of both files of records."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as tar:
        for split, name in NAMES.items():
            records = list(records_of(folder, split))
            joined = b"".join(records[::-1] if reverse else records)
            member = tarfile.TarInfo(f"smallNORB/{name}")
            member.size = len(joined)
            tar.addfile(member, io.BytesIO(joined))
    return content.getvalue()
