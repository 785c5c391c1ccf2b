"""Point-to-point operations of a group, waiting in the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from multiworld.ops import p2p
from multiworld.ops.base import SyncBase

if TYPE_CHECKING:
    from multiworld.ops.p2p import P2P


class SyncPointToPoint(SyncBase):
    """The same operations, arguments and errors as the awaitable ones, each waiting in the calling thread.

    An interrupted wait (``KeyboardInterrupt``) means what a cancelled await means.
    """

    def send(self, tensor: torch.Tensor, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """``send`` of the group, waiting in this thread."""
        self._run(timeout, p2p.send, tensor, dst, tag)

    def recv(self, tensor: torch.Tensor, src: int | None = None, *, tag: int = 0, timeout: float | None = None) -> int:
        """``recv`` of the group, waiting in this thread."""
        source: int = self._run(timeout, p2p.recv, tensor, src, tag)
        return source

    def send_tensor(self, tensor: torch.Tensor, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """``send_tensor`` of the group, waiting in this thread."""
        self._run(timeout, p2p.send_tensor, tensor, dst, tag)

    def recv_tensor(
        self,
        src: int,
        *,
        tag: int = 0,
        timeout: float | None = None,
        device: torch.device | str | None = None,
    ) -> torch.Tensor:
        """``recv_tensor`` of the group, waiting in this thread."""
        tensor: torch.Tensor = self._run(timeout, p2p.recv_tensor, src, tag, device)
        return tensor

    def send_object(self, obj: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """``send_object`` of the group, waiting in this thread."""
        self._run(timeout, p2p.send_object, obj, dst, tag)

    def recv_object(
        self, src: int, *, allow: Sequence[type | str] = (), tag: int = 0, timeout: float | None = None
    ) -> Any:
        """``recv_object`` of the group, waiting in this thread."""
        return self._run(timeout, p2p.recv_object, src, tag, allow)

    def batch_p2p(self, operations: Sequence[P2P], *, timeout: float | None = None) -> list[int | None]:
        """``batch_p2p`` of the group, waiting in this thread."""
        results: list[int | None] = self._run(timeout, p2p.batch_p2p, operations)
        return results
