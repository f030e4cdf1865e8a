"""The connection to a Ray cluster: to one that is there, or to one that is started here and ends with the run."""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from robustcaps.errors import UserError

START_SECONDS = 180.0
"""How long a cluster on this machine may take to start."""
CONNECT_SECONDS = 10.0
"""How long an address may take to answer."""


def import_ray() -> Any:
    """Return the module ray, an optional extra."""
    try:
        import ray  # noqa: PLC0415
    except ImportError as error:
        raise UserError("engine 'ray' needs ray: pip install 'robustcaps[ray]'.") from error
    return ray


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to a cluster for the duration of the block and yield the module ray.

    Args:
        address: 'host:port', 'auto' for the cluster that this machine belongs to, or None to start one here. A
            connection that the caller has opened with `ray.init` is used as it is.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    with contextlib.ExitStack() as stack:
        if address is None:
            token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            address = stack.enter_context(_local_cluster(token))
            stack.enter_context(_authenticated(token))
            stack.enter_context(_on_loopback())
        else:
            _check_answer(address)
        with _unchanged_signals():
            _connect(ray, address)
        stack.callback(ray.shutdown)
        yield ray


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"--address {address}: no Ray cluster can be joined there: {reason}") from error


def check_address(address: str | None) -> tuple[str, int] | None:
    """Return the host and the port of an address, None for one without; refuse what is no address."""
    if address in (None, "auto"):
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise UserError(f"--address {address[:80]!r}: must be HOST:PORT or auto.")
    return host, int(port)


def _check_answer(address: str) -> None:
    """Refuse an address that nobody answers at, before Ray tries for a minute."""
    place = check_address(address)
    if place is None:
        return
    try:
        socket.create_connection(place, CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--address {address}: nothing answers there ({reason}). Is `ray start` running?") from error


@contextlib.contextmanager
def _unchanged_signals() -> Iterator[None]:
    """Undo that `ray.init` takes SIGTERM for itself: a run must end as with Ctrl-C."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _authenticated(token: Mapping[str, str]) -> Iterator[None]:
    """Let this process show the token of the cluster that it has started: nobody else may use that cluster."""
    before = {name: os.environ.get(name) for name in token}
    os.environ.update(token)
    _read_authentication()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _read_authentication()


def _read_authentication() -> None:
    """Make Ray read from the environment again how it authenticates."""
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let this process, too, listen on the loopback address only, as the cluster that it starts."""
    from ray._private import ray_constants  # noqa: PLC0415

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _local_cluster(token: Mapping[str, str]) -> Iterator[str]:
    """Start a cluster on this machine and yield its address; it ends with the block, or with this process."""
    python_path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    keeper = subprocess.Popen(
        [sys.executable, "-P", "-m", "robustcaps.execution.cluster.keeper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **token, "PYTHONPATH": python_path},
        start_new_session=True,
        text=True,
    )
    try:
        yield _read_address(keeper.stdout)
    finally:
        if keeper.stdin is not None:
            keeper.stdin.close()
        keeper.wait()


def _read_address(stream: IO[str] | None) -> str:
    """Return the first line that the keeper writes."""
    lines: queue.Queue[str] = queue.Queue()
    if stream is not None:
        threading.Thread(target=lambda: lines.put(stream.readline()), daemon=True).start()
    try:
        address = lines.get(timeout=START_SECONDS).strip()
    except queue.Empty:
        address = ""
    if not address:
        raise UserError("engine 'ray': a cluster on this machine could not be started; try `ray start --head` for why.")
    return address
