"""Files to start a plugin from: they work as they are, and are the user's own from then on."""

from __future__ import annotations

import re
from pathlib import Path

from robustcaps.errors import UserError
from robustcaps.registry import ATTACKS

TEMPLATES = Path(__file__).parent


def write_attack(name: str, folder: Path) -> list[Path]:
    """Write a working attack and its test into a folder; nothing that is there is overwritten."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UserError(f"new attack '{name}': a name is made of small letters, digits and single hyphens: my-attack.")
    if ATTACKS.names(name):
        raise UserError(f"new attack '{name}': there is an attack of that name already; choose another.")
    function = name.replace("-", "_")
    files = {"attack.py.txt": folder / f"{function}.py", "test_attack.py.txt": folder / f"test_{function}.py"}
    for path in files.values():
        if path.exists():
            raise UserError(f"new attack '{name}': {path} exists already.")
    folder.mkdir(parents=True, exist_ok=True)
    words = {"name": name, "function": function, "file": f"{function}.py", "test_file": f"test_{function}.py"}
    for template, path in files.items():
        path.write_text(_filled((TEMPLATES / template).read_text(encoding="utf-8"), words), encoding="utf-8")
    return list(files.values())


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(f"{{{{ {word} }}}}", value)
    return text
