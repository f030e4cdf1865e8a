"""The versions that results depend on: installed packages and the git commit."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_commit(folder: Path) -> str | None:
    """Return the git commit of a folder, with '+changes' if it is not clean; None outside of git."""
    try:
        git = ["git", "-C", str(folder)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)  # noqa: S603
        status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+changes" if status.stdout.strip() else "")
