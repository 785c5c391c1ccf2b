"""CPU memory for tensors that are elsewhere; a CPU tensor is its own."""

from __future__ import annotations

import torch

from multiworld.ops import quarantine


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself if it is on the CPU, else a copy there."""
    tensor = tensor.detach()
    if quarantine.ACTIVE:
        return quarantine.copy_of(tensor.cpu())
    return tensor if tensor.device.type == "cpu" else tensor.cpu()


def receive_buffer(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself if it is on the CPU, else CPU memory of its shape and dtype, to be copied back."""
    if tensor.device.type == "cpu" and not quarantine.ACTIVE:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
