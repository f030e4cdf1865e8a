"""The keeper of a cluster on this machine: `python -m robustcaps.execution.cluster.keeper` starts it and ends it.

The run that started it holds the other end of its stdin. When that closes, for whatever reason, the keeper kills every
process of its session, which is the whole cluster, and removes the cluster's files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Without clusters across machines Ray takes 127.0.0.1 as its address and listens nowhere else, on any system."""
HEAD = """
import sys, ray
options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
print(ray.init("local", _temp_dir=sys.argv[1], **options).address_info["gcs_address"], flush=True)
sys.stdin.read()
"""
"""The process that starts a cluster, says its address and waits."""


def main() -> None:
    """Start a cluster, pass its address on, and end it when stdin closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    place = Path("/tmp") if Path("/tmp").is_dir() else None  # noqa: S108  names of sockets must be short
    folder = Path(tempfile.mkdtemp(prefix="robustcaps-ray-", dir=place))
    try:
        command = [sys.executable, "-P", "-c", HEAD, str(folder)]
        environment = {**os.environ, **LOOPBACK_ONLY}
        # Its output goes to the run, which reads the address.
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment):  # noqa: S603
            sys.stdin.read()
            _kill_session()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kill_session() -> None:
    """Kill all other processes of this session."""
    for process in _list_processes():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process != os.getpid() and os.getsid(process) == os.getsid(0):
                os.kill(process, signal.SIGKILL)


def _list_processes() -> list[int]:
    """Return the ids of all processes."""
    if Path("/proc/self").exists():
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    listing = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=False)  # noqa: S607
    return [int(word) for word in listing.stdout.split()]


if __name__ == "__main__":
    main()
