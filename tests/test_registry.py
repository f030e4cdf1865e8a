from __future__ import annotations

import pytest

from robustcaps.errors import UserError, did_you_mean
from robustcaps.options import options_schema, validate_options
from robustcaps.registry import Registry, load_plugin


def make_registry() -> Registry[str]:
    registry: Registry[str] = Registry("fruit", "robustcaps.errors")

    @registry.register("apple")
    def apple(*, size: int = 3, colour: str = "red") -> str:
        """A round one."""
        return f"{colour} apple of size {size}"

    registry.add("pear", lambda: "pear")
    return registry


def test_names_are_found_or_offered():
    registry = make_registry()
    assert registry.names() == ["apple", "pear"] and registry.names("a*") == ["apple"]
    assert registry.entry("apple").help == "A round one."
    with pytest.raises(UserError, match=r"unknown fruit 'aple'\. Did you mean 'apple'\?"):
        registry.entry("aple")
    with pytest.raises(UserError, match=r"unknown fruit 'xyz'\. Choose from: apple, pear\."):
        registry.entry("xyz")
    registry.add("apple", lambda: "renewed by the same module")
    assert registry.entry("apple").factory() == "renewed by the same module"
    with pytest.raises(UserError, match="fruit 'apple' is registered already"):
        registry.add("apple", dict)


def test_options_come_from_the_signature():
    factory = make_registry().entry("apple").factory
    assert validate_options(factory, {"size": 4}, where="x") == {"size": 4, "colour": "red"}
    assert set(options_schema(factory).model_fields) == {"size", "colour"}
    for options, message in [
        ({"size": "big"}, "x: size: input should be a valid integer"),
        ({"sise": 3}, "x: unknown option 'sise'. Did you mean 'size'?"),
    ]:
        with pytest.raises(UserError) as error:
            validate_options(factory, options, where="x")
        assert message in str(error.value) and "\n" not in str(error.value)


def test_nothing_near_lists_the_choices():
    assert did_you_mean("q", []) == "There is nothing to choose from."
    assert did_you_mean("q", ["b", "a"]) == "Choose from: a, b."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("1 +", "SyntaxError"),
        ("exit()", "SystemExit"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
    ],
)
def test_broken_plugins_are_named(tmp_path, content, message):
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        load_plugin(path)
    assert "mine.py" in str(error.value)
