from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from robustcaps.data import load_data
from robustcaps.errors import UserError

DRAWN = np.random.default_rng(0).integers(0, 256, (15, 3072), dtype=np.uint8)
NAMES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
LABELS = [3, 0, 9, 9, 1, 4, 7, 2, 8, 5, 6, 0, 1, 2, 3]


def text(content: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(content)) + content


def official(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 with its numpy pickled it, which is how the official ones came about."""
    shape = b"".join(b"M" + struct.pack("<H", side) for side in pixels.shape) + b"\x86"
    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array = empty + b"(K\x01" + shape + kind + b"K\x00tb\x89" + text(pixels.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def modern(pixels: np.ndarray, labels: list[int]) -> bytes:
    """The same by Python 3, with the columns first."""
    return pickle.dumps({b"data": np.asfortranarray(pixels), b"labels": labels}, protocol=2)


def batch(number: int, write: Callable[[np.ndarray, list[int]], bytes] = official) -> bytes:
    rows = slice(3 * number, 3 * number + 3)
    return write(DRAWN[rows], LABELS[rows])


def write_folder(folder: Path, write: Callable[[np.ndarray, list[int]], bytes] = official) -> None:
    folder.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(batch(number % 5, write))


def write_archive(path: Path, names: tuple[str, ...] = NAMES) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name in reversed(names):
            content = batch(NAMES.index(name) % 5)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_the_pickles_of_these_tests_are_what_numpy_reads() -> None:
    for write in (official, modern):
        read = pickle.loads(batch(0, write), encoding="bytes")  # noqa: S301  it is our own
        np.testing.assert_array_equal(read[b"data"], DRAWN[:3])
        assert read[b"labels"] == LABELS[:3]


@pytest.mark.parametrize(
    "write",
    [
        lambda root: write_archive(root / "cifar10" / "cifar-10-python.tar.gz"),
        lambda root: write_folder(root / "cifar10" / "cifar-10-batches-py"),
        lambda root: write_folder(root / "cifar-10-batches-py"),
        lambda root: write_folder(root / "cifar-10-batches-py", modern),
    ],
    ids=["archive", "unpacked", "elsewhere", "python3"],
)
def test_batches_are_read_wherever_they_lie(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    train, test = (load_data("cifar10", split=split, data_dir=tmp_path) for split in ("train", "test"))
    assert (train.size, train.channels, train.classes) == (32, 3, 10)
    np.testing.assert_array_equal((train.images * 255).round().numpy(), DRAWN.reshape(15, 3, 32, 32))
    assert train.labels.tolist() == LABELS and test.labels.tolist() == LABELS[:3]
    assert test.images.equal(train.images[:3])
    assert test.factors["category"].tolist() == ["cat", "airplane", "truck"]


def test_training_may_move_images_by_four_pixels(tmp_path: Path) -> None:
    write_folder(tmp_path / "cifar-10-batches-py")
    plain, framed = (load_data("cifar10", split="train", data_dir=tmp_path, crop=crop) for crop in (True, False))
    assert (framed.size, framed.images.shape) == (32, (15, 3, 40, 40))
    assert framed.images[..., 4:-4, 4:-4].equal(plain.images)
    assert framed.images.sum().item() == pytest.approx(plain.images.sum().item(), rel=1e-5)


def test_a_limit_takes_the_first_samples(tmp_path: Path) -> None:
    write_folder(tmp_path / "cifar-10-batches-py")
    told: list[tuple[int, int]] = []
    note = lambda done, total: told.append((done, total))
    data = load_data("cifar10", split="train", data_dir=tmp_path, limit=4, progress=note)
    assert data.labels.tolist() == LABELS[:4]
    assert told == [(4, 4)]


def replaced(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def dumped(**entries: object) -> Callable[[Path], object]:
    return replaced(pickle.dumps({name.encode(): entry for name, entry in entries.items()}, protocol=2))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (Path.unlink, "no file 'test_batch' in the folder .*data get cifar10 --data-dir .*CIFAR-10 python version"),
        (replaced(b""), "damaged: not a CIFAR-10 batch"),
        (replaced(batch(0)[:-500]), "damaged: not a CIFAR-10 batch"),
        (replaced(batch(0).replace(b"data", b"dada")), "no byte array 'data' or no 'labels'"),
        (dumped(data=[1, 2], labels=[1, 2]), "no byte array"),
        (dumped(data=np.zeros((2, 3072)), labels=[1, 2]), "no byte array"),
        (dumped(data=DRAWN[:2, 1:], labels=[1, 2]), r"contains \(2, 3071\) bytes and \(2,\) labels"),
        (dumped(data=DRAWN[:2], labels=[1]), r"contains \(2, 3072\) bytes and \(1,\) labels"),
        (dumped(data=DRAWN[:2], labels=[1, 10]), "labels must be integers from 0 to 9"),
        (dumped(data=DRAWN[:2], labels=[1, 2.5]), "labels must be integers from 0 to 9"),
    ],
)
def test_what_is_wrong_with_a_batch_is_said_in_one_line(
    tmp_path: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    folder = tmp_path / "cifar10" / "cifar-10-batches-py"
    write_folder(folder)
    damage(folder / "test_batch")
    with pytest.raises(UserError, match=complaint) as caught:
        load_data("cifar10", data_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "call"),
    [
        ("os.system", b"cos\nsystem\n(S'touch {}'\ntR."),
        ("builtins.exec", b'cbuiltins\nexec\n(S\'open("{}", "w")\'\ntR.'),
        ("numpy.fromfile", b"cnumpy\nfromfile\n(S'{}'\ntR."),
        ("numpy.ndarray.tofile", b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."),
    ],
)
def test_a_pickle_that_asks_for_anything_else_is_refused_and_nothing_is_called(
    tmp_path: Path, asked: str, call: bytes
) -> None:
    folder, trace = tmp_path / "cifar-10-batches-py", tmp_path / "trace"
    write_folder(folder)
    (folder / "test_batch").write_bytes(call.replace(b"{}", str(trace).encode()))
    with pytest.raises(UserError, match=f"test_batch: refers to {asked}, which no CIFAR-10 batch does"):
        load_data("cifar10", data_dir=tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-200]), "damaged: "),
        (lambda path: path.write_bytes(b"no archive"), "damaged: "),
        (lambda path: path.write_bytes(gzip.compress(b"no archive")), "damaged: "),
        (lambda path: write_archive(path, NAMES[:5]), "does not contain 'cifar-10-batches-py/test_batch'"),
        (Path.unlink, "neither a file .*cifar-10-python.tar.gz nor a folder .*data get cifar10"),
    ],
)
def test_what_is_wrong_with_the_archive_is_said_in_one_line(
    tmp_path: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    archive = tmp_path / "cifar10" / "cifar-10-python.tar.gz"
    write_archive(archive)
    damage(archive)
    with pytest.raises(UserError, match=complaint) as caught:
        load_data("cifar10", data_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert str(archive) in str(caught.value)
