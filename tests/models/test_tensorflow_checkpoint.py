from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcaps.errors import UserError
from robustcaps.models.tensorflow_checkpoint import open_checkpoint
from tests.tensorflow_files import block, crc, field, table, write_checkpoint

RANDOM = np.random.default_rng(0)
VARIABLES: dict[str, np.ndarray] = {
    "conv1/weights": RANDOM.normal(size=(2, 3)).astype(np.float32),
    "conv1/biases": RANDOM.normal(size=3),
    "convCaps0/weights": RANDOM.normal(size=(1, 1, 4)).astype(np.float32),
    "global_step": np.array(7, np.int64),
    "empty": np.zeros((0, 2), np.float32),
}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "model.ckpt-1", VARIABLES)
    return tmp_path / "model.ckpt-1"


@pytest.mark.parametrize("end", ["", ".index", ".data-00000-of-00001", ".meta"])
def test_variables_come_back_by_any_name_of_the_checkpoint(prefix, end):
    checkpoint = open_checkpoint(prefix.with_name(prefix.name + end))
    assert checkpoint.variables.keys() == VARIABLES.keys()
    for name, array in VARIABLES.items():
        np.testing.assert_array_equal(checkpoint.read(name), array)
        assert checkpoint.read(name).dtype == array.dtype
    assert str(checkpoint.variables["conv1/weights"]) == "conv1/weights (2, 3)"


def test_a_folder_leads_to_its_newest_or_only_checkpoint(prefix):
    assert open_checkpoint(prefix.parent).prefix == prefix
    write_checkpoint(prefix.with_name("model.ckpt-20"), VARIABLES)
    with pytest.raises(UserError, match=r"expected one .*found: model.ckpt-1.index, model.ckpt-20.index"):
        open_checkpoint(prefix.parent)
    state = prefix.with_name("checkpoint")
    state.write_text('model_checkpoint_path: "/home/them/model.ckpt-20"\nall_model_checkpoint_paths: "model.ckpt-1"\n')
    assert open_checkpoint(prefix.parent).prefix.name == "model.ckpt-20"
    state.write_text('model_checkpoint_path: "model.ckpt-3"\n')
    with pytest.raises(UserError, match=r"names 'model\.ckpt-3', but there is no"):
        open_checkpoint(prefix.parent)
    state.write_text("nothing")
    with pytest.raises(UserError, match="does not name a model_checkpoint_path"):
        open_checkpoint(prefix.parent)


def edited(position: int) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[position] ^= 1
        path.write_bytes(content)

    return edit


ENTRY = field(1, 1) + field(2, field(2, field(1, 3))) + field(5, 12)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (Path.unlink, r"index: no such file; expected the index"),
        (lambda path: path.write_bytes(b""), "shorter than its footer"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "wrong magic number"),
        (lambda path: path.write_bytes(path.read_bytes()[60:]), "lies outside|wrong checksum"),
        (edited(3), "a block has a wrong checksum"),
        (edited(-1), "wrong magic number"),
        (lambda path: path.write_bytes(table([(b"a", ENTRY)])), "it has no header"),
        (lambda path: path.write_bytes(table([(b"", b"")])), "declares 0 shards"),
        (lambda path: path.write_bytes(table([(b"", field(1, 1) + field(2, 1))])), "big-endian"),
        (lambda path: path.write_bytes(table([(b"", field(1, 1)), (b"b", ENTRY), (b"a", ENTRY)])), "not in order"),
        (lambda path: path.write_bytes(table([(b"", field(1, 1)), (b"\xff", ENTRY)])), "not UTF-8"),
        (lambda path: path.write_bytes(table([(b"", field(1, 1)), (b"a", b"\xff")])), "a number is truncated"),
        (lambda path: path.write_bytes(table([(b"", field(1, 1)), (b"a", ENTRY[:-1])])), "a number is truncated"),
        (lambda path: path.write_bytes(table([(b"", field(1, 1)), (b"a", ENTRY + field(5, 11))])), "do not fit its sh"),
        (lambda path: path.write_bytes(table([(b"", field(1, 1)), (b"a", ENTRY + field(3, 1))])), "impossible place"),
        (lambda path: path.write_bytes(table([(b"", field(1, 1)), (b"a", ENTRY + field(4, -1))])), "impossible place"),
    ],
)
def test_a_damaged_index_is_one_line(prefix, damage, problem):
    damage(prefix.with_name(f"{prefix.name}.index"))
    with pytest.raises(UserError, match=problem) as caught:
        open_checkpoint(prefix)
    assert str(prefix) in str(caught.value) and "\n" not in str(caught.value)


def test_compressed_blocks_are_refused(prefix):
    index = prefix.with_name(f"{prefix.name}.index")
    content = table([(b"", field(1, 1))])
    plain, packed = block([(b"", field(1, 1))]), block([(b"", field(1, 1))], compression=1)
    assert content.startswith(plain)
    index.write_bytes(packed + content[len(plain) :])
    with pytest.raises(UserError, match="a block is compressed"):
        open_checkpoint(prefix)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (Path.unlink, "data-00000-of-00001: cannot be read: No such file"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            "truncated: 1 bytes of variable 'global_step' are missing",
        ),
        (lambda path: path.write_bytes(b""), "truncated: .* are missing"),
        (edited(0), "damaged: variable '.*' has a wrong checksum"),
        (edited(-1), "damaged: variable '.*' has a wrong checksum"),
    ],
)
def test_a_damaged_shard_is_one_line(prefix, damage, problem):
    checkpoint = open_checkpoint(prefix)
    damage(prefix.with_name(f"{prefix.name}.data-00000-of-00001"))
    with pytest.raises(UserError, match=problem):
        _ = [checkpoint.read(name) for name in VARIABLES]


def test_the_older_format_is_named(tmp_path):
    (tmp_path / "model.ckpt-1").write_bytes(b"table")
    with pytest.raises(UserError, match=r"not a V2 checkpoint: there is no model\.ckpt-1\.index"):
        open_checkpoint(tmp_path / "model.ckpt-1")


def test_slices_and_strings_are_refused_when_they_are_read(prefix):
    entries = [(b"", field(1, 1)), (b"a", ENTRY + field(7, b"")), (b"b", field(1, 7) + field(5, 3))]
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(entries))
    checkpoint = open_checkpoint(prefix)
    for name in ("a", "b"):
        with pytest.raises(UserError, match=f"variable '{name}' has an unsupported type or is stored in slices"):
            checkpoint.read(name)


@given(header=st.binary(max_size=12), entry=st.binary(max_size=30))
def test_messages_of_any_content_never_end_in_a_traceback(tmp_path_factory, header, entry):
    path = tmp_path_factory.mktemp("checkpoint") / "m.index"
    for pairs in ([(b"", header)], [(b"", field(1, 1)), (b"a", entry)]):
        path.write_bytes(table(pairs))
        with suppress(UserError):
            open_checkpoint(path)


@given(data=st.data())
def test_random_damage_never_ends_in_a_traceback(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder / "m", {"a": VARIABLES["conv1/weights"]}, checksum=crc)
    path = folder / "m.index"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(UserError):
        checkpoint = open_checkpoint(path)
        for name in checkpoint.variables:
            checkpoint.read(name)
