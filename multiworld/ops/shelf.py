"""The tensors of one collective as flat memory that the lanes or the backend can use, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from multiworld.ops.staging import readable, writable

if TYPE_CHECKING:
    from multiworld.session import Session


class Shelf:
    """Flat tensors where the backend wants them: on the CPU, except for NCCL. Keeps all alive until the end."""

    def __init__(self, session: Session) -> None:
        self._as_is = session.config.backend == "nccl"
        self._kept: list[torch.Tensor] = []
        self._back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` to be read."""
        flat = readable(tensor).reshape(-1)
        if not self._in_place(flat):
            flat = flat.cpu()
        self._kept.append(flat)
        return flat

    def target(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` to be written."""
        flat = writable(tensor).reshape(-1)
        if not self._in_place(flat):
            staged = torch.empty(flat.shape, dtype=flat.dtype, device="cpu")
            self._back.append((flat, staged))
            flat = staged
        self._kept.append(flat)
        return flat

    def both(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` to be read, then written."""
        flat = writable(tensor).reshape(-1)
        if not self._in_place(flat):
            staged = flat.cpu()
            self._back.append((flat, staged))
            flat = staged
        self._kept.append(flat)
        return flat

    def raw(self, flat: torch.Tensor) -> torch.Tensor:
        """``flat`` as bytes, so that the backend moves any dtype."""
        return flat.view(torch.uint8)

    def raws(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Each as bytes."""
        return [self.raw(flat) for flat in flats]

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory of the collective's own."""
        self._kept.append(tensor)
        return tensor

    def finish(self, value: Any) -> Any:
        """Copy back what was staged, in the thread that waits."""
        for target, staged in self._back:
            target.copy_(staged)
        return value

    def _in_place(self, flat: torch.Tensor) -> bool:
        return self._as_is or flat.device.type == "cpu"
