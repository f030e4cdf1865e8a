"""The peak memory of a training step's forward and backward pass, each measured in a process of its own.

Counted is the highest resident set during a pass over the batch, gradients included, less the resident set before it:
after the imports, the building of the model and a pass over a single image, which loads the kernels.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import cast

from benchmarks.perf.implementations import Implementation, backend_of, batch_of, build, train

ROOT = Path(__file__).parent.parent.parent
STATUS = Path("/proc/self/status")
FORGET = Path("/proc/self/clear_refs")


def peak_memory(model: str, implementation: Implementation, batch: int) -> int:
    """Return how many bytes a forward and backward pass over a batch needs at its peak, beyond one over an image."""
    command = [sys.executable, "-m", "benchmarks.perf.memory", model, implementation, str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"memory of {model}, {implementation}, batch {batch}: {done.stderr.strip()}")
    return int(done.stdout)


def free_memory() -> int:
    """Return how many bytes of memory are free; all there are where the system does not tell."""
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def high_water() -> int:
    """Return the largest resident set that this process has had, in bytes.

    On Linux ru_maxrss would be inherited from the process that started this one; elsewhere (macOS) it is what we want.
    """
    if not STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (line,) = (line for line in STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def forget_peaks() -> None:
    """Set the high-water mark back to the present resident set, where the system can (Linux)."""
    if FORGET.exists():
        FORGET.write_text("5", encoding="ascii")


def main() -> None:
    """Print the peak memory of the arguments' model, implementation and batch."""
    model, implementation, batch = sys.argv[1], cast("Implementation", sys.argv[2]), int(sys.argv[3])
    network = build(model, implementation)
    with backend_of(implementation):
        train(network, *batch_of(1))
        network.zero_grad()
        forget_peaks()
        before = high_water()
        train(network, *batch_of(batch))
    print(high_water() - before)


if __name__ == "__main__":
    main()
