"""Execution of shards on a Ray cluster: one that is there, or one on this machine that ends with the run."""
