"""The engine for Ray clusters: a pool of workers, one shard at a time each; lost workers are replaced."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robustcaps.errors import UserError
from robustcaps.execution.cluster.connection import connected
from robustcaps.execution.cluster.shard_worker import ShardWorker, WorkerSetup
from robustcaps.execution.cluster.shipment import Plugin, WeightsFile, package_digest, weights_paths
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.run_progress import ShardProgress
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.shard import Shard

MAX_LOST_WORKERS = 3
"""So many workers may die of a shard, or while they execute it, before its cell fails."""
POLL_SECONDS = 0.5
"""Time between two looks at the workers."""
CAPACITY_SECONDS = 2.0
"""Time between two looks at the nodes: they may join and leave."""
NODE_SECONDS = 600.0
"""How long to wait for a node when none is left."""


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster to use, and what a task takes of its nodes."""

    address: str | None = None
    """'host:port', 'auto', or None for a cluster on this machine that ends with the run."""
    cpus_per_task: float | None = None
    """By default 1."""
    gpus_per_task: float | None = None
    """By default 1 if the cluster has GPUs and the device may be one, else 0."""


@dataclass(frozen=True)
class RayEngine:
    """Executes shards on a Ray cluster."""

    options: ClusterOptions

    def __call__(self, shards: Iterable[Shard], resolver: Resolver, progress: ShardProgress) -> Iterator[Outcome]:
        """Execute the shards, as many at a time as the cluster has room for; outcomes come as they are ready."""
        with connected(self.options.address) as ray:
            pool = WorkerPool(ray, self.options, resolver.config, progress)
            try:
                yield from pool.execute(shards)
            finally:
                pool.close()


@dataclass(eq=False)
class Assignment:
    """A worker and the shard that it executes."""

    actor: Any
    shard: Shard
    result: Any
    answer: Any = None
    """What will say how far the worker is."""
    is_started: bool = False


