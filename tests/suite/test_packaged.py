from __future__ import annotations

from pathlib import Path

import pytest

from robustcaps.errors import UserError
from robustcaps.suite.packaged import find_suite, packaged_suites
from robustcaps.suite.spec import load_collection


def test_every_packaged_suite_is_valid_and_has_a_title() -> None:
    suites = packaged_suites()
    assert "quick" in suites
    assert all(load_collection(path).title for path in suites.values())


def test_a_name_is_a_packaged_suite_and_a_path_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_suite("quick") == packaged_suites()["quick"]
    assert find_suite("./quick") == Path("quick")
    assert find_suite("other.toml") == Path("other.toml")
    Path("quick").mkdir()  # an out folder of that name
    assert find_suite("quick") == packaged_suites()["quick"]
    Path("mine").write_text("")
    assert find_suite("mine") == Path("mine")


def test_an_unknown_name_gives_the_choices() -> None:
    with pytest.raises(UserError, match=r"'quik': neither a file nor a packaged suite. Did you mean 'quick'"):
        find_suite("quik")
