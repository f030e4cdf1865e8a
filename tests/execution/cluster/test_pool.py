"""The pool of workers, with a cluster in this process: what is lost is computed again, but not for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from robustcaps.errors import UserError
from robustcaps.execution.cluster import ray_engine
from robustcaps.execution.cluster.ray_engine import MAX_LOST_WORKERS, ClusterOptions, WorkerPool
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.run_progress import ShardProgress
from robustcaps.suite.resolve import RuntimeConfig
from robustcaps.suite.shard import Shard
from robustcaps.utils.spans import Span


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__("a long story\nwith a traceback")
        self.cause = cause


@dataclass(eq=False)
class Answer:
    """What a worker will have answered; `is_late` answers never come."""

    value: Any
    is_late: bool = False


@dataclass(eq=False)
class Actor:
    cluster: Any
    is_stuck: bool

    def __post_init__(self):
        self.execute = SimpleNamespace(remote=self._execute)
        self.progress = SimpleNamespace(remote=lambda: Answer((1, 2), self.is_stuck))

    def _execute(self, shard, weights):
        self.cluster.executed.append(shard.id)
        self.cluster.most_at_work = max(self.cluster.most_at_work, self.cluster.in_flight() + 1)
        failures = self.cluster.failures.get(shard.samples.start)
        outcome = Outcome(shard.cell, 1.0, rows="rows", samples=shard.samples)
        answer = Answer(failures.pop(0) if failures else outcome, self.is_stuck)
        self.cluster.open.append(answer)
        return answer


@dataclass
class FakeRay:
    """As much of Ray as the pool uses."""

    rooms: list[dict[str, float]]
    failures: dict[int, list[Exception]] = field(default_factory=dict)
    stuck: list[bool] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    open: list[Any] = field(default_factory=list)
    actors: int = 0
    most_at_work: int = 0
    exceptions: Any = field(default_factory=lambda: SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError))

    def in_flight(self):
        return len(self.open)

    def put(self, value):
        return value

    def get(self, answer):
        if answer in self.open:
            self.open.remove(answer)
        if isinstance(answer.value, Exception):
            raise answer.value
        return answer.value

    def wait(self, answers, *, num_returns, timeout):
        ready = [answer for answer in answers if not answer.is_late][:num_returns]
        return ready, [answer for answer in answers if answer not in ready]

    def kill(self, actor):
        pass

    def nodes(self):
        return [{"Alive": bool(room), "Resources": room} for room in self.rooms]

    def cluster_resources(self):
        return {"GPU": sum(room.get("GPU", 0) for room in self.rooms)}

    def remote(self, **options):
        self.options = options

        def create(_setup):
            self.actors += 1
            return Actor(self, self.stuck.pop(0) if self.stuck else False)

        return lambda _: SimpleNamespace(remote=create)


class Notes(ShardProgress):
    def __init__(self):
        self.texts, self.begun = [], []

    def noted(self, message):
        self.texts.append(message)

    def started(self, shard):
        self.begun.append(shard.id)


def shards(count):
    task = SimpleNamespace(label="fgsm", surrogates={}, sample_count=count)
    named = SimpleNamespace(label="x", weights=None)
    cell = SimpleNamespace(id="c", label="cell", model=named, data=named, task=task)
    return [Shard(cell, Span(start, start + 1)) for start in range(count)]


@pytest.fixture(autouse=True)
def simple(monkeypatch):
    monkeypatch.setattr(ray_engine, "replace", lambda thing, **changes: thing)
    monkeypatch.setattr(ray_engine, "CAPACITY_SECONDS", 0.0)


def pool(ray, notes=None, **options):
    return WorkerPool(ray, ClusterOptions(**options), RuntimeConfig(), notes or Notes())


def test_no_more_shards_are_in_flight_than_there_is_room_for():
    ray, notes = FakeRay([{"CPU": 2.0}, {"CPU": 1.0}]), Notes()
    taken = []
    queue = (taken.append(shard) or shard for shard in shards(50))
    outcomes = pool(ray, notes).execute(queue)
    next(outcomes)
    assert len(taken) <= 4
    assert len(list(outcomes)) == 49 and ray.most_at_work == 3 and ray.actors == 3
    assert len(notes.begun) == 50 and notes.texts == []


@pytest.mark.parametrize(
    ("nodes", "options", "room"),
    [
        ([{"CPU": 4.0, "GPU": 1.0}], {"gpus_per_task": 0.25}, 4),
        ([{"CPU": 4.0, "GPU": 1.0}], {}, 1),
        ([{"CPU": 4.0, "GPU": 1.0}], {"gpus_per_task": 0.0, "cpus_per_task": 0.5}, 8),
        ([{"CPU": 3.0}, {"CPU": 3.0}], {"cpus_per_task": 2.0}, 2),
        ([{"CPU": 3.0, "GPU": 2.0}, {"CPU": 8.0}, {}], {"gpus_per_task": 0.5}, 3),
    ],
)
def test_room_is_counted_node_by_node(nodes, options, room):
    ray = FakeRay(nodes)
    list(pool(ray, **options).execute(shards(20)))
    assert ray.most_at_work == room


def test_a_cluster_without_room_for_a_task_is_described():
    with pytest.raises(UserError, match=r"no node .* 1 CPUs and 2 GPUs for a task. It has 2 x 4 CPUs and 1 GPUs."):
        list(pool(FakeRay([{"CPU": 4.0, "GPU": 1.0}] * 2), gpus_per_task=2).execute(shards(1)))


def test_a_shard_of_a_lost_worker_is_computed_again():
    ray, notes = FakeRay([{"CPU": 1.0}], {2: [RayError("the node died\nand more")]}), Notes()
    outcomes = list(pool(ray, notes).execute(shards(4)))
    assert sorted(outcome.samples.start for outcome in outcomes) == [0, 1, 2, 3]
    assert not any(outcome.violation for outcome in outcomes)
    assert ray.executed.count("c-2-3") == 2 and ray.actors == 2
    assert notes.texts == ["A worker was lost; another one computes cell, samples 2 to 2 again."]


def test_a_shard_that_kills_its_workers_fails_in_the_end():
    lost = [RayError("killed by signal 11") for _ in range(MAX_LOST_WORKERS)]
    ray = FakeRay([{"CPU": 1.0}], {1: lost})
    failed, *others = sorted(pool(ray).execute(shards(3)), key=lambda outcome: not outcome.violation)
    assert failed.violation == "exited" and "killed by signal 11" in failed.reason and failed.samples == Span(1, 2)
    assert len(others) == 2 and ray.executed.count("c-1-2") == MAX_LOST_WORKERS


def test_a_node_that_is_not_prepared_ends_the_run_with_one_line():
    ray = FakeRay([{"CPU": 1.0}], {1: [RayTaskError(UserError("worker on node7: dataset 'mnist' is missing"))]})
    with pytest.raises(UserError, match=r"^worker on node7: dataset 'mnist' is missing$"):
        list(pool(ray).execute(shards(3)))


def test_an_unforeseen_error_of_a_worker_keeps_its_traceback():
    ray = FakeRay([{"CPU": 1.0}], {1: [RayTaskError(KeyError("x"))]})
    with pytest.raises(RayTaskError, match="with a traceback"):
        list(pool(ray).execute(shards(3)))


def test_a_shard_whose_worker_cannot_start_goes_to_an_idle_one():
    ray = FakeRay([{"CPU": 2.0}], stuck=[True])
    outcomes = list(pool(ray).execute(shards(5)))
    assert sorted(outcome.samples.start for outcome in outcomes) == [0, 1, 2, 3, 4]


def test_nodes_may_leave_and_join():
    ray, notes = FakeRay([{"CPU": 1.0}, {"CPU": 1.0}]), Notes()
    outcomes = pool(ray, notes).execute(shards(6))
    next(outcomes)
    ray.rooms[1] = {}
    next(outcomes)
    ray.rooms.append({"CPU": 2.0})
    assert len(list(outcomes)) == 4
    assert [text.split(" for ")[1].split()[0] for text in notes.texts] == ["1", "3"]


def test_without_any_node_the_run_ends_after_a_while(monkeypatch):
    monkeypatch.setattr(ray_engine, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(ray_engine, "NODE_SECONDS", 0.02)
    ray = FakeRay([{"CPU": 1.0}])
    running = pool(ray)
    outcomes = running.execute(shards(3))
    next(outcomes)
    ray.rooms, running.idle = [{}], []
    with pytest.raises(UserError, match="The same command continues where it stopped"):
        list(outcomes)
