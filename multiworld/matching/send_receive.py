"""Messages under way: a send and a receive, each from its post to its end.

All methods are called with the registry's lock held, unless they say otherwise.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Generic, Protocol, TypeVar

from multiworld.errors import TensorMismatch
from multiworld.matching.device import DeviceEnd
from multiworld.matching.operation import Operation, Registry, Sink
from multiworld.matching.protocol import Mode, dtype_name

T = TypeVar("T")

#: so many keys are kept before the empty queues among them are dropped
ROOM = 1024


class Queues(dict[int, deque[T]], Generic[T]):
    """A queue for each key, made when it is first used.

    Programs may give every message a tag of its own; the queues of old tags must not stay.
    """

    __slots__ = ("_room",)

    def __init__(self) -> None:
        super().__init__()
        self._room = ROOM

    def __missing__(self, key: int) -> deque[T]:
        if len(self) >= self._room:
            for old in [old for old, queue in self.items() if not queue]:
                del self[old]
            self._room = max(ROOM, 2 * len(self))
        made = self[key] = deque()
        return made


Signature = tuple[int, int, int]  # mode, dtype code, bytes (FIXED, DEVICE) or limit in bytes
Payload = tuple[Any, ...]
View = memoryview | None  # where a payload on the lane goes; None for memory that is found when it comes
End = DeviceEnd | None  # where a payload on the device is, or goes
#: modes in which both sides name the length
EXACT: Final = frozenset(map(int, (Mode.FIXED, Mode.DEVICE)))


class Messages(Protocol):
    """The messages of one peer, as one of them sees these: ``peer_messages.PeerMessages``."""

    registry: Registry
    lane: Sink
    sends: Queues[SendOperation]
    kept: Queues[ReceiveOperation]

    def send(self, operation: SendOperation) -> None:
        """Queue a send and match it if its receive is posted."""

    def receive(self, operation: ReceiveOperation) -> None:
        """Take a message that was kept, or post the receive."""

    def orphan(self, operation: ReceiveOperation) -> None:
        """Note that this receive has no waiter any more."""

    def divert(self, operation: ReceiveOperation) -> None:
        """Let what comes, or has come, lie in memory of our own."""

    def keep_landed(self, operation: ReceiveOperation) -> None:
        """Keep a message that lies in memory of our own for the next receive."""


def describe(mode: int, dtype: int, nbytes: int) -> str:
    """A signature in words."""
    if mode in EXACT:
        return f"{nbytes} bytes of {dtype_name(dtype)}{' on the device' if mode == Mode.DEVICE else ''}"
    return "a tensor with its shape" if mode == Mode.TENSOR else "an object"


def refused_send(operation: Operation, peer: int, ours: Signature, theirs: Signature) -> TensorMismatch:
    """Make the error of a send whose receive is for something else."""
    said = describe(*ours), describe(*theirs)
    if ours[0] == theirs[0] and ours[0] not in EXACT:
        said = f"{ours[2]} bytes", f"at most {theirs[2]} bytes"
    return _mismatch(operation, f"sends {said[0]}, rank {peer} expects {said[1]}", peer, said, {ours[0], theirs[0]})


def refused_receive(operation: Operation, peer: int, ours: Signature, theirs: Signature) -> TensorMismatch:
    """Make the error of a receive for which something else comes."""
    said = describe(*ours), describe(*theirs)
    return _mismatch(operation, f"expects {said[0]}, rank {peer} sends {said[1]}", peer, said, {ours[0], theirs[0]})


def _mismatch(operation: Operation, what: str, peer: int, said: tuple[str, str], modes: set[int]) -> TensorMismatch:
    us = operation.registry.membership
    cause = remedy = None
    if modes == EXACT:
        cause = "one side passes a tensor on the CPU, the other one on the device"
        remedy = "pass both on the device, or both on the CPU; the world is still usable"
    sides: dict[str, Any] = {"ours": said[0], "theirs": {peer: said[1]}}
    return TensorMismatch(us.name, f"rank {us.rank} {what}", cause=cause, remedy=remedy, **sides, **us.where())


class SendOperation(Operation):
    """A send: what it has, whether it can still be withdrawn, and the any-source receive that it is offered to."""

    def __init__(
        self,
        name: str,
        messages: Messages,
        key: int,
        signature: Signature,
        payload: Payload,
        keep: Any,
        end: End = None,
    ) -> None:
        super().__init__(messages.registry, name, keep)
        self.messages = messages
        self.key = key
        self.mode, self.dtype, self.nbytes = signature
        self.payload = payload
        self.end = end
        self.borrowed = keep is not None  # the payload is the caller's memory
        self.matched = False
        self.copying = False  # the caller's memory is copied on the device, since its caller waits no more
        self.offered = -1

    on_sent = Operation.complete

    def withdraw(self) -> None:
        """Nothing was sent if it was not matched; else it goes on in the background, with a copy of what is left."""
        self.withdrawn = True
        if not self.done and not self.matched and self.offered < 0:
            self.messages.sends[self.key].remove(self)
            self.registry.operations.discard(self)
            return
        self.give_back()

    def give_back(self) -> None:
        if self.end is not None:
            # An offered message goes on, from a copy; a matched one keeps the memory until its end.
            self.copying = self.borrowed and self.withdrawn and not self.done and not self.matched
        elif self.borrowed and not self.done:
            self.borrowed = False
            if self.matched:
                self.messages.lane.disown(self)
            else:  # an offered message goes on; a failed one is not sent
                self.payload = tuple(bytes(part) for part in self.payload) if self.withdrawn else ()
            self.keep = None

    def detach(self) -> None:
        super().detach()
        end = self.end
        if not self.copying or end is None or end.data is None:
            return
        (data,), moment = end.device.copies_of([end.data], end.moment)
        with self.registry.lock:
            end.data, end.moment = data, moment
            self.copying = self.borrowed = False
            self.keep = None
            if self.launch is not None:
                self.launch.set_ready()

    def needs(self, peer: int) -> bool:
        """See ``Operation.needs``; what is under way on the device ends without the peer's lane."""
        return self.launch is None and peer == self.messages.lane.peer

    def awaits(self) -> tuple[int, ...]:
        return (self.messages.lane.peer,)

    def waiting_for(self) -> str:
        state = "to take the payload" if self.matched else "to post the receive"
        return f"rank {self.messages.lane.peer} {state}"


