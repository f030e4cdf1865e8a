from __future__ import annotations

import pytest

from robustcaps.utils.files import write_atomically


@pytest.mark.parametrize("content", ["a line\n", b"\x00\xff"])
def test_a_file_is_written_or_replaced_whole(tmp_path, content):
    path = tmp_path / "file"
    path.write_text("old and longer than the new content")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises(OSError, match="file"):
        write_atomically(path, "new")
    assert list(tmp_path.iterdir()) == [path]
