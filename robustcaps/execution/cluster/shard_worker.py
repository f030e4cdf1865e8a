"""A worker of a cluster: a process that executes shards and keeps its models and data for the next one."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from robustcaps.errors import UserError
from robustcaps.execution.cluster.shipment import Plugin, WeightsFile, package_digest, with_weights
from robustcaps.execution.engines import execute_shard
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.isolation.worker import Worker
from robustcaps.models.cards import weights_digest
from robustcaps.suite.cell import Cell, DiagnosticTask
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.shard import Shard

DATA_VARIABLE = "ROBUSTCAPS_DATA"


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs when it starts."""

    config: RuntimeConfig
    """Of the run; its plugins are replaced by the ones that were sent."""
    plugins: Sequence[Plugin]
    digest: str
    """Of the code of this package where the run was started."""
    cpus: float
    has_own_data: bool
    """Whether $ROBUSTCAPS_DATA of the worker comes before the data directory of the run."""


class ShardWorker:
    """Executes one shard at a time; another thread may ask how far it is."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.setup = setup
        self.folder = tempfile.TemporaryDirectory(prefix="robustcaps-worker-")
        self.resolver: Resolver | None = None
        self.worker: Worker | None = None
        self.verified: set[tuple[str, ...]] = set()
        self.steps = (0, 0)

    def progress(self) -> tuple[int, int]:
        """Return the steps done and all steps of the shard at work, (0, 0) before the first one."""
        return self.steps

    def execute(self, shard: Shard, weights: Mapping[Path, Any]) -> Outcome:
        """Execute a shard; `weights` refers to the contents of the files that its models need.

        Raises:
            UserError: This machine is not prepared: other code, missing data.
        """
        self.steps = (0, 0)
        try:
            resolver, worker = self._prepare()
            places = {path: self._fetch(reference) for path, reference in weights.items()}
            moved = replace(shard, cell=with_weights(shard.cell, places))
            self._verify_data(moved.cell, resolver)
        except UserError as error:
            raise UserError(f"worker on {platform.node()}: {error}") from error
        outcome = execute_shard(moved, resolver, worker, self._advance)
        return replace(outcome, cell=replace(shard.cell, settings={}))

    def _advance(self, done: int, total: int) -> None:
        self.steps = (done, total)

    def _prepare(self) -> tuple[Resolver, Worker]:
        """Return what executes shards, made for the first one."""
        if self.resolver is None or self.worker is None:
            if package_digest() != self.setup.digest:
                raise UserError("it has other code of robustcaps; install the version of the machine that runs this.")
            if "OMP_NUM_THREADS" not in os.environ:
                torch.set_num_threads(max(1, int(self.setup.cpus)))
            folder = Path(self.folder.name)
            numbered = enumerate(self.setup.plugins)
            plugins = tuple(plugin.unpack(folder / f"plugin{number}") for number, plugin in numbered)
            config = replace(self.setup.config, plugins=plugins)
            if self.setup.has_own_data and os.environ.get(DATA_VARIABLE):
                config = replace(config, data_dir=None)
            self.resolver, self.worker = Resolver(config), Worker(config)
        return self.resolver, self.worker

    def _fetch(self, reference: Any) -> Path:
        """Return the place of a file of weights, fetched from the cluster."""
        import ray  # noqa: PLC0415  an optional extra

        file: WeightsFile = ray.get(reference)
        return file.unpack(Path(self.folder.name) / "weights")

    def _verify_data(self, cell: Cell, resolver: Resolver) -> None:
        """Refuse data and weights that are not those that the cell's id stands for."""
        key = (cell.model.model_dump_json(), cell.data.model_dump_json(), str(cell.settings["data"]["digest"]))
        if key in self.verified:
            return
        data = resolver.data(cell.data)
        if isinstance(cell.task, DiagnosticTask):
            data = data.first(cell.task.diagnostic.limit)
        if data.digest != cell.settings["data"]["digest"]:
            raise UserError(f"dataset '{cell.data.label}' is not the same there: its digest differs.")
        if weights_digest(resolver.model(cell.model, cell.data)) != cell.settings["model"]["digest"]:
            raise UserError(f"model '{cell.model.label}' is not the same there: the digest of its weights differs.")
        self.verified.add(key)
