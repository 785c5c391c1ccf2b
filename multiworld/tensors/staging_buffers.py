"""The tensors of one collective as flat memory that the lanes or the backend can use, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from multiworld.matching.device import Device, Moment
from multiworld.tensors import memory_check
from multiworld.tensors.staging import copied, copy_to, is_aligned, readable, writable


class StagingBuffers:
    """Flat tensors where the backend wants them: on the device that it works on, else aligned on the CPU. Keeps all
    alive until the end.

    Those that need not be moved are the caller's memory, until ``own`` is called.

    Args:
        device: where the tensors are, and stay; None if they travel through the CPU.
    """

    def __init__(self, device: Device | None = None) -> None:
        self.device, self.on_device = device, device is not None
        self._moment: Moment | None = None
        self._kept: list[torch.Tensor] = []
        self._borrowed: list[torch.Tensor] = []
        self._back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` to be read."""
        flat = readable(tensor).reshape(-1)
        return self._borrow(flat) if self._in_place(flat) else self.keep(copied(flat))

    def target(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` to be written."""
        flat = writable(tensor).reshape(-1)
        if self._in_place(flat):
            return self._borrow(flat, written=True)
        return self._stage(flat, torch.empty(flat.shape, dtype=flat.dtype, device="cpu"))

    def both(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` to be read, then written."""
        flat = writable(tensor).reshape(-1)
        if self._in_place(flat):
            return self._borrow(flat, written=True)
        return self._stage(flat, copied(flat))

    def joined(self, flats: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the content of ``flats``, one after the other, in memory of the collective's own."""
        if self.device is None:
            return self.keep(torch.cat(list(flats)))
        whole = torch.empty(sum(map(torch.Tensor.numel, flats)), dtype=flats[0].dtype, device=flats[0].device)
        for piece, flat in zip(whole.split([flat.numel() for flat in flats]), flats, strict=True):
            piece.copy_(flat)  # by the device's copy engines, without a kernel
        return self.keep(whole)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory of the collective's own."""
        self._kept.append(tensor)
        return tensor

    def begin(self) -> None:
        """Note the moment up to which the backend has to wait for the caller's work. Without a lock."""
        if self.device is not None:
            self._moment = self.device.now()

    @property
    def after(self) -> Any:
        """The event that the backend waits for; None if there is none."""
        return None if self._moment is None else self._moment.event

    def finish(self, value: Any) -> Any:
        """Copy back what was staged, in the thread that waits."""
        for target, staged in self._back:
            copy_to(target, staged)
        return value

    def own(self) -> None:
        with torch.inference_mode():  # allows it for tensors that were made in that mode, too
            if self.device is None or self._moment is None:
                copies = [flat.clone() for flat in self._borrowed]
            else:
                copies, self._moment = self.device.copies_of(self._borrowed, self._moment)
            for flat, copy in zip(self._borrowed, copies, strict=True):
                flat.set_(copy)
        self._borrowed.clear()
        self._back.clear()

    def loans(self) -> list[torch.Tensor]:
        """The caller's memory, or what is used instead of it."""
        return [flat.detach() for flat in self._borrowed]

    def _borrow(self, flat: torch.Tensor, *, written: bool = False) -> torch.Tensor:
        if memory_check.ACTIVE and self.device is None:
            used = copied(flat)
            if written:
                self._back.append((flat, used))
            flat = used
        self._borrowed.append(flat)
        return flat

    def _stage(self, target: torch.Tensor, staged: torch.Tensor) -> torch.Tensor:
        self._back.append((target, staged))
        return self.keep(staged)

    def _in_place(self, flat: torch.Tensor) -> bool:
        return self.on_device or (flat.device.type == "cpu" and is_aligned(flat))