class WorkerPool:
    """The workers of a run: never more shards in flight than the nodes have room for."""

    def __init__(self, ray: Any, options: ClusterOptions, config: RuntimeConfig, progress: ShardProgress) -> None:
        self.ray = ray
        self.progress = progress
        self.cpus = 1.0 if options.cpus_per_task is None else options.cpus_per_task
        self.gpus = _default_gpus(ray, config.device) if options.gpus_per_task is None else options.gpus_per_task
        data_dir = None if config.data_dir is None else config.data_dir.absolute()
        self.setup = ray.put(
            WorkerSetup(
                replace(config, data_dir=data_dir, plugins=()),
                [Plugin.pack(path) for path in config.plugins],
                package_digest(),
                self.cpus,
                has_own_data=options.address is not None,
            )
        )
        self.actor_class = ray.remote(
            num_cpus=self.cpus, num_gpus=self.gpus, max_concurrency=2, scheduling_strategy="SPREAD"
        )(ShardWorker)
        self.weights: dict[Path, Any] = {}
        self.at_work: dict[Any, Assignment] = {}
        self.idle: list[Any] = []
        self.again: deque[Shard] = deque()
        self.losses: Counter[str] = Counter()
        self.capacity, self.last_look, self.last_room = 0, 0.0, time.monotonic()

    def execute(self, shards: Iterable[Shard]) -> Iterator[Outcome]:
        """Yield the outcomes of shards, which are taken one by one as there is room."""
        queue = iter(shards)
        self._look_at_nodes()
        if not self.capacity:
            raise UserError(f"{self._describe_need()} It has {self._describe_nodes()}.")
        while True:
            self._look_at_nodes()
            is_empty = self._assign(queue)
            if not self.at_work and is_empty:
                return
            self._wait_for_nodes()
            ready, _ = (
                self.ray.wait(list(self.at_work), num_returns=1, timeout=POLL_SECONDS) if self.at_work else ([], 0)
            )
            for result in ready:
                outcome = self._finish(self.at_work.pop(result))
                if outcome is not None:
                    yield outcome
            self._ask_for_progress()

    def close(self) -> None:
        """End the workers."""
        for actor in [*self.idle, *(each.actor for each in self.at_work.values())]:
            self.ray.kill(actor)

    def _assign(self, queue: Iterator[Shard]) -> bool:
        """Give shards to idle and new workers; return whether there are none left to give."""
        while self.idle or len(self.at_work) < self.capacity:
            shard = self.again.popleft() if self.again else next(queue, None)
            if shard is None:
                shard = self._take_back() if self.idle else None
            if shard is None:
                return True
            self._start(shard)
        return False

    def _start(self, shard: Shard) -> None:
        """Send a shard to an idle worker, or to a new one."""
        actor = self.idle.pop() if self.idle else self.actor_class.remote(self.setup)
        for path in weights_paths(shard.cell):
            if path not in self.weights:
                self.weights[path] = self.ray.put(WeightsFile.pack(path))
        result = actor.execute.remote(shard, {path: self.weights[path] for path in weights_paths(shard.cell)})
        self.at_work[result] = Assignment(actor, shard, result)

    def _take_back(self) -> Shard | None:
        """Return a shard whose worker has not been able to start, because its node is full or gone."""
        for assignment in self.at_work.values():
            if not assignment.is_started and assignment.answer is not None:
                del self.at_work[assignment.result]
                self.ray.kill(assignment.actor)
                return assignment.shard
        return None

    def _finish(self, assignment: Assignment) -> Outcome | None:
        """Return the outcome of a shard, or None if its worker is lost and another one will try."""
        shard = assignment.shard
        try:
            outcome: Outcome = self.ray.get(assignment.result)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(str(error.cause)) from error
            raise
        except self.ray.exceptions.RayError as error:
            return self._replace(assignment, str(error).strip().partition("\n")[0])
        self._report_start(assignment)
        self.idle.append(assignment.actor)
        return replace(outcome, cell=shard.cell)

    def _replace(self, assignment: Assignment, reason: str) -> Outcome | None:
        """Let another worker execute the shard of one that is lost, but not for ever."""
        shard = assignment.shard
        self.losses[shard.id] += 1
        if self.losses[shard.id] < MAX_LOST_WORKERS:
            self.progress.noted(f"A worker was lost; another one computes {shard.label} again.")
            self.again.append(shard)
            return None
        trace = f"lost {MAX_LOST_WORKERS} workers while they computed this shard; the last one: {reason}"
        return Outcome(shard.cell, 0.0, violation="exited", trace=trace, samples=shard.samples)

    def _ask_for_progress(self) -> None:
        """Report how far the workers are that have answered, and ask all of them again."""
        answers = [each.answer for each in self.at_work.values() if each.answer is not None]
        ready = set(self.ray.wait(answers, num_returns=len(answers), timeout=0)[0]) if answers else set()
        for assignment in self.at_work.values():
            if assignment.answer in ready:
                self._report(assignment)
                assignment.answer = None
            if assignment.answer is None:
                assignment.answer = assignment.actor.progress.remote()

    def _report(self, assignment: Assignment) -> None:
        try:
            done, total = self.ray.get(assignment.answer)
        except self.ray.exceptions.RayError:  # the result tells of it, too
            return
        self._report_start(assignment)
        if total:
            self.progress.advanced(assignment.shard, done, total)

    def _report_start(self, assignment: Assignment) -> None:
        if not assignment.is_started:
            assignment.is_started = True
            self.progress.started(assignment.shard)

    def _look_at_nodes(self) -> None:
        """Find out how many tasks the nodes have room for; forget idle workers whose node is gone."""
        now = time.monotonic()
        if self.last_look and now - self.last_look < CAPACITY_SECONDS:
            return
        before, self.last_look = self.capacity, now
        self.capacity = sum(self._room(node) for node in self.ray.nodes())
        if self.capacity:
            self.last_room = now
        if before and self.capacity != before:
            self.progress.noted(f"The cluster has room for {self.capacity} tasks now, before for {before}.")
        if self.capacity < before:
            self._drop_idle()

    def _drop_idle(self) -> None:
        """Keep the idle workers that still answer."""
        answers = {actor.progress.remote(): actor for actor in self.idle}
        ready = self.ray.wait(list(answers), num_returns=len(answers), timeout=POLL_SECONDS)[0] if answers else []
        self.idle = [answers[answer] for answer in ready if _is_value(self.ray, answer)]

    def _room(self, node: dict[str, Any]) -> int:
        """Return how many tasks fit on a node."""
        resources = node["Resources"] if node["Alive"] else {}
        needs = {"CPU": self.cpus, "GPU": self.gpus}
        rooms = [int(resources.get(name, 0.0) / need + 1e-6) for name, need in needs.items() if need]
        return min(rooms, default=1) if resources else 0

    def _wait_for_nodes(self) -> None:
        """Wait a while if no node is left."""
        if self.capacity:
            return
        if time.monotonic() - self.last_room > NODE_SECONDS:
            raise UserError(f"{self._describe_need()} The same command continues where it stopped.")
        if not self.at_work:
            time.sleep(POLL_SECONDS)

    def _describe_need(self) -> str:
        return f"engine 'ray': no node of the cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs for a task."

    def _describe_nodes(self) -> str:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        texts = [f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes]
        return ", ".join(f"{count} x {text}" for text, count in Counter(texts).items()) or "no nodes"


def _default_gpus(ray: Any, device: str) -> float:
    """Return the GPUs of a task: one where there are any, unless they are not wanted."""
    has_gpus = ray.cluster_resources().get("GPU", 0) > 0
    return 1.0 if device.startswith("cuda") or (device == "auto" and has_gpus) else 0.0


def _is_value(ray: Any, answer: Any) -> bool:
    """Return whether a worker has answered, and not died."""
    try:
        ray.get(answer)
    except ray.exceptions.RayError:
        return False
    return True
