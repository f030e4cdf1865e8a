"""Speed and memory of the models, beside a plain textbook implementation: `make perf`."""
