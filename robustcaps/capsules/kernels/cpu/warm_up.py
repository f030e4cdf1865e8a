"""Compile the kernels into their cache: `python -m robustcaps.capsules.kernels.cpu.warm_up`."""

from __future__ import annotations

import torch

from robustcaps.capsules.routing import convolution, em_routing


def compile_kernels() -> None:
    """Route one sample forward and backward: the kernels are compiled for types and ranks, whatever the sizes are."""
    wiring = convolution(2, 2, 1)
    poses, activations = torch.zeros(1, 4, 1, 16), torch.full((1, 4, 1), 0.5)
    transforms = torch.ones(4, 1, 1, 4, 4, requires_grad=True)
    routed = em_routing(
        poses,
        activations,
        transforms,
        wiring,
        beta_a=torch.zeros(1),
        beta_u=torch.zeros(1),
        inverse_temperature=torch.tensor([0.1, 0.2]),
        variance_floor=0.1,
        backend="numba",
    )
    torch.autograd.backward(routed.poses.sum())


if __name__ == "__main__":
    torch.set_num_threads(1)
    compile_kernels()
