"""Fused routing kernels for GPUs, in Triton, with a hand-derived backward pass.

They are tested in Triton's interpreter on a CPU and compiled for GPUs, but have not yet run on a GPU.
"""
