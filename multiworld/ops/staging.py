"""CPU memory for tensors that are elsewhere; a CPU tensor is its own."""

from __future__ import annotations

import torch


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself if it is on the CPU, else a copy there."""
    tensor = tensor.detach()
    return tensor if tensor.device.type == "cpu" else tensor.cpu()


def receive_buffer(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself if it is on the CPU, else CPU memory of its shape and dtype, to be copied back."""
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
