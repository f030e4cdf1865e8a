"""Download of a dataset's files: resumable, with fallback to the next URL, verified by SHA-256."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from robustcaps.data.files import data_folder, digest_of
from robustcaps.data.norb_records import convert_archive, extract_archive
from robustcaps.data.sources import DERIVED_FROM, MANUAL_DOWNLOADS, MAX_ARCHIVE, RECORD_ARCHIVES, SOURCES, Source
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS
from robustcaps.utils.files import make_folder, remove_empty

TIMEOUT = 30.0
"""Seconds without data after which a connection is given up."""
MAX_ATTEMPTS = 5
"""Attempts to resume a file from one server, as long as each of them makes progress."""
_CHUNK = 1 << 16


class DownloadProgress:
    """Callbacks of a download; override those of interest."""

    def found(self, path: Path) -> None:
        """Handle a file that already exists and is valid."""

    def put_aside(self, path: Path, aside: Path, problem: str) -> None:
        """Handle an invalid file that was renamed."""

    def advanced(self, name: str, done: int, total: int | None) -> None:
        """Handle the number of downloaded bytes of a file, and of all its bytes if the server reports them."""

    def failed(self, problem: str) -> None:
        """Handle the failure of one URL before the next one is tried."""

    def fetched(self, path: Path, url: str) -> None:
        """Handle a completed and verified file."""


class _DownloadError(Exception):
    """One URL failed; the message says why."""


def get_data(
    name: str,
    *,
    data_dir: Path | str | None = None,
    mirrors: Sequence[str] = (),
    unverified: bool = False,
    progress: DownloadProgress | None = None,
) -> list[Path]:
    """Download the files of a dataset that are missing or invalid.

    Args:
        name: A name from `list_datasets()`.
        data_dir: Directory that contains the datasets; by default $ROBUSTCAPS_DATA or ./data.
        mirrors: URLs that replace the official ones; their files are MIRROR/DATASET/FILE.
        unverified: Where the official files cannot be had, accept an archive of TFRecords with unknown checksums.
        progress: Receives progress reports.

    Returns:
        The paths of all files.
    """
    name, sources = _files_of(name)
    for mirror in mirrors:
        _check_mirror(mirror)
    folder = data_folder(data_dir) / name
    progress = progress or DownloadProgress()
    paths = []
    try:
        for source in sources:
            base_urls = [f"{mirror.rstrip('/')}/{name}" for mirror in mirrors] or source.base_urls
            paths.append(_get(name, source, folder, base_urls, progress))
    except UserError as error:
        if name not in RECORD_ARCHIVES or mirrors:
            raise
        progress.failed(str(error).rstrip("."))
        return _get_records(name, folder, str(error), unverified=unverified, progress=progress)
    return paths


def _get_records(name: str, folder: Path, official: str, *, unverified: bool, progress: DownloadProgress) -> list[Path]:
    """Download a dataset's archive of TFRecords and convert it to the official files, which verifies it.

    If the result differs from the official files, the records are kept only if the user accepts them `unverified`.
    `official` says why those cannot be had.
    """
    url = RECORD_ARCHIVES[name]
    archive = folder / url.rpartition("/")[2]
    made = make_folder(folder)
    if not archive.exists():
        part = archive.with_name(f"{archive.name}.part")
        try:
            _fetch_whole(url, part, archive.name, MAX_ARCHIVE, progress)
        except _DownloadError as error:
            remove_empty(made)
            raise UserError(f"{official} The archive {url} cannot be downloaded either: {error}.") from error
        part.replace(archive)
        progress.fetched(archive, url)
    try:
        problem = convert_archive(archive, folder, {source.plain_name: source.digest for source in SOURCES[name]})
    except UserError as error:
        archive.unlink()
        remove_empty(made)
        raise UserError(f"{error} (deleted)") from error
    if problem and not unverified:
        raise UserError(
            f"dataset '{name}': {archive} cannot be verified: {problem}, so its samples differ or are in another "
            "order. Nobody published its checksum; to use it nevertheless, run the command again with --unverified."
        )
    paths = extract_archive(archive, folder) if problem else [folder / source.plain_name for source in SOURCES[name]]
    archive.unlink()
    return paths


def _check_mirror(mirror: str) -> None:
    """Refuse what is not the address of a server."""
    if not re.match(r"https?://", mirror):
        raise UserError(f"mirror '{mirror}': must begin with https:// or http://.")
    try:
        parts = urlsplit(mirror)
        has_host = bool(parts.hostname and parts.hostname.encode("idna")) and parts.port != 0
    except ValueError as error:
        raise UserError(f"mirror '{mirror}': not a valid URL: {error}.") from error
    if not has_host or not mirror.isascii() or re.search(r"[\s\x00-\x1f\x7f]", mirror):
        raise UserError(f"mirror '{mirror}': not a valid URL; write it as https://HOST/PATH, without spaces.")
    if parts.query or parts.fragment:
        raise UserError(f"mirror '{mirror}': must not contain '?' or '#'; /DATASET/FILE is added to it.")


def _files_of(name: str) -> tuple[str, tuple[Source, ...]]:
    """Return the files that a dataset needs and the dataset that they belong to."""
    entry = DATASETS.entry(name)
    name = DERIVED_FROM.get(name, name)
    if name in MANUAL_DOWNLOADS:
        raise UserError(f"dataset '{name}': cannot be downloaded in the required format. {MANUAL_DOWNLOADS[name]}")
    if name not in SOURCES:
        raise UserError(f"dataset '{name}': belongs to the plugin {entry.source}; see there for its files.")
    return name, SOURCES[name]


def _get(dataset: str, source: Source, folder: Path, base_urls: Sequence[str], progress: DownloadProgress) -> Path:
    """Return the path of a file, downloaded unless it exists and is valid."""
    for existing in dict.fromkeys((folder / source.plain_name, folder / source.name)):
        if existing.exists():
            problem = _find_problem(existing, source)
            if not problem:
                progress.found(existing)
                return existing
            aside = existing.rename(existing.with_name(f"{existing.name}.wrong"))
            progress.put_aside(existing, aside, problem)
    made = make_folder(folder)
    path = folder / source.name
    part = path.with_name(f"{path.name}.part")
    problems: list[str] = []
    for base_url in base_urls:
        if problems:
            progress.failed(problems[-1])
        url = f"{base_url}/{source.name}"
        try:
            _fetch_verified(url, part, source, progress)
        except _DownloadError as error:
            problems.append(f"{url}: {error}")
        else:
            part.replace(path)
            progress.fetched(path, url)
            return path
    remove_empty(made)
    raise UserError(
        f"dataset '{dataset}': cannot download {source.name}: {'; '.join(problems)}. Try again later (the download "
        f"resumes), use --mirror, or copy the file to {folder} yourself."
    )


def _find_problem(path: Path, source: Source) -> str:
    """Return why a file is invalid, or ''."""
    packed = not source.archive and path.name != source.plain_name
    try:
        found = digest_of(path, packed=packed)
    except UserError as error:
        return str(error).removeprefix(f"{path}: ").rstrip(".")
    if found == source.digest:
        return ""
    what = "unpacked, " if packed else ""
    expected = f"{source.digest.size} with {source.digest.sha256}"
    return f"wrong content: {what}{found.size} bytes with SHA-256 {found.sha256}, expected {expected}"


def _fetch_verified(url: str, part: Path, source: Source, progress: DownloadProgress) -> None:
    """Download a file and verify it; delete it if it is invalid."""
    resumed = part.exists()
    _fetch_whole(url, part, source.name, source.max_size, progress)
    problem = _find_problem(part, source)
    if problem and resumed:  # its first part may belong to another file
        part.unlink()
        _fetch_whole(url, part, source.name, source.max_size, progress)
        problem = _find_problem(part, source)
    if problem:
        part.unlink()
        raise _DownloadError(f"{problem} (deleted)")


def _fetch_whole(url: str, part: Path, name: str, max_size: int, progress: DownloadProgress) -> None:
    """Download the rest of a file, and resume after interruptions as long as there is progress."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        before = _size(part)
        try:
            _fetch_rest(url, part, name, max_size, progress)
        except _DownloadError:
            if attempt == MAX_ATTEMPTS or _size(part) <= before:
                raise
        else:
            return


