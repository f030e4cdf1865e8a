"""The choice of an engine: this machine, or a Ray cluster and what a task takes of its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from robustcaps.errors import UserError, did_you_mean
from robustcaps.execution.cluster.connection import check_address
from robustcaps.execution.cluster.ray_engine import ClusterOptions, RayEngine
from robustcaps.execution.engines import Engine, local
from robustcaps.suite.spec import ResourceSpec, parse_resources

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class EngineOptions:
    """The engine of a run; what is None is left to the suite, and then to the engine."""

    name: str = "local"
    address: str | None = None
    cpus_per_task: float | None = None
    gpus_per_task: float | None = None

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise UserError(f"unknown engine '{self.name}'. {did_you_mean(self.name, ENGINES)}")
        if self.name == "local" and self.words:
            raise UserError(f"{self.words[0]} needs --engine ray: the local engine executes one shard at a time.")
        check_address(self.address)
        parse_resources(cpus_per_task=self.cpus_per_task, gpus_per_task=self.gpus_per_task)

    @property
    def words(self) -> list[str]:
        """The options of the command line that say the same, without the engine's name."""
        options = {"address": self.address, "cpus-per-task": self.cpus_per_task, "gpus-per-task": self.gpus_per_task}
        return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]

    def make(self, resources: ResourceSpec) -> Engine:
        """Return the engine for a suite with its own wishes."""
        if self.name == "local":
            return local
        cpus = resources.cpus_per_task if self.cpus_per_task is None else self.cpus_per_task
        gpus = resources.gpus_per_task if self.gpus_per_task is None else self.gpus_per_task
        return RayEngine(ClusterOptions(self.address, cpus, gpus))
