"""A digest of the code that results depend on: the syntax trees of modules and of everything they import.

Comments, docstrings and formatting do not count; imports of third-party packages are not followed.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.machinery
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
"""The folder of this package."""
REGISTRY = Path(__file__).parent.parent / "registry.py"
"""It names the home of everything that can be registered, so it is not followed further."""
MODULE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(:\w+)?")
QUOTED_NAME = re.compile(r"[A-Za-z_]\w*|[\w./-]+\.py")
"""A string that may name a module to import, or a file to execute."""
PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class Root:
    """A folder in which imported modules are looked up."""

    folder: Path
    package: str | None = None
    """Only modules of this package; None takes every module in the folder."""
    is_plugin: bool = False
    """Whether modules elsewhere on sys.path that are not installed, packages above modules, and strings that name a
    module or a file of the folder count, too: a plugin may import in any way."""

    def module_file(self, name: str) -> Path | None:
        """Return the file of a module, or None if it is not below this root."""
        if self.package is not None and name.partition(".")[0] != self.package:
            return None
        found = _file_in(self.folder, name)
        return _file_on_path(name) if found is None and self.is_plugin else found

    def files(self, reference: ImportReference, importer: Path, package: list[str]) -> list[Path]:
        """Return the files below this root that a reference in a file of a package may mean."""
        if reference.is_quoted:
            return self._quoted_files(reference.module, importer) if self.is_plugin else []
        names = reference.names(package)
        if self.is_plugin:
            names += [name.rsplit(".", up)[0] for name in names for up in range(1, name.count(".") + 1)]
        found = (self.module_file(name) for name in dict.fromkeys(names))
        return [file for file in found if file is not None]

    def _quoted_files(self, text: str, importer: Path) -> list[Path]:
        candidates = [importer.parent / text, self.folder / text] if text.endswith(".py") else []
        candidates += [file for file in (_file_in(self.folder, text),) if file is not None]
        return [file.resolve() for file in candidates if file.is_file()]


def _file_in(folder: Path, name: str) -> Path | None:
    """Return the file of a module in a folder: source, a package's __init__, or a compiled extension."""
    path = folder.joinpath(*name.split("."))
    extensions = (path.with_name(path.name + suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    candidates = (path.with_name(f"{path.name}.py"), path / "__init__.py", *extensions)
    return next((candidate.resolve() for candidate in candidates if candidate.is_file()), None)


def _file_on_path(name: str) -> Path | None:
    """Return the file of a module that Python finds, loaded or not, unless it is installed or part of Python."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded is not None:
        return None if is_installed(Path(loaded)) else Path(loaded).resolve()
    try:
        spec = importlib.machinery.PathFinder.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or is_installed(Path(spec.origin)):
        return None
    origin = Path(spec.origin)
    return _file_in(origin.parents[origin.name == "__init__.py"], name)


def is_installed(file: Path) -> bool:
    """Return whether a file belongs to an installed package, to Python itself or to this package."""
    resolved = file.resolve()
    if PACKAGE_FOLDERS & set(resolved.parts):
        return True
    homes = (Path(sysconfig.get_path("stdlib")), PACKAGE)
    return not resolved.is_file() or any(resolved.is_relative_to(home.resolve()) for home in homes)


def own_root() -> Root:
    """Return the root of this package's own modules."""
    return Root(PACKAGE.parent, PACKAGE.name)


def code_digest(files: Iterable[Path], *, roots: Iterable[Root] = ()) -> str:
    """Return a digest of some source files and of the modules they import, directly or not.

    Args:
        files: Source files to begin with.
        roots: Where imports are looked up, beside this package.
    """
    known = (*roots, own_root())
    digest = hashlib.sha256()
    for name, text in sorted((_name(file, known), _read(file).digest) for file in reachable_files(files, known)):
        digest.update(f"{name} {text}\n".encode())
    return digest.hexdigest()


def reachable_files(files: Iterable[Path], roots: tuple[Root, ...]) -> set[Path]:
    """Return some source files and all modules below the roots that they import, directly or not."""
    found: set[Path] = set()
    waiting = [file.resolve() for file in files]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        if file != REGISTRY.resolve():
            waiting += _imported_files(file, roots)
    return found


def _name(file: Path, roots: tuple[Root, ...]) -> str:
    """Return a file's path relative to its root, so that the digest does not depend on where that is."""
    for root in roots:
        if file.is_relative_to(root.folder.resolve()):
            return file.relative_to(root.folder.resolve()).as_posix()
    return file.name


def imported_packages(files: Iterable[Path]) -> set[str]:
    """Return the top-level names of the modules that some source files import."""
    references = (reference for file in files for reference in _read(file).imports)
    return {each.module.partition(".")[0] for each in references if not (each.level or each.is_quoted)} - {""}


def _imported_files(file: Path, roots: tuple[Root, ...]) -> list[Path]:
    """Return the modules below the roots that a file imports, or names in a string to import them later."""
    package = _name(file, roots).split("/")[:-1]
    found = (root.files(reference, file, package) for reference in _read(file).imports for root in roots)
    return list(dict.fromkeys(each for files in found for each in files))


@dataclass(frozen=True)
class ImportReference:
    """A reference to modules: an import statement, or a string that names a module."""

    module: str
    names_in_it: tuple[str, ...] = ()
    level: int = 0
    """Number of dots of a relative import."""
    is_quoted: bool = False
    """Whether it is a string that may name a module or a file of a plugin."""

    def names(self, package: list[str]) -> list[str]:
        """Return the modules that may be meant, seen from a package; a name that is no module is found nowhere."""
        start = package[: len(package) - self.level + 1] if self.level else []
        module = ".".join([*start, *([self.module] if self.module else [])])
        submodules = [f"{module}.{name}" if module else name for name in self.names_in_it]
        return [*submodules, module] if module else submodules


@dataclass(frozen=True)
class ParsedFile:
    """What is needed of a source file."""

    digest: str
    """Of its syntax tree without docstrings."""
    imports: tuple[ImportReference, ...]


def _read(file: Path) -> ParsedFile:
    """Return the digest and the imports of a file, computed once as long as it does not change."""
    state = file.stat()
    return _parse(file, state.st_mtime_ns, state.st_size)


@functools.cache
def _parse(file: Path, _modified: int, _size: int) -> ParsedFile:
    content = file.read_bytes()
    try:
        tree = ast.parse(content if file.suffix == ".py" else b"\0")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # compiled, or never executed
        return ParsedFile(hashlib.sha256(content).hexdigest(), ())
    imports = tuple(found for node in _executed_nodes(tree) for found in _imports_of(node))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
    return ParsedFile(hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imports)


def _is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a bare string: a docstring, also of an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _executed_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a tree but those under `if TYPE_CHECKING`, which are never executed."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                yield other
                yield from _executed_nodes(other)
            continue
        yield node
        yield from _executed_nodes(node)


def _imports_of(node: ast.AST) -> list[ImportReference]:
    """Return the references of one node."""
    if isinstance(node, ast.Import):
        return [ImportReference(alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [ImportReference(node.module or "", tuple(alias.name for alias in node.names), node.level)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
        names_file = node.value.endswith(".py")
        return [ImportReference(node.value if names_file else node.value.partition(":")[0], is_quoted=names_file)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and QUOTED_NAME.fullmatch(node.value):
        return [ImportReference(node.value, is_quoted=True)]
    return []
