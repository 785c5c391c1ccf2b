"""The interface of the engines: what operations and the session ask of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from multiworld.errors import BrokenWorldException
from multiworld.matching.collective_plan import Plan
from multiworld.matching.device import Device
from multiworld.matching.membership import GroupMembers, Membership
from multiworld.matching.operation import Host, Launch, Operation, Registry, Synchronization
from multiworld.matching.send_receive import End, Payload, Received, Signature, View


class Matching(Registry, ABC):
    """All messages and collectives of one generation.

    Args:
        device: where the backend takes tensors; None if it takes them on the CPU only.

    Attributes:
        under_way: what is matched or agreed, and not over on the backend yet.
    """

    def __init__(
        self,
        membership: Membership,
        host: Host,
        lock: AbstractContextManager[Any],
        clock: Callable[[], float],
        device: Device | None = None,
    ) -> None:
        super().__init__(membership, host, lock, clock)
        self.device = device
        self.under_way: set[Launch] = set()

    # starts; the caller does not hold the lock, but for messages of a batch

    @abstractmethod
    def send(
        self, name: str, peer: int, key: int, signature: Signature, payload: Payload, keep: Any, end: End = None
    ) -> Operation:
        """Start a send.

        Args:
            name: of the operation, for messages.
            peer: world rank.
            key: of the message, see ``protocol.message_key``.
            payload: bytes to send, in pieces.
            keep: the tensor whose memory the first piece is; None if it is nobody's.
            end: where it is on the device.
        """

    @abstractmethod
    def receive(
        self, name: str, peer: int, key: int, signature: Signature, view: View, keep: Any, end: End = None
    ) -> Received:
        """Start a receive into ``view``, the memory of ``keep``, or into memory that is found when it comes."""

    def send_plain(self, name: str, peer: int, key: int, tensor: torch.Tensor) -> Operation | None:  # noqa: ARG002
        """Start to send ``tensor`` if this engine can tell by itself that it is plain; else return None."""
        return None

    def receive_plain(self, name: str, peer: int, key: int, tensor: torch.Tensor) -> Received | None:  # noqa: ARG002
        """Start to receive into ``tensor`` if this engine can tell by itself that it is plain; else return None."""
        return None

    @abstractmethod
    def receive_any(
        self, peers: tuple[int, ...], key: int, signature: Signature, view: View, keep: Any, end: End = None
    ) -> Received:
        """Start a receive from the one of ``peers``, world ranks, that sends first."""

    @abstractmethod
    def collective(self, group: GroupMembers, plan: Plan) -> Operation:
        """Start the collective of a group that ``plan`` says, and tell the others."""

    @abstractmethod
    def together(self, peers: Iterable[int]) -> AbstractContextManager[None]:
        """Let what is started meanwhile, and sent to ``peers``, go out together. The caller holds the lock."""

    def synchronize(self) -> Operation:
        """Start to wait for the end of all that the backend does for us now."""
        operation = Synchronization(self)
        with self.lock:
            if self.register(operation, ()):
                operation.follow(self.under_way)
        return operation

    # the backend's work; the caller holds the lock

    def is_over(self, launch: Launch) -> None:
        """The backend is done with it, and what was to be done then is done."""
        self.under_way.discard(launch)
        launch.end()

    def awaited_work(self) -> bool:
        """Return whether a caller waits for what the backend does now."""
        return any(launch.operation is not None and not launch.operation.done for launch in self.under_way)

    def finishing(self) -> bool:
        """Return whether a caller waits for what will end: the backend is at it, and all who take part in it see it
        through, or a member that left has done so, and the parts of the others are on their way."""
        awaited = (launch for launch in self.under_way if launch.operation is not None and not launch.operation.done)
        if any(self.gave_up.isdisjoint(launch.ranks) for launch in awaited):
            return True
        left = self.departed - self.gave_up
        return any(operation.ended_with(left) for operation in self.operations)

    # peers that leave, and our own end; the caller holds the lock

    def depart(self, peer: int, *, gives_up: bool) -> bool:
        """``peer`` left in good order: whether every operation can still end.

        A collective in which it took part can, unless it ``gives_up`` its own: the backend may never say so.
        """
        self.departed |= {peer}
        self.gave_up |= {peer} if gives_up else set()
        if gives_up and any(peer in launch.ranks for launch in self.under_way):
            return False
        return self.can_end_without(peer, gives_up=gives_up)

    @abstractmethod
    def can_end_without(self, peer: int, *, gives_up: bool) -> bool:
        """Tell whether every operation that is not on the backend yet can end without ``peer``, which has left."""

    @abstractmethod
    def gives_up(self) -> bool:
        """Return whether our end now leaves something undone that others take part in."""

    @abstractmethod
    def end(self, error: BrokenWorldException) -> None:
        """Fail every operation with ``error`` that the backend does not work on, and let none begin any more."""
