"""CPU memory for tensors that are elsewhere or lie unaligned; any other CPU tensor is its own."""

from __future__ import annotations

import torch

from multiworld.tensors import memory_check
from multiworld.tensors.checks import as_plain
from multiworld.tensors.kinds import PLAIN_TYPES


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of ``tensor`` as a plain tensor: without its class, outside of autograd and of inference mode.

    It was checked before. Called outside of inference mode, see ``process.torch_modes``.
    """
    plain = (tensor if type(tensor) in PLAIN_TYPES else as_plain(tensor)).detach()
    if plain.is_inference():  # outside of that mode these may not be changed in place
        alias = torch.empty(0, dtype=plain.dtype, device=plain.device)
        return alias.set_(plain.untyped_storage(), plain.storage_offset(), plain.shape, plain.stride())
    return plain


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The same, to be read only: what is lazily conjugated or negated comes as a copy in which that is done."""
    plain = as_plain(tensor).detach()
    if plain.is_conj() and plain.is_cpu and not is_aligned(plain):
        plain = copied(plain.conj()).conj()
    if plain.is_conj() or plain.is_neg():
        return plain.resolve_conj().resolve_neg()
    return plain


def is_aligned(tensor: torch.Tensor) -> bool:
    """Return whether each element lies at a multiple of its size, where every operation of torch can use it."""
    return bool(tensor.data_ptr() % tensor.element_size() == 0)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a plain CPU tensor, wherever it lies, in memory of torch's own."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    copy_to(copy, tensor)
    return copy


def copy_to(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy plain tensors, wherever they lie: torch's own copy of complex128 ends the process where one is unaligned."""
    _as_real(target).copy_(_as_real(tensor))


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` to be read, itself if it is on the CPU, else a copy there."""
    in_memory = type(tensor) in PLAIN_TYPES and tensor.is_cpu and not (tensor.is_conj() or tensor.is_neg())
    plain = tensor.detach() if in_memory else readable(tensor)
    if memory_check.ACTIVE:
        return copied(plain)
    return plain if plain.is_cpu else plain.cpu()


def receive_buffer(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself if it is on the CPU, else CPU memory of its shape and dtype, to be copied back."""
    if tensor.is_cpu and not memory_check.ACTIVE:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
