"""Capsules: routing (pure functions, the definition), fused kernels, layers and losses."""
