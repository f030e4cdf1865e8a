"""Speed and memory of the models, beside a plain textbook implementation: `make perf`."""

import robustcaps  # noqa: F401  before torch: it says how PyTorch's threads wait for work
