"""Fused routing kernels for the CPU, in Numba, with a hand-derived backward pass."""
