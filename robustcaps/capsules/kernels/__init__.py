"""Fused routing kernels: the same results as the definition in `routing`, many times faster."""
