"""Point-to-point operations of a group, to be awaited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from multiworld.operations import p2p
from multiworld.operations.base import GroupBase
from multiworld.operations.p2p import P2P


class AsyncPointToPoint(GroupBase):
    """Send and receive; ``Group`` says what these operations have in common."""

    async def send(
        self, tensor: torch.Tensor, dst: int, *, tag: int = 0, stream: bool = False, timeout: float | None = None
    ) -> None:
        """Send ``tensor`` to rank ``dst``.

        When it returns, the receiver has posted a receive that fits, and the data is in this process's socket. It may
        not have arrived: if the receiver is lost now, the message is lost, and the world breaks afterwards. A program
        that only sends needs an answer of the receiver to know what has arrived.

        Args:
            tensor: contiguous tensor on the world's device or the CPU; it must not change before this returns. A
                lazily conjugated or negated one arrives resolved. Kinds whose memory is not their values (sparse,
                nested, quantized, fake, meta, subclasses with ``__torch_dispatch__``, ...) are refused by name.
            dst: rank in this group.
            tag: tells messages between the same two ranks apart; from 0 to 2**31 - 1.
            stream: return as soon as the transfer is matched and enqueued, see ``Group``.
            timeout: seconds; None is the world's ``op_timeout``.

        Raises:
            TensorMismatch: the receiver posted another length or dtype; the world stays usable.
            PeerLost, OpTimeout, WorldClosed: the world is broken or closed.
            InvalidArgument: wrong rank, kind of tensor, layout or device.
        """
        await self._run(timeout, p2p.send, tensor, dst, tag, stream)

    async def recv(
        self,
        tensor: torch.Tensor,
        src: int | None = None,
        *,
        tag: int = 0,
        stream: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Receive into ``tensor`` from rank ``src``, or from the first sender if None.

        Args:
            tensor: contiguous tensor of exactly the length and dtype that is sent. One that is lazily conjugated or
                negated, or lies in memory that is known to be read-only, is refused.
            src: rank in this group; None for any.
            tag: as in ``send``.
            stream: as in ``send``.
            timeout: seconds; None is the world's ``op_timeout``.

        Returns:
            The rank that it came from.

        Raises:
            TensorMismatch: the sender has another length or dtype; ``tensor`` is untouched, the world stays usable.
            PeerLost, OpTimeout, WorldClosed: the world is broken or closed.
            InvalidArgument: as in ``send``.
        """
        source: int = await self._run(timeout, p2p.recv, tensor, src, tag, stream)
        return source

    async def send_tensor(
        self, tensor: torch.Tensor, dst: int, *, tag: int = 0, stream: bool = False, timeout: float | None = None
    ) -> None:
        """Send ``tensor`` with its shape and dtype, for ``recv_tensor`` on the other side.

        Arguments as in ``send``; as there, it returns when the data is in the socket.
        """
        await self._run(timeout, p2p.send_tensor, tensor, dst, tag, stream)

    async def recv_tensor(
        self,
        src: int,
        *,
        tag: int = 0,
        stream: bool = False,
        timeout: float | None = None,
        device: torch.device | str | None = None,
    ) -> torch.Tensor:
        """Receive a tensor whose shape and dtype the sender says.

        Args:
            src: rank in this group.
            tag: as in ``send``.
            stream: as in ``send``.
            timeout: seconds; None is the world's ``op_timeout``.
            device: where the tensor is wanted; None is the world's device.

        Returns:
            A new tensor. Lengths above the world's ``max_message_bytes`` are refused with ``TensorMismatch``.
        """
        tensor: torch.Tensor = await self._run(timeout, p2p.recv_tensor, src, tag, device, stream)
        return tensor

    async def send_object(self, obj: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """Send any picklable object, for ``recv_object`` on the other side.

        Arguments as in ``send``; as there, it returns when the data is in the socket.
        Tensors in it, quantized ones too, and NumPy arrays and scalars of plain dtypes travel as their values; a
        parameter arrives as a tensor. Other kinds of tensors and arrays are refused by name.
        """
        await self._run(timeout, p2p.send_object, obj, dst, tag)

    async def recv_object(
        self, src: int, *, allow: Sequence[type | str] = (), tag: int = 0, timeout: float | None = None
    ) -> Any:
        """Receive an object.

        Args:
            src: rank in this group.
            allow: classes and functions that may be loaded, as objects or ``"module.qualname"``. They are called and
                filled with what the peer sent: allow only what you trust. Containers, numbers, text, bytes, dates,
                tensors and NumPy arrays always may be loaded, in work bounded by the length of the message. Anything
                else raises ``ObjectRefused`` and is not loaded.
            tag: as in ``send``.
            timeout: seconds; None is the world's ``op_timeout``.

        Raises:
            ObjectRefused: it needs what is not allowed, or more work than its length warrants; the world goes on.
        """
        return await self._run(timeout, p2p.recv_object, src, tag, allow)

    async def batch_p2p(
        self, operations: Sequence[P2P], *, stream: bool = False, timeout: float | None = None
    ) -> list[int | None]:
        """Start all ``operations`` at once and wait for all.

        Args:
            operations: ``P2P("send" | "recv", tensor, peer, tag)``; arguments are checked before any is started.
            stream: as in ``send``.
            timeout: seconds for all together; None is the world's ``op_timeout``.

        Returns:
            For each receive its source rank, for each send None, in the order given.
        """
        results: list[int | None] = await self._run(timeout, p2p.batch_p2p, operations, stream)
        return results
