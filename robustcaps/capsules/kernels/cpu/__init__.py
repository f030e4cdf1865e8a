"""Routing on a CPU: fused kernels in Numba with a backward pass derived by hand."""
