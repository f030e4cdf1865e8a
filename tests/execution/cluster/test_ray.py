"""Real clusters on this machine: the same tables as without one, through deaths of workers, nodes and drivers."""

from __future__ import annotations

import importlib.util
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from robustcaps.execution.cluster.keeper import LOOPBACK_ONLY
from tests.conftest import PLUGIN, SUITE
from tests.execution.test_runner import digest_of_files, slow_plugin

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra 'ray' is not installed"),
]


ROOT = Path(__file__).parents[3]
HELPED = """
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import robustcaps as rc
from helper_of_tests import shift

@rc.attack("shift")
def shift_all(model, images, labels, eps):
    return shift(images, eps)
"""


@pytest.fixture
def folder(tmp_path):
    """A suite of shards with a plugin, its helper, and weights in a file."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "plugin.py").write_text(PLUGIN)
    (tmp_path / "code" / "helped.py").write_text(HELPED)
    (tmp_path / "code" / "helper_of_tests.py").write_text("def shift(x, eps):\n    return (x + eps).clamp(0, 1)\n")
    (tmp_path / "tiny.toml").write_text(
        "batch_size = 4\n" + SUITE + '[[attacks]]\nuse = "shift"\neps = [0.1]\n[[diagnostics]]\nuse = "gradients"\n'
    )
    weights = ROOT / "robustcaps" / "models" / "weights" / "toys" / "cnn-small-a"
    for ending in (".json", ".safetensors"):
        shutil.copy(weights.with_suffix(ending), tmp_path / f"mine{ending}")
    (tmp_path / "weights.toml").write_text(
        'batch_size = 4\n[[data]]\nuse = "toys"\nlimit = 16\n'
        '[[models]]\nuse = "cnn-small"\nweights = "mine.safetensors"\n'
        '[[attacks]]\nuse = "fgsm"\neps = [0.01, 0.02]\n'
    )
    return tmp_path


def command(*words):
    return [sys.executable, "-c", "from robustcaps.cli.app import main; main()", *map(str, words)]


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT), **more}


OPTIONS = ("--plugin", "code/plugin.py", "--plugin", "code/helped.py", "--shard-size", "4", "--device", "cpu")


def run(folder, *words, **more):
    return subprocess.run(
        command("run", *words), cwd=folder, env=environment(**more), capture_output=True, text=True, check=False
    )


def assert_same_tables(one, other):
    files = list(one.glob("*.csv"))
    assert files and all(file.read_bytes() == (other / file.name).read_bytes() for file in files)


def cluster_processes():
    """Return the processes of clusters that robustcaps has started: a keeper and the members of its session."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = (os.getsid(int(entry.name)), (entry / "cmdline").read_bytes())
            except OSError:
                continue
    keepers = {process for process, (_, words) in found.items() if b"robustcaps.execution.cluster.keeper" in words}
    return {process for process, (session, _) in found.items() if session in keepers}


def listening_addresses(processes):
    """Return the local addresses, as the kernel writes them, at which some processes listen."""
    sockets = set()
    for process in processes:
        for entry in Path(f"/proc/{process}/fd").glob("*"):
            try:
                sockets.add(str(entry.readlink()))
            except OSError:
                continue
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                addresses.add(words[1].partition(":")[0])
    return addresses


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_a_cluster_of_its_own_gives_the_same_tables_and_is_gone(folder):
    before = cluster_processes()
    for engine in ("local", "ray"):
        result = run(folder, "tiny.toml", *OPTIONS, "--out", engine, "--engine", engine)
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stderr == "", "Ray's own logs are not shown"
        result = run(folder, "weights.toml", "--out", f"{engine}-w", "--engine", engine, "--shard-size", "4")
        assert result.returncode == 0, result.stdout + result.stderr
    assert_same_tables(folder / "local", folder / "ray")
    assert_same_tables(folder / "local-w", folder / "ray-w")
    assert cluster_processes() <= before


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="looks into /proc")
def test_a_cluster_of_its_own_listens_on_loopback_only_and_ends_with_the_driver(folder, end):
    slow_plugin(folder / "code" / "plugin.py")
    before = cluster_processes()
    with subprocess.Popen(
        command("run", "tiny.toml", *OPTIONS, "--out", "o", "--engine", "ray"),
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as driver:
        deadline = time.monotonic() + 240
        while not list((folder / "o").glob("shards/*.parquet")):
            assert time.monotonic() < deadline and driver.poll() is None
            time.sleep(0.05)
        mine = cluster_processes() - before
        addresses = listening_addresses({*mine, driver.pid})
        assert addresses and addresses <= LOOPBACK
        driver.send_signal(end)
        assert driver.wait(60) == (-signal.SIGKILL if end == signal.SIGKILL else 130)
    deadline = time.monotonic() + 60
    while cluster_processes() - before:
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.1)