class Received(Operation):
    """A receive, as what makes its result sees it.

    Attributes:
        dtype: code of the message's dtype.
        buffer: the message in memory of our own, as a flat tensor of bytes; None if it is the caller's.
        shape: what was said of a tensor that stays on the device.
        end: where the payload is on the device.
    """

    def __init__(self, registry: Registry, name: str, keep: Any, dtype: int = 0, end: End = None) -> None:
        super().__init__(registry, name, keep)
        self.dtype, self.end = dtype, end
        self.buffer: Any = None
        self.shape: bytes | None = None

    @property
    def taken(self) -> DeviceEnd | None:
        """A message on the device that was kept, to be copied by the caller."""
        return None


class ReceiveOperation(Received):
    """A receive: what it expects, and where the payload goes."""

    def __init__(
        self, name: str, messages: Messages, key: int, signature: Signature, view: View, keep: Any, end: End = None
    ) -> None:
        self.mode, dtype, self.nbytes = signature
        super().__init__(messages.registry, name, keep, dtype, end)
        self.messages = messages
        self.key = key
        self.view = view
        self.borrowed = view is not None or (end is not None and end.data is not None)  # it is the caller's memory
        self.kept_end: DeviceEnd | None = None
        self.seq = -1
        self.offer = -1  # number of the any-source receive whose offer it answers
        self.arriving = False
        self.arrival = -1  # place of its message among all that came from this peer

    @property
    def taken(self) -> DeviceEnd | None:
        return self.kept_end

    @property
    def signature(self) -> Signature:
        """The mode, dtype code and length that were posted."""
        return self.mode, self.dtype, self.nbytes

    def admits(self, nbytes: int) -> bool:
        """Return whether a payload of that length on the lane is what was posted."""
        if self.mode in EXACT:
            return nbytes == self.nbytes and self.mode == Mode.FIXED
        return nbytes <= self.nbytes

    def withdraw(self) -> None:
        """The post is cancelled; a message that is under way already is kept for the next receive."""
        self.withdrawn = True
        self.messages.orphan(self)
        self.give_back()

    def give_back(self) -> None:
        if self.end is not None and self.withdrawn and self.arrival >= 0:
            return  # it is under way to the caller's memory, or there: see ``detach``
        if self.borrowed:
            self.borrowed = False
            self.messages.divert(self)

    def detach(self) -> None:
        """See ``Operation.detach``: a message without a waiter is kept for the next receive."""
        end = self.end
        if not (self.withdrawn and self.borrowed and self.succeeded) or end is None or end.data is None:
            return
        (data,), moment = end.device.copies_of([end.data], end.moment)
        with self.registry.lock:
            self.end = DeviceEnd(end.device, moment, data)
            self.borrowed = False
            self.keep = None
            self.messages.keep_landed(self)

    def needs(self, peer: int) -> bool:
        """See ``Operation.needs``; what is under way on the device ends without the peer's lane."""
        return self.launch is None and peer == self.messages.lane.peer

    def awaits(self) -> tuple[int, ...]:
        return (self.messages.lane.peer,)

    def waiting_for(self) -> str:
        return f"rank {self.messages.lane.peer} to send"
