"""CPU memory for tensors that are elsewhere; a CPU tensor is its own."""

from __future__ import annotations

import torch

from multiworld.ops import quarantine
from multiworld.ops.checks import as_plain


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of ``tensor`` as a plain tensor: without its class, outside of autograd and of inference mode.

    It was checked before. Called outside of inference mode, see ``ops.modes``.
    """
    plain = as_plain(tensor).detach()
    if plain.is_inference():  # these may not be changed in place by whoever is not in that mode
        alias = torch.empty(0, dtype=plain.dtype, device=plain.device)
        return alias.set_(plain.untyped_storage(), plain.storage_offset(), plain.shape, plain.stride())
    return plain


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The same, to be read only: what is lazily conjugated or negated comes as a copy in which that is done."""
    plain = as_plain(tensor).detach()
    if plain.is_conj() or plain.is_neg():
        return plain.resolve_conj().resolve_neg()
    return plain


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` to be read, itself if it is on the CPU, else a copy there."""
    tensor = readable(tensor)
    if quarantine.ACTIVE:
        return quarantine.copy_of(tensor.cpu())
    return tensor if tensor.is_cpu else tensor.cpu()


def receive_buffer(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself if it is on the CPU, else CPU memory of its shape and dtype, to be copied back."""
    if tensor.is_cpu and not quarantine.ACTIVE:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
