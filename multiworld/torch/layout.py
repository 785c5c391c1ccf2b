"""Contiguous stand-ins for tensors that are laid out otherwise, and the way back into them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Layout:
    """The stand-ins of one work."""

    def __init__(self) -> None:
        self._back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor``, or a contiguous copy to read from."""
        return tensor if _fits(tensor) else tensor.detach().contiguous()

    def sources(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return each of ``tensors``, or a contiguous copy."""
        return [self.source(tensor) for tensor in tensors]

    def target(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor``, or a contiguous copy that is copied back at the end."""
        if _fits(tensor):
            return tensor
        copy = tensor.detach().contiguous()
        self._back.append((tensor, copy))
        return copy

    def targets(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return each of ``tensors``, or a contiguous copy that is copied back."""
        return [self.target(tensor) for tensor in tensors]

    def give_back(self) -> None:
        """Copy what was received to where it belongs."""
        with torch.no_grad():
            for tensor, copy in self._back:
                tensor.copy_(copy)


def _fits(tensor: torch.Tensor) -> bool:
    """Return whether it needs no stand-in; what is not strided is refused by name, where it is begun."""
    return tensor.layout is not torch.strided or tensor.is_contiguous()
