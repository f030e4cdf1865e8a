"""The worker process of plugins: the same rows as here, and it can always be stopped."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import robustcaps as rc
from robustcaps.cli.app import main
from robustcaps.errors import UserError
from robustcaps.execution.execute_cell import clip, execute_cell
from robustcaps.execution.isolation.protocol import (
    Job,
    JobUpdate,
    decode_job,
    decode_update,
    encode_job,
    encode_update,
)
from robustcaps.execution.isolation.worker import Worker, _CapturedOutput, _WorkerProcess
from robustcaps.models.precision import Precision
from robustcaps.registry import ATTACKS, DATASETS, MODELS
from robustcaps.suite.cell import PLUGIN_TIME_LIMIT, AttackTask, Cell
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import AttackSpec, DataSpec, ModelSpec, Suite, TrainSpec, parse_spec
from tests.conftest import PLUGIN

EXTRA = """

import os, subprocess, sys, time
from pathlib import Path


@rc.attack("talks and raises")
def talks(model, images, labels, eps):
    print("I was here")
    raise RuntimeError("no luck")


@rc.attack("starts another and sleeps")
def sleeps(model, images, labels, eps, pids: str = ""):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"])
    Path(f"{pids}.part").write_text(f"{os.getpid()} {child.pid}")
    Path(f"{pids}.part").rename(pids)
    time.sleep(999)


@rc.attack("quits")
def quits(model, images, labels, eps):
    sys.exit("I have seen enough")
"""


@dataclass(frozen=True)
class Place:
    """A worker, and a resolver in this process with the same plugins."""

    worker: Worker
    resolver: Resolver
    folder: Path

    def cell(self, attack: str, **options: Any) -> Cell:
        eps = {"eps": [0.05, 0.1]}
        content = {"data": [{"use": "dots", "limit": 20}], "models": [{"use": "levels"}], "batch_size": 8}
        suite = Suite.model_validate({"name": "s", **content, "attacks": [{"use": attack, **eps, **options}]})
        (cell,) = make_plan(suite, self.resolver, source="s")
        return cell


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("isolation")
    (plugin := folder / "plugin.py").write_text(PLUGIN + EXTRA)
    with pytest.MonkeyPatch.context() as patch, Worker(config := RuntimeConfig(plugins=(plugin,))) as worker:
        for kind in (ATTACKS, DATASETS, MODELS):
            kind.names()
            patch.setattr(kind, "_entries", dict(kind._entries))
        yield Place(worker, Resolver(config), folder)


def test_a_worker_gives_the_rows_and_the_progress_of_this_process(place):
    heard: dict[str, list[tuple[int, int]]] = {"here": [], "there": []}
    cell = place.cell("darken", share=0.5)
    here = execute_cell(cell, place.resolver, lambda *step: heard["here"].append(step))
    there = place.worker.execute_cell(cell, 60, lambda *step: heard["there"].append(step))
    assert there.rows.equals(here.rows) and (there.rows.dtypes == here.rows.dtypes).all()
    assert heard["there"] == heard["here"] != []
    assert there.violation == there.trace == "" and 0 < there.seconds < 60


def test_output_precedes_the_traceback(place):
    outcome = place.worker.execute_cell(place.cell("talks and raises"), 60)
    assert outcome.violation == "raised" and outcome.reason == "RuntimeError: no luck"
    assert outcome.trace.index("I was here") < outcome.trace.index("Traceback")
    again = place.worker.execute_cell(place.cell("darken"), 60)
    assert again.rows is not None and again.trace == ""


def test_what_only_this_process_knows_is_left_to_it(place):
    @rc.attack("mine")
    def mine(model, images, labels, eps):
        return images

    cell = place.cell("mine")
    assert place.worker.execute_cell(cell, 60) is None
    limited = place.worker.execute_cell(place.cell("mine", time_limit=5), 5)
    assert limited.violation == "raised" and "time_limit" in limited.reason


def left_alone(place, cell, pids):
    """As after a kill of the run: nobody holds the other end of its input any more."""
    place.worker.execute_cell(place.cell("darken"), 60)  # so that there is one
    process, place.worker.process = place.worker.process, None
    process.submit(Job(place.resolver.config, cell, place.folder / "rows.parquet"))
    wait_until(pids.exists)
    process.popen.stdin.close()


def stopped_by_ctrl_c(place, cell, pids):
    def press() -> None:
        wait_until(pids.exists)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt), place.worker:
            place.worker.execute_cell(cell, 60)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name != "posix", reason="asks for processes by their number")
@pytest.mark.parametrize("end", [left_alone, stopped_by_ctrl_c])
def test_a_worker_that_ends_leaves_nobody_behind(place, end):
    pids = place.folder / end.__name__
    end(place, place.cell("starts another and sleeps", pids=str(pids)), pids)
    worker, child = map(int, pids.read_text().split())
    wait_until(lambda: not alive(worker) and not alive(child))
    assert not alive(worker) and not alive(child)


def alive(pid: int) -> bool:
    """Return whether a process is at work; one that nobody has buried is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_who_gets_a_worker_and_for_how_long(place):
    def limit(attack: str, **options: Any) -> float | None:
        cell: Cell = place.cell(attack, **options)
        return cell.task.time_limit

    assert limit("fgsm") is None
    assert limit("fgsm", time_limit=7) == 7
    assert limit("darken") == PLUGIN_TIME_LIMIT
    assert limit("darken", time_limit=0.5) == 0.5
    assert limit("worst-case", attacks=["fgsm", {"use": "minimal", "attack": "bim"}]) is None
    assert limit("worst-case", attacks=["fgsm", {"use": "minimal", "attack": "darken"}]) == PLUGIN_TIME_LIMIT


