"""A cluster of nodes on this machine, for tests and measurements; it listens on the loopback address only.

`python -m benchmarks.perf.nodes FOLDER NODES` prints the address; then each line on stdin is a command: 'kill'
ends the youngest node without warning, 'add' starts another one, and the process ends everything when stdin closes.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Start the nodes and obey."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    os.environ["RAY_TMPDIR"] = str(folder)  # where Ray also leaves a note of the cluster's address
    (folder / "ray").mkdir(parents=True, exist_ok=True)
    quiet: dict[str, Any] = {"include_dashboard": False, "num_cpus": 1, "object_store_memory": 100_000_000}
    cluster_class: Any = importlib.import_module("ray.cluster_utils").Cluster
    cluster = cluster_class(initialize_head=True, head_node_args={**quiet, "temp_dir": str(folder)})
    for _ in range(count - 1):
        cluster.add_node(**quiet)
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(max(cluster.worker_nodes, key=lambda node: node.unique_id), allow_graceful=False)
        elif line.strip() == "add":
            cluster.add_node(**quiet, wait=False)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