@contextmanager
def two_nodes(folder, **more):
    """Start a cluster of two nodes; yield its address, the variables to join it, and what commands its nodes."""
    token = {**LOOPBACK_ONLY, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    place = Path(f"/tmp/nodes-{os.getpid()}")  # noqa: S108  names of sockets must be short
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.perf.nodes", str(place), "2"],
        cwd=folder,
        env=environment(**token, **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as nodes:
        assert nodes.stdin is not None and nodes.stdout is not None

        def order(word):
            nodes.stdin.write(f"{word}\n")
            nodes.stdin.flush()
            assert nodes.stdout.readline().strip() == "done"

        try:
            yield nodes.stdout.readline().strip(), token, order
        finally:
            nodes.stdin.close()
            nodes.wait()
            shutil.rmtree(place, ignore_errors=True)


def ray_workers(address):
    """Return the processes that execute shards on the cluster at an address."""
    port = address.rpartition(":")[2].encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and b"ray::ShardWorker" in (entry / "cmdline").read_bytes():
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if port in Path(f"/proc/{parent}/cmdline").read_bytes():
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("kills", [3, 20])
def test_deaths_of_workers_nodes_and_drivers_lose_at_most_the_shards_at_work(folder, kills):
    slow_plugin(folder / "code" / "plugin.py")
    assert run(folder, "tiny.toml", *OPTIONS, "--out", "whole").returncode == 0
    out = folder / "o"
    random.seed(kills)

    def finished():
        return 8 * len(list(out.glob("cells/*.parquet"))) + len(list(out.glob("shards/*.parquet")))

    def assert_kept(stamps):
        after = digest_of_files(out / "cells") | digest_of_files(out / "shards")
        for name, content in stamps.items():
            owner = f"{name.split('-')[0]}.parquet" if "-" in name else name
            assert after.get(name) == content or owner in after, "a finished shard was lost or computed again"

    with two_nodes(folder) as (address, token, order):
        words = command("run", "tiny.toml", *OPTIONS, "--out", "o", "--engine", "ray", "--address", address)
        driver = None
        for kill in range(kills):
            stamps = digest_of_files(out / "cells") | digest_of_files(out / "shards")
            if driver is None or driver.poll() is not None:
                driver = subprocess.Popen(
                    words, cwd=folder, env=environment(**token), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            target, deadline = finished() + random.randint(1, 2), time.monotonic() + 300
            while finished() < target and driver.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            match kill % 3:
                case 0:
                    os.kill(random.choice(ray_workers(address)), signal.SIGKILL)
                case 1:
                    order("kill")
                    order("add")
                case _:
                    driver.kill()
                    driver.wait()
            assert_kept(stamps)
        if driver is not None:
            driver.kill()
            driver.wait()
        result = run(folder, *words[4:], **token)
        assert result.returncode == 0, result.stdout + result.stderr
    assert_same_tables(folder / "whole", out)


MISSING = """    if not (Path(data_dir) / "dots").exists():
        raise rc.UserError(f"{data_dir}: dots is missing")
    generator = torch.Generator().manual_seed(0 if split"""


def test_a_missing_dataset_is_one_line(folder):
    """The workers have a data directory of their own, in which there is nothing."""
    (folder / "data").mkdir()
    (folder / "empty").mkdir()
    text = PLUGIN.replace("    generator = torch.Generator().manual_seed(0 if split", MISSING)
    (folder / "code" / "plugin.py").write_text("from pathlib import Path\n" + text)
    (folder / "data" / "dots").touch()
    with two_nodes(folder, ROBUSTCAPS_DATA=str(folder / "empty")) as (address, token, _):
        options = ("--engine", "ray", "--address", address, "--data-dir", "data")
        result = run(folder, "tiny.toml", *OPTIONS, *options, **token)
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: worker on ") and "dots is missing" in line


def test_an_address_without_a_cluster_is_one_line(folder):
    result = run(folder, "tiny.toml", *OPTIONS, "--engine", "ray", "--address", "127.0.0.1:9")
    assert result.returncode == 2 and len(result.stderr.strip().splitlines()) == 1
    assert "error: --address 127.0.0.1:9: nothing answers there" in result.stderr