class Endless(_WorkerProcess):
    """Reports progress at every poll, and never finishes."""

    def __init__(self) -> None:
        self.output = _CapturedOutput()
        self.polls = 0

    def _next_update(self) -> JobUpdate:
        self.polls += 1
        time.sleep(0.01)
        return JobUpdate("ready") if self.polls == 1 else JobUpdate("progress", done=self.polls)


def test_progress_does_not_stop_the_clock():
    heard: list[int] = []
    result = Endless().wait(0.1, lambda done, _: heard.append(done))
    assert result.violation == "timed-out" and result.trace == "killed: exceeded its time limit of 0.1 s"
    assert heard == list(range(2, len(heard) + 2)) != []


def test_a_time_limit_makes_no_new_cell(place):
    assert place.cell("darken", time_limit=3).id == place.cell("darken").id


@pytest.mark.parametrize("limit", [0, -1, math.inf, math.nan, "long"])
def test_a_time_limit_is_a_positive_number(limit):
    with pytest.raises(UserError, match="time_limit: "):
        parse_spec(AttackSpec, {"use": "fgsm", "eps": 0.1, "time_limit": limit})


def test_jobs_and_updates_arrive_as_they_were_sent(tmp_path):
    model = ModelSpec(use="cnn:b", weights=Path("a b/ü.safetensors"), train=TrainSpec(seed=3))
    attack = AttackSpec.model_validate({"use": "x", "eps": [0.1], "target": "2", "far": math.inf, "list": [1, "a"]})
    task = AttackTask(attack, 7, 64, 10, 20.0, surrogates={"cnn": model})
    cell = Cell("suite", model, DataSpec(use="toys", limit=5), task, {})
    config = RuntimeConfig(Path("data"), "cpu", (Path("p.py"),), Precision(autocast=True))
    job = Job(config, cell, tmp_path / "rows.parquet")
    assert decode_job(encode_job(job)) == job
    assert decode_job(encode_job(replace(job, cell=replace(cell, settings={"odd": object()})))) == job
    update = JobUpdate("failed", 1.5, "raised", "line 1\nline 2: ü", 3, 4)
    assert decode_update(encode_update(update)) == update
    assert encode_update(update).count(b"\n") == 1


def test_a_trace_is_short_and_can_be_written():
    text = clip("first\n" * 999 + "x" * 999_999 + "\nValueError: \ud800")
    assert len(text) < 3_000 and text.endswith("...\nValueError: \\ud800") and text.encode()


PLUGIN_ENDS = {
    "talks and raises": r"failed: attack 'talks and raises' raised RuntimeError: no luck \(plugin\.py:\d+\)",
    "quits": r"failed: attack 'quits' exited SystemExit: I have seen enough \(plugin\.py:\d+\)",
}


@pytest.mark.parametrize("name", PLUGIN_ENDS)
def test_one_attack_from_the_command_line_ends_with_one_line(place, name, monkeypatch, capsys):
    words = ["attack", "levels", name, "--data", "dots", "--eps", "0.1", "--plugin", str(place.folder / "plugin.py")]
    monkeypatch.setattr(sys, "argv", ["robustcaps", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr().err
    assert stop.value.code == 1 and re.fullmatch(PLUGIN_ENDS[name], said.strip())
