"""Routing on a GPU: fused kernels in Triton with a backward pass derived by hand.

They are tested with Triton's interpreter, on a CPU, and compiled for GPUs; no GPU has run them yet.
"""
