"""A web server on this machine that can be as unreliable as a real one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Loopback(ThreadingHTTPServer):
    """Serves `files` by path and notes what it was asked for: (path, from which byte on)."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, int]] = []
        self.ranges = True
        """Whether it can begin in the middle of a file."""
        self.misplaced = 0
        """By how many bytes it begins elsewhere than it was asked to."""
        self.cuts: list[int] = []
        """After how many bytes each of the next answers ends, though it promised more."""
        self.silent_after: int | None = None
        """After how many bytes it falls silent, until `ended`."""
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Loopback

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        self.server.asked.append((self.path, start))
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        if start and self.server.ranges:
            if start >= len(content):
                self.send_error(416)
                return
            start += self.server.misplaced
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            content = content[start:]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self._send(content)

    def _send(self, content: bytes) -> None:
        if self.server.cuts:
            content = content[: self.server.cuts.pop(0)]
        if self.server.silent_after is not None:
            self.wfile.write(content[: self.server.silent_after])
            self.server.ended.wait()
            return
        self.wfile.write(content)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Say nothing."""

    def log_error(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[Loopback]:
    """Run a server in a thread."""
    with Loopback() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
