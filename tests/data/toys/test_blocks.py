from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from robustcaps.data.toys.blocks import BLOCK, cache_folder, draw_blocks
from robustcaps.data.toys.render import render


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Use a fresh cache and note how many pictures each call of the renderer draws."""
    monkeypatch.setenv("ROBUSTCAPS_CACHE", str(tmp_path / "cache"))
    calls: list[int] = []

    def counted(scenes):
        calls.append(len(scenes))
        return render(scenes)

    monkeypatch.setattr("robustcaps.data.toys.blocks.render", counted)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    return calls


def first_pictures(count: int = 5) -> np.ndarray:
    return np.concatenate(list(draw_blocks("test", count, ("left",))))


def test_blocks_come_in_order_and_end_at_the_count(drawn: list[int]) -> None:
    shapes = [block.shape for block in draw_blocks("test", BLOCK + 3, ("left", "right"))]
    assert shapes == [(BLOCK, 2, 96, 96), (3, 2, 96, 96)]
    assert drawn == [BLOCK] * 4


def test_a_block_is_drawn_once(drawn: list[int]) -> None:
    np.testing.assert_array_equal(first_pictures(), first_pictures())
    assert drawn == [BLOCK]
    assert [path.name for path in cache_folder().rglob("*") if path.is_file()] == ["000.npy"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"not an array",
        lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    ],
    ids=["truncated", "empty", "foreign", "flipped bit"],
)
def test_a_damaged_block_is_drawn_again(drawn: list[int], damage: Callable[[bytes], bytes]) -> None:
    expected = first_pictures()
    (path,) = cache_folder().rglob("*.npy")
    sound = path.read_bytes()
    path.write_bytes(damage(sound))
    np.testing.assert_array_equal(first_pictures(), expected)
    assert len(drawn) == 2
    assert path.read_bytes() == sound


def test_a_cache_that_cannot_be_written_costs_one_warning(
    drawn: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = first_pictures()
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ROBUSTCAPS_CACHE", str(tmp_path / "file"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(first_pictures(), expected)
        np.testing.assert_array_equal(first_pictures(BLOCK + 1)[:5], expected)
    assert len(drawn) == 4
    assert [str(warning.message).split(" (")[0] for warning in caught] == [
        f"the toys cache {cache_folder()} is not writable, so images are rendered again each time"
    ]


def test_several_processes_draw_the_same_in_the_same_order(
    drawn: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = list(draw_blocks("test", 2 * BLOCK + 5, ("left", "right")))
    monkeypatch.setenv("ROBUSTCAPS_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    together = list(draw_blocks("test", 2 * BLOCK + 5, ("left", "right")))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(drawn) == 6, "the second time, others drew"


def test_a_reader_may_stop_early(drawn: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    blocks = draw_blocks("test", 50 * BLOCK, ("left",))
    assert len(next(blocks)) == BLOCK
    blocks.close()  # type: ignore[attr-defined]
    assert drawn == []


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROBUSTCAPS_CACHE", str(tmp_path / "chosen"))
    assert cache_folder().parent == tmp_path / "chosen"
    monkeypatch.delenv("ROBUSTCAPS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder().parent == tmp_path / "xdg" / "robustcaps"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder().parent == tmp_path / ".cache" / "robustcaps"
