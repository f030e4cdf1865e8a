"""What travels to the workers of a cluster: the plugins with the modules they import, and the weights of files."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from robustcaps.errors import UserError
from robustcaps.models.cards import card_path
from robustcaps.suite.cell import AttackTask, Cell
from robustcaps.suite.spec import ModelSpec
from robustcaps.utils.code_digest import PACKAGE, Root, reachable_files


@dataclass(frozen=True)
class Plugin:
    """A plugin file and the modules that it imports from its folder, by their paths relative to it."""

    name: str
    files: Mapping[str, bytes]

    @classmethod
    def pack(cls, path: Path) -> Plugin:
        """Read a plugin and what it imports, unless that is installed: the workers have it installed, too."""
        main = path.resolve()
        found = reachable_files([main], (Root(main.parent, is_plugin=True),))
        places = {file: _relative_path(file, main.parent) for file in found}
        return cls(main.name, {place: file.read_bytes() for file, place in places.items() if place is not None})

    def unpack(self, folder: Path) -> Path:
        """Write the files into a folder from which they can be imported, and return the plugin's path."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        sys.path.insert(0, str(folder))
        return folder / self.name


def _relative_path(file: Path, folder: Path) -> str | None:
    """Return the path of a file below the plugin's folder, else below the entry of sys.path that has it."""
    roots = [folder, *sorted((Path(entry).resolve() for entry in sys.path), key=lambda root: -len(root.parts))]
    return next((file.relative_to(root).as_posix() for root in roots if file.is_relative_to(root)), None)


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights and its model card."""

    name: str
    weights: bytes
    card: bytes

    @classmethod
    def pack(cls, path: Path) -> WeightsFile:
        """Read a file of weights and the card beside it."""
        try:
            return cls(path.name, path.read_bytes(), card_path(path).read_bytes())
        except OSError as error:
            raise UserError(f"weights {path}: cannot be read: {error.strerror}.") from error

    def unpack(self, folder: Path) -> Path:
        """Write both into a folder of their own below another one, and return the path of the weights."""
        path = folder / hashlib.sha256(self.weights + self.card).hexdigest()[:16] / self.name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            card_path(path).write_bytes(self.card)
            path.write_bytes(self.weights)
        return path


def weights_paths(cell: Cell) -> list[Path]:
    """Return the files of weights that a cell needs."""
    specs: Sequence[ModelSpec] = (cell.model, *cell.task.surrogates.values())
    return list(dict.fromkeys(spec.weights for spec in specs if spec.weights is not None))


def with_weights(cell: Cell, places: Mapping[Path, Path]) -> Cell:
    """Return a cell that reads its weights from other places."""

    def moved(spec: ModelSpec) -> ModelSpec:
        return spec if spec.weights is None else spec.model_copy(update={"weights": places[spec.weights]})

    surrogates: dict[str, Any] = {name: moved(spec) for name, spec in cell.task.surrogates.items()}
    task = replace(cell.task, surrogates=surrogates) if isinstance(cell.task, AttackTask) else cell.task
    return replace(cell, model=moved(cell.model), task=task)


@cache
def package_digest() -> str:
    """Return a digest of the source of this package: rows must come from the code that their cell's id stands for."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        digest.update(
            f"{file.relative_to(PACKAGE).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode()
        )
    return digest.hexdigest()
