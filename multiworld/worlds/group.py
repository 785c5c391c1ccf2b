"""A group of members of one world: all operations, awaitable, and their synchronous twins."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import Any, ClassVar

import torch
from torch.distributed import ReduceOp, distributed_c10d

from multiworld.errors import InvalidArgument
from multiworld.operations import collectives, exchanges, objects, p2p
from multiworld.operations.call import Call, GroupBase
from multiworld.operations.p2p import P2P
from multiworld.operations.plain_messages import broadcast_plain, exchange, exchange_awaited
from multiworld.process.threads import blocking
from multiworld.session.member import Member
from multiworld.worlds.twins import WaitingCall, twin

Tensors = Sequence[torch.Tensor]


class Group(GroupBase):
    """Some or all members of a world. Made by ``World.group``; a ``World`` is the group of all its members.

    It lives and breaks with its world, and works again after the world's ``rejoin()``. ``timeout`` is in seconds, None
    is the world's ``op_timeout``; when it passes, the world breaks with ``OpTimeout``. All operations raise
    ``PeerLost``, ``OpTimeout`` and ``WorldClosed`` on a broken or closed world, and ``InvalidArgument`` at once for
    arguments that cannot be right. After an operation has returned or raised, its tensors are the caller's: nothing
    here reads or writes them.

    **Messages** start when they are awaited, in the order of the awaits, per peer and tag. A send waits until its
    receive is posted and both agree on length and dtype; no payload moves before that. A cancelled await breaks nothing
    and loses no message. What the peer has not matched yet is withdrawn. A send that is matched goes on from a copy. A
    message that is on its way is kept for the next receive of that peer and tag; the cancelled receive's tensor may
    hold a part of it.

    **Collectives** are called by every member, in the same order; ranks are those of this group. Before any payload
    moves the members compare what they were called with. If anything differs, all of them raise ``TensorMismatch`` and
    the world stays usable.

    A cancelled collective breaks the world, because the other members count on it: all of them get a ``PeerLost`` whose
    ``how`` is ``"cancelled"``. In a world that was joined with ``on_cancel="finish"`` it goes on without its caller.
    Until all members have called it, the await ends at once and the collective goes on with copies. After that it ends
    when the collective does, if a member sends more than 512 KB to all others together, or tensors on a device. Either
    way the tensors that were to be written are undefined.

    **CUDA tensors**, in a world whose backend works on a CUDA device, go from device to device. CPU tensors of any
    length go over the lanes there. All members pass the same kind. Nothing is launched before all have called, so
    what waits for its peer costs the device nothing. An operation begins when the caller's current stream has come to
    where it was when the operation was called. What the caller enqueues in its current stream after the operation finds
    it done. What is matched on the device cannot be withdrawn: a cancelled await ends when that transfer does.

    With ``stream=True`` the operation returns when it is matched and enqueued, not when it is done: the caller's stream
    waits for it, the caller does not. If such an operation fails, the world breaks: the next operation,
    ``World.synchronize`` and ``WorldBroken`` say why. On the CPU ``stream`` changes nothing.
    """

    _call: ClassVar = Call

    def __init__(self, member: Member, ranks: tuple[int, ...], gid: int, digest: int = 0) -> None:
        self.member = member
        self.ranks = ranks
        self.gid = gid
        self.digest = digest
        self._sync_group = SyncGroup(self)
        self._process_group: Any = None

    def __eq__(self, other: object) -> bool:
        self._refuse_torch(sys._getframe(1))
        return object.__eq__(self, other)

    def __hash__(self) -> int:
        self._refuse_torch(sys._getframe(1))
        return object.__hash__(self)

    def _refuse_torch(self, caller: FrameType) -> None:
        """Raise if ``torch.distributed`` asks: it compares or looks up every group that it is given, first of all."""
        if caller.f_globals is vars(distributed_c10d):
            name = self.member.name
            raise InvalidArgument(
                name,
                f"{self!r} is no ProcessGroup, and the functions of torch.distributed take nothing else",
                cause="a world, or a group of it, was given to one of torch's own functions",
                remedy="call the operation of the world itself: await world.all_reduce(tensor), or "
                "world.sync.all_reduce(tensor); what needs a ProcessGroup takes one of torch.distributed.new_group",
                rank=self.member.world_rank,
            ) from None

    @property
    def sync(self) -> SyncGroup:
        """Every operation, waiting in the calling thread: ``w.sync.all_reduce(t)`` for ``await w.all_reduce(t)``.

        Arguments, results and errors are those of the awaitable methods. An interrupted wait (``KeyboardInterrupt``)
        means what a cancelled await means: it breaks the world of a collective. With ``on_cancel="finish"``, the wait
        for a large collective that all have called ends when the collective does; a second interrupt breaks the world
        to end it.
        """
        return self._sync_group

    @property
    def process_group(self) -> Any:
        """This group as a ``torch.distributed.ProcessGroup``, a ``multiworld.torch.WorldProcessGroup``.

        One object for all generations, which is registered with torch.distributed as ``mw:<world>:<number>``. Give it
        to DDP, FSDP2, DeviceMesh and the functions of ``torch.distributed``; root ranks are those of this group.
        """
        if self._process_group is None:
            torch_side = import_module("multiworld.torch.process_group")  # a layer above, for those who ask for it
            self._process_group = torch_side.made(self)
        return self._process_group

    def __repr__(self) -> str:
        return f"Group(world={self.member.name!r}, ranks={self.ranks})"

    # messages

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
        if await exchange_awaited(self, "send", tensor, dst, tag, timeout, stream):
            return
        with self._call(self, "send", timeout) as call:
            await call.done(p2p.send(call.engine, self, tensor, dst, tag, stream))

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
        if src is not None and await exchange_awaited(self, "recv", tensor, src, tag, timeout, stream):
            return src
        with self._call(self, "recv", timeout) as call:
            source: int = await call.done(p2p.recv(call.engine, self, tensor, src, tag, stream))
        return source

    async def send_tensor(
        self, tensor: torch.Tensor, dst: int, *, tag: int = 0, stream: bool = False, timeout: float | None = None
    ) -> None:
        """Send ``tensor`` with its shape and dtype, for ``recv_tensor`` on the other side.

        Arguments as in ``send``; as there, it returns when the data is in the socket.
        """
        with self._call(self, "send_tensor", timeout) as call:
            await call.done(p2p.send_tensor(call.engine, self, tensor, dst, tag, stream))

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
        with self._call(self, "recv_tensor", timeout) as call:
            tensor: torch.Tensor = await call.done(p2p.recv_tensor(call.engine, self, src, tag, device, stream))
        return tensor

    async def send_object(self, obj: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """Send any picklable object, for ``recv_object`` on the other side.

        Arguments as in ``send``; as there, it returns when the data is in the socket.
        Tensors in it, quantized ones too, and NumPy arrays and scalars of plain dtypes travel as their values; a
        parameter arrives as a tensor. Other kinds of tensors and arrays are refused by name.
        """
        with self._call(self, "send_object", timeout) as call:
            await call.done(p2p.send_object(call.engine, self, obj, dst, tag))

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
        with self._call(self, "recv_object", timeout) as call:
            return await call.done(p2p.recv_object(call.engine, self, src, tag, allow))

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
        with self._call(self, "batch_p2p", timeout) as call:
            results: list[int | None] = await call.done(p2p.batch_p2p(call.engine, self, operations, stream))
        return results

    # collectives

    async def broadcast(
        self, tensor: torch.Tensor, src: int, *, stream: bool = False, timeout: float | None = None
    ) -> None:
        """``tensor`` of rank ``src`` to every rank's ``tensor``."""
        if await broadcast_plain(self, self._call, tensor, src, timeout):
            return
        with self._call(self, "broadcast", timeout) as call:
            await call.done(collectives.broadcast(call.engine, self, tensor, src, stream))

    async def all_reduce(
        self,
        tensor: torch.Tensor,
        op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Reduce ``tensor`` over all ranks with ``op``; the result is in every rank's ``tensor``."""
        with self._call(self, "all_reduce", timeout) as call:
            await call.done(collectives.all_reduce(call.engine, self, tensor, op, stream))

    async def reduce(
        self,
        tensor: torch.Tensor,
        dst: int,
        op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Reduce ``tensor`` over all ranks with ``op``; the result is in ``tensor`` of rank ``dst``."""
        with self._call(self, "reduce", timeout) as call:
            await call.done(collectives.reduce(call.engine, self, tensor, dst, op, stream))

    async def all_gather(
        self, tensors: Tensors, tensor: torch.Tensor, *, stream: bool = False, timeout: float | None = None
    ) -> None:
        """Every rank's ``tensor`` into ``tensors``, a list of ``size`` tensors of the same length."""
        with self._call(self, "all_gather", timeout) as call:
            await call.done(collectives.all_gather(call.engine, self, tensors, tensor, stream))

    async def all_gather_into_tensor(
        self, output: torch.Tensor, tensor: torch.Tensor, *, stream: bool = False, timeout: float | None = None
    ) -> None:
        """Every rank's ``tensor``, one after the other, into ``output`` of ``size`` times its length."""
        with self._call(self, "all_gather_into_tensor", timeout) as call:
            await call.done(collectives.all_gather_into_tensor(call.engine, self, output, tensor, stream))

    async def gather(
        self,
        tensor: torch.Tensor,
        gather_list: Tensors | None = None,
        dst: int = 0,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Every rank's ``tensor`` into ``gather_list`` of rank ``dst``; None on the others."""
        with self._call(self, "gather", timeout) as call:
            await call.done(collectives.gather(call.engine, self, tensor, gather_list, dst, stream))

    async def scatter(
        self,
        tensor: torch.Tensor,
        scatter_list: Tensors | None = None,
        src: int = 0,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Each tensor of rank ``src``'s ``scatter_list`` into the ``tensor`` of its rank; None on the others."""
        with self._call(self, "scatter", timeout) as call:
            await call.done(collectives.scatter(call.engine, self, tensor, scatter_list, src, stream))

    async def reduce_scatter(
        self,
        output: torch.Tensor,
        input_list: Tensors,
        op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Reduce each of the ``size`` tensors of ``input_list`` over all ranks; ours is in ``output``."""
        with self._call(self, "reduce_scatter", timeout) as call:
            await call.done(exchanges.reduce_scatter(call.engine, self, output, input_list, op, stream))

    async def reduce_scatter_tensor(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        op: ReduceOp | ReduceOp.RedOpType = ReduceOp.SUM,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """As ``reduce_scatter``, the inputs one after the other in ``tensor``."""
        with self._call(self, "reduce_scatter_tensor", timeout) as call:
            await call.done(exchanges.reduce_scatter_tensor(call.engine, self, output, tensor, op, stream))

    async def all_to_all(
        self, output_list: Tensors, input_list: Tensors, *, stream: bool = False, timeout: float | None = None
    ) -> None:
        """``input_list[r]`` to rank r, whose ``output_list`` gets it at our place; lengths may differ by pair."""
        with self._call(self, "all_to_all", timeout) as call:
            await call.done(exchanges.all_to_all(call.engine, self, output_list, input_list, stream))

    async def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> None:
        """As ``all_to_all`` with one tensor each way, split along the first dimension; None splits evenly."""
        splits = output_split_sizes, input_split_sizes
        with self._call(self, "all_to_all_single", timeout) as call:
            await call.done(exchanges.all_to_all_single(call.engine, self, output, tensor, *splits, stream))

    async def barrier(self, *, timeout: float | None = None) -> None:
        """Return when every rank has called it."""
        with self._call(self, "barrier", timeout) as call:
            await call.done(collectives.barrier(call.engine, self))

    async def monitored_barrier(self, *, timeout: float | None = None) -> None:
        """``barrier`` whose ``OpTimeout`` says which ranks did not come; so does that of ``barrier`` here."""
        with self._call(self, "barrier", timeout) as call:
            await call.done(collectives.barrier(call.engine, self, "monitored_barrier"))

    async def broadcast_object(
        self, obj: Any = None, src: int = 0, *, allow: Sequence[type | str] = (), timeout: float | None = None
    ) -> Any:
        """Rank ``src``'s ``obj``, on every rank. ``allow`` as in ``recv_object``."""
        with self._call(self, "broadcast_object", timeout) as call:
            return await call.done(objects.broadcast_object(call.engine, self, obj, src, allow))

    async def all_gather_object(
        self, obj: Any, *, allow: Sequence[type | str] = (), timeout: float | None = None
    ) -> list[Any]:
        """Every rank's ``obj``, by rank, on every rank."""
        with self._call(self, "all_gather_object", timeout) as call:
            gathered: list[Any] = await call.done(objects.all_gather_object(call.engine, self, obj, allow))
        return gathered

    async def gather_object(
        self, obj: Any, dst: int = 0, *, allow: Sequence[type | str] = (), timeout: float | None = None
    ) -> list[Any] | None:
        """Every rank's ``obj``, by rank, on rank ``dst``; None on the others."""
        with self._call(self, "gather_object", timeout) as call:
            gathered: list[Any] | None = await call.done(objects.gather_object(call.engine, self, obj, dst, allow))
        return gathered

    async def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        src: int = 0,
        *,
        allow: Sequence[type | str] = (),
        timeout: float | None = None,
    ) -> Any:
        """``objs[r]`` of rank ``src``, on rank r."""
        with self._call(self, "scatter_object", timeout) as call:
            return await call.done(objects.scatter_object(call.engine, self, objs, src, allow))


class SyncGroup(GroupBase):
    """The operations of a group for a thread that waits itself, see ``Group.sync``."""

    _call: ClassVar = WaitingCall

    def __init__(self, group: Group) -> None:
        self.__dict__ = group.__dict__  # one state: a rejoin changes the ranks of both
        self._group = group

    _send = twin(Group.send)
    _recv = twin(Group.recv)

    @blocking
    def send(
        self, tensor: torch.Tensor, dst: int, *, tag: int = 0, stream: bool = False, timeout: float | None = None
    ) -> None:
        if not exchange(self, "send", tensor, dst, tag, timeout, stream):
            self._send(tensor, dst, tag=tag, stream=stream, timeout=timeout)

    send.__doc__ = Group.send.__doc__

    @blocking
    def recv(
        self,
        tensor: torch.Tensor,
        src: int | None = None,
        *,
        tag: int = 0,
        stream: bool = False,
        timeout: float | None = None,
    ) -> int:
        if src is not None and exchange(self, "recv", tensor, src, tag, timeout, stream):
            return src
        return self._recv(tensor, src, tag=tag, stream=stream, timeout=timeout)

    recv.__doc__ = Group.recv.__doc__

    send_tensor = twin(Group.send_tensor)
    recv_tensor = twin(Group.recv_tensor)
    send_object = twin(Group.send_object)
    recv_object = twin(Group.recv_object)
    batch_p2p = twin(Group.batch_p2p)
    broadcast = twin(Group.broadcast)
    all_reduce = twin(Group.all_reduce)
    reduce = twin(Group.reduce)
    all_gather = twin(Group.all_gather)
    all_gather_into_tensor = twin(Group.all_gather_into_tensor)
    gather = twin(Group.gather)
    scatter = twin(Group.scatter)
    reduce_scatter = twin(Group.reduce_scatter)
    reduce_scatter_tensor = twin(Group.reduce_scatter_tensor)
    all_to_all = twin(Group.all_to_all)
    all_to_all_single = twin(Group.all_to_all_single)
    barrier = twin(Group.barrier)
    monitored_barrier = twin(Group.monitored_barrier)
    broadcast_object = twin(Group.broadcast_object)
    all_gather_object = twin(Group.all_gather_object)
    gather_object = twin(Group.gather_object)
    scatter_object = twin(Group.scatter_object)