def _fetch_rest(url: str, part: Path, name: str, max_size: int, progress: DownloadProgress) -> None:
    """Append the rest of a file, or restart if the server does not support ranges."""
    response = _request(url, _size(part))
    if response is None:
        return
    with response:
        done, total = _response_range(response, _size(part))
        with part.open("ab" if done else "wb") as file:
            for chunk in _chunks(response):
                file.write(chunk)
                file.flush()
                done += len(chunk)
                progress.advanced(name, done, total)
                if done > max_size:
                    break
    if done > max_size:
        part.unlink()
        raise _DownloadError(f"larger than the maximum of {max_size} bytes (deleted)")
    if total is not None and done < total:
        raise _DownloadError(f"connection lost after {done} of {total} bytes")


def _request(url: str, start: int) -> http.client.HTTPResponse | None:
    """Request a file from a byte offset; return None if nothing follows it."""
    headers = {"User-Agent": "robustcaps", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        return cast("http.client.HTTPResponse", urlopen(Request(url, headers=headers), timeout=TIMEOUT))  # noqa: S310 (https or http)
    except HTTPError as error:
        error.close()
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        raise _DownloadError(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a redirect to a malformed URL
        raise _DownloadError(_describe_error(error)) from error


def _response_range(response: http.client.HTTPResponse, start: int) -> tuple[int, int | None]:
    """Return the first byte of a response, and the size of the whole file if the server reports it."""
    content_range = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        if content_range is None or int(content_range[1]) != start:
            raise _DownloadError(f"the server did not resume at byte {start}")
        return start, int(content_range[2])
    return 0, response.length


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield received data; a network error, unlike a full disk, is a failure of the URL."""
    try:
        while chunk := response.read1(_CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _DownloadError(_describe_error(error)) from error


def _describe_error(error: Exception) -> str:
    """Return a description of a network error."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no data for {TIMEOUT:g} s"
    return f"connection failed: {cause or type(cause).__name__}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
