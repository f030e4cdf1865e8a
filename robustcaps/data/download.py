"""Fetching the files of a dataset: resumed where it stopped, from the next place where one fails, checked."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from robustcaps.data.files import data_folder, digest_of
from robustcaps.data.sources import BY_HAND, MADE_FROM, SOURCES, Source
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS

TIMEOUT = 30.0
"""Seconds without a word from a server after which it is given up."""
TRIES = 5
"""How often one server may be asked to go on with a file, as long as each time something came."""
_CHUNK = 1 << 16


class Listener:
    """Hears nothing; override what you want to hear about a download."""

    def found(self, path: Path) -> None:
        """Hear that a file is there already, and right."""

    def put_aside(self, path: Path, aside: Path, problem: str) -> None:
        """Hear that a file was there but wrong, and where it is now."""

    def moved(self, name: str, done: int, total: int | None) -> None:
        """Hear how many bytes of a file have come, and of how many, where the server says so."""

    def failed(self, problem: str) -> None:
        """Hear which place does not give the file, and why, before the next one is tried."""

    def fetched(self, path: Path, url: str) -> None:
        """Hear that a file has come, and is right."""


class _Failed(Exception):  # noqa: N818  caught here: a place does not give the file
    """A place does not give the file; the message says why."""


def get_data(
    name: str, *, data_dir: Path | str | None = None, mirrors: Sequence[str] = (), listener: Listener | None = None
) -> list[Path]:
    """Fetch the official files of a dataset into its folder, but those that are there and right; return them all.

    `mirrors` are asked instead of the official places: their files are MIRROR/DATASET/FILE.
    """
    name, sources = _files_of(name)
    for mirror in mirrors:
        if not re.match(r"https?://", mirror):
            raise UserError(f"mirror '{mirror}': not an address that begins with https:// or http://.")
    folder = data_folder(data_dir) / name
    paths = []
    for source in sources:
        homes = [f"{mirror.rstrip('/')}/{name}" for mirror in mirrors] or source.homes
        paths.append(_get(name, source, folder, homes, listener or Listener()))
    return paths


def _files_of(name: str) -> tuple[str, tuple[Source, ...]]:
    """Return which files a dataset needs, and of which dataset they are."""
    entry = DATASETS.entry(name)
    name = MADE_FROM.get(name, name)
    if name in BY_HAND:
        raise UserError(f"dataset '{name}': cannot be fetched, for nobody offers it in this form. {BY_HAND[name]}")
    if name not in SOURCES:
        raise UserError(
            f"dataset '{name}': comes with the plugin {entry.source}, which has to say where its files are."
        )
    return name, SOURCES[name]


def _get(dataset: str, source: Source, folder: Path, homes: Sequence[str], listener: Listener) -> Path:
    """Return the file, fetched unless it is there and right."""
    for place in dict.fromkeys((folder / source.plain_name, folder / source.name)):
        if place.exists():
            problem = _problem(place, source)
            if not problem:
                listener.found(place)
                return place
            aside = place.rename(place.with_name(f"{place.name}.wrong"))
            listener.put_aside(place, aside, problem)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / source.name
    part = path.with_name(f"{path.name}.part")
    problems: list[str] = []
    for home in homes:
        if problems:
            listener.failed(problems[-1])
        url = f"{home}/{source.name}"
        try:
            _fetch_right(url, part, source, listener)
        except _Failed as error:
            problems.append(f"{url}: {error}")
        else:
            part.replace(path)
            listener.fetched(path, url)
            return path
    raise UserError(
        f"dataset '{dataset}': {source.name} cannot be had: {'; '.join(problems)}. Try again later, which goes on "
        f"where it stopped, or from another place with --mirror, or put the file into {folder} by hand."
    )


def _problem(path: Path, source: Source) -> str:
    """Return what is wrong with a file, or ''."""
    packed = not source.archive and path.name != source.plain_name
    try:
        found = digest_of(path, packed=packed)
    except UserError as error:
        return str(error).removeprefix(f"{path}: ").rstrip(".")
    if found == source.digest:
        return ""
    what = "unpacked, " if packed else ""
    wanted = f"{source.digest.size} with {source.digest.sha256}"
    return f"wrong content: {what}{found.size} bytes with SHA-256 {found.sha256}, not {wanted}"


def _fetch_right(url: str, part: Path, source: Source, listener: Listener) -> None:
    """Fetch a file until it is whole and right; what is wrong is removed."""
    resumed = part.exists()
    _fetch_whole(url, part, source, listener)
    problem = _problem(part, source)
    if problem and resumed:  # its beginning may be that of another file
        part.unlink()
        _fetch_whole(url, part, source, listener)
        problem = _problem(part, source)
    if problem:
        part.unlink()
        raise _Failed(f"{problem} (removed)")


def _fetch_whole(url: str, part: Path, source: Source, listener: Listener) -> None:
    """Fetch the rest of a file; a connection that is cut is taken up again as long as each brings something."""
    for tries in range(1, TRIES + 1):
        before = _size(part)
        try:
            _fetch_rest(url, part, source, listener)
        except _Failed:
            if tries == TRIES or _size(part) <= before:
                raise
        else:
            return


def _fetch_rest(url: str, part: Path, source: Source, listener: Listener) -> None:
    """Append what is missing of a file, or all of it where the server cannot begin in the middle."""
    answer = _ask(url, _size(part))
    if answer is None:
        return
    with answer:
        done, total = _extent(answer, _size(part))
        with part.open("ab" if done else "wb") as file:
            for chunk in _chunks(answer):
                file.write(chunk)
                file.flush()
                done += len(chunk)
                listener.moved(source.name, done, total)
                if done > source.largest:
                    break
    if done > source.largest:
        part.unlink()
        raise _Failed(f"more than the {source.largest} bytes that the file can have (removed)")
    if total is not None and done < total:
        raise _Failed(f"the connection was cut after {done} of {total} bytes")


def _ask(url: str, start: int) -> http.client.HTTPResponse | None:
    """Ask for a file from a byte on; the answer is None if there is nothing after it."""
    headers = {"User-Agent": "robustcaps", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        return cast("http.client.HTTPResponse", urlopen(Request(url, headers=headers), timeout=TIMEOUT))  # noqa: S310 (https or http)
    except HTTPError as error:
        error.close()
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        raise _Failed(f"the server answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(_words(error)) from error


def _extent(answer: http.client.HTTPResponse, start: int) -> tuple[int, int | None]:
    """Return from which byte on a server answers, and how many the whole file has, if it says so."""
    middle = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
        if middle is None or int(middle[1]) != start:
            raise _Failed(f"the server does not go on at byte {start}")
        return start, int(middle[2])
    return 0, answer.length


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield what comes; that nothing comes any more is a failure of the place, unlike a full disk of ours."""
    try:
        while chunk := answer.read1(_CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(_words(error)) from error


def _words(error: Exception) -> str:
    """Return why a server cannot be reached or heard."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return f"the server was silent for {TIMEOUT:g} s"
    return f"no connection: {cause or type(cause).__name__}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
