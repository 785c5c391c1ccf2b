"""The compiled engine as operations and the session see it: each operation has a number there, and its outcome here.

The compiled part matches messages and moves their bytes. Names, errors, deadlines and results are made here. All
methods are called with the registry's lock held, unless they say otherwise.
"""

from __future__ import annotations

import ctypes
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch

from multiworld.errors import BrokenWorldException, MultiWorldError
from multiworld.matching.agreement import CollectiveOperation
from multiworld.matching.collective_plan import Bytes, Plan
from multiworld.matching.interface import Matching
from multiworld.matching.membership import GroupMembers, Membership
from multiworld.matching.operation import Host, Operation
from multiworld.matching.protocol import CODES, Mode
from multiworld.matching.send_receive import (
    End,
    Payload,
    Received,
    Signature,
    View,
    refused_receive,
    refused_send,
)

T = TypeVar("T", bound=Operation)
#: a message as the compiled part takes it: whether it is received, peer, key, mode, dtype code, bytes, memory, what
#: follows it
_Message = tuple[bool, int, int, int, int, int, int | bytes | None, bytes | None]


class Outcome(enum.IntEnum):
    """The outcomes of the compiled engine, see ``core/operation.h``."""

    PENDING = 0
    DONE = 1
    MISMATCH = 2
    ENDED = 3
    AGREED = 4


class Compiled(Operation, ABC):
    """An operation that is under way in the compiled engine.

    Attributes:
        engine: that it is under way in.
        number: names it there; 0 until it is started.
    """

    engine: CompiledEngine
    number = 0

    @abstractmethod
    def finished(self, peer: int) -> None:
        """Complete it, or leave that to the backend: nothing is left to do for ``peer``, the last that was heard."""

    @abstractmethod
    def differs(self, peer: int, theirs: Signature) -> MultiWorldError:
        """Make the error of a peer that has something else."""

    def settle(self) -> None:
        """Take over its outcome, if there is one."""
        if not self.done and self.number:
            self.take_over(*self.engine.outcome(self.number))

    def take_over(self, outcome: int, peer: int, *theirs: int) -> None:
        """Take over this outcome, unless there is one by now."""
        if self.done:
            return
        if outcome in (Outcome.DONE, Outcome.AGREED):
            try:
                self.finished(peer) if outcome == Outcome.DONE else self.engine.agreed(self.number)
            except Exception as error:  # noqa: BLE001 - the peer's part cannot be right, and the world's end tells it
                self.number = 0  # once is enough
                self.engine.mishandled(peer, error)
        elif outcome == Outcome.MISMATCH:
            mode, dtype, nbytes = theirs
            super().fail(self.differs(peer, (mode, dtype, nbytes)))
        elif outcome == Outcome.ENDED and self.registry.failure is not None:
            super().fail(self.registry.failure)

    def fail(self, error: MultiWorldError) -> None:
        self.settle()  # it may have ended well, and nobody have looked yet
        super().fail(error)

    def result(self) -> Any:
        self.engine.take(self.number)
        return super().result()

    def withdraw(self) -> None:
        """Give a message up: its memory is the caller's, and what is under way goes on in the compiled engine."""
        self.withdrawn = True
        self.registry.operations.discard(self)
        self.engine.withdraw(self.number)

    def watch(self) -> None:
        self.engine.watch(self)


class CompiledSend(Compiled):
    """A send that is under way in the compiled engine."""

    def __init__(
        self, engine: CompiledEngine, name: str, peer: int, signature: Signature | None, keep: Any, number: int = 0
    ) -> None:
        super().__init__(engine, name, keep)
        self.engine, self.peer, self.signature = engine, peer, signature
        self.number = number

    def finished(self, _: int) -> None:
        """Complete it: all is written, or copied."""
        self.complete()

    def differs(self, peer: int, theirs: Signature) -> MultiWorldError:
        """Make the error of a receive that is for something else."""
        return refused_send(self, peer, self.signature or _plain_signature(self.keep), theirs)

    def awaits(self) -> tuple[int, ...]:
        return (self.peer,)

    def waiting_for(self) -> str:
        matched, *_ = self.engine.waits_for(self.number)
        return f"rank {self.peer} {'to take the payload' if matched else 'to post the receive'}"


class CompiledReceive(Compiled, Received):
    """A receive that is under way in the compiled engine, from ``peers`` or the one of them that sends first."""

    def __init__(
        self,
        engine: CompiledEngine,
        name: str,
        peers: tuple[int, ...],
        signature: Signature | None,
        keep: Any,
        number: int = 0,
    ) -> None:
        super().__init__(engine, name, keep)
        self.engine, self.peers, self.signature = engine, peers, signature
        self.number = number

    def finished(self, peer: int) -> None:
        """Complete it: the message is there."""
        if self.keep is None:
            keeper, self.dtype, memory = self.engine.received(self.number)
            self.buffer = _tensor_over(keeper, *memory)
        self.complete(peer)

    def differs(self, peer: int, theirs: Signature) -> MultiWorldError:
        """Make the error of a message that is something else."""
        return refused_receive(self, peer, self.signature or _plain_signature(self.keep), theirs)

    def withdraw(self) -> None:
        super().withdraw()
        self.keep = None

    def awaits(self) -> tuple[int, ...]:
        if len(self.peers) == 1:
            return self.peers
        return tuple(self.engine.waits_for(self.number)[1:])

    def waiting_for(self) -> str:
        if len(self.peers) == 1:
            return f"rank {self.peers[0]} to send"
        return f"one of the ranks {list(self.peers)} to send"


class CompiledCollective(Compiled, CollectiveOperation):
    """A collective that is agreed on in the compiled engine, and goes with it or through the backend."""

    def __init__(self, engine: CompiledEngine, group: GroupMembers, plan: Plan) -> None:
        super().__init__(engine, group.gid, group.digest, group.ranks, plan)
        self.engine = engine

    def finished(self, _: int) -> None:
        """Make the result of what all sent, or leave it to the backend's end."""
        if self.plan.launch is None:
            keeper, heard = self.engine.received(self.number)
            self.absorb([_view_of(keeper, *heard[rank][1]) if rank in heard else None for rank in self.ranks])

    def differs(self, _: int, __: Signature) -> MultiWorldError:
        """Make the error of members that call something else."""
        _, heard = self.engine.received(self.number)
        return self.mismatch([heard[rank][0] if rank in heard else self.fingerprint for rank in self.ranks])

    def withdraw(self) -> None:
        self.withdrawn = True
        self.give_back()
        if self.plan.launch is not None:
            self.settle()  # for the others it goes on: the backend begins it if it can
        self.engine.withdraw(self.number)
        if self.plan.launch is None:
            self.registry.operations.discard(self)

    def missing(self) -> tuple[int, ...]:
        return tuple(self.engine.waits_for(self.number)[1:])

    def needs(self, peer: int) -> bool:
        return peer in self.missing()

    def _settle(self) -> None:
        if self.plan.launch is not None:
            self.engine.over(self.number)
        super()._settle()


def _plain_signature(tensor: torch.Tensor) -> Signature:
    return Mode.FIXED, CODES[tensor.dtype], tensor.nbytes


class CompiledEngine(Matching):
    """Matches sends, receives and collectives in compiled code, which moves their data as well.

    Args:
        native: the compiled engine, which has the connections to the peers.
    """

    def __init__(
        self,
        membership: Membership,
        host: Host,
        lock: AbstractContextManager[Any],
        clock: Callable[[], float],
        native: Any,
    ) -> None:
        super().__init__(membership, host, lock, clock)
        self.native: Any = native
        self._watched: dict[int, Compiled] = {}
        self._launching: dict[int, CompiledCollective] = {}
        self._together: list[tuple[Compiled, _Message]] | None = None

    def send(
        self,
        name: str,
        peer: int,
        key: int,
        signature: Signature,
        payload: Payload,
        keep: Any,
        end: End = None,  # noqa: ARG002 - nothing is on a device here
    ) -> CompiledSend:
        operation = CompiledSend(self, name, peer, signature, keep)
        first, *rest = payload
        memory = first if keep is None else keep.data_ptr()
        message = (False, peer, key, *signature, memory, rest[0] if rest else None)
        with self.lock:
            if self.register(operation, (peer,)):
                self._start(operation, message)
        return operation

    def receive(
        self,
        name: str,
        peer: int,
        key: int,
        signature: Signature,
        view: View,  # noqa: ARG002 - the memory of ``keep``
        keep: Any,
        end: End = None,  # noqa: ARG002 - nothing is on a device here
    ) -> CompiledReceive:
        operation = CompiledReceive(self, name, (peer,), signature, keep)
        message = (True, peer, key, *signature, None if keep is None else keep.data_ptr(), None)
        with self.lock:
            # A message from before the peer left can still be received.
            kept = self.departed and self.native is not None and self.native.keeps(peer, key)
            if self.register(operation, () if kept else (peer,)):
                self._start(operation, message)
        return operation

    def send_plain(self, name: str, peer: int, key: int, tensor: torch.Tensor) -> CompiledSend | None:
        with self.lock:
            number = self._start_plain(False, peer, key, tensor)
            return None if not number else self._begun(CompiledSend(self, name, peer, None, tensor, number))

    def receive_plain(self, name: str, peer: int, key: int, tensor: torch.Tensor) -> CompiledReceive | None:
        with self.lock:
            number = self._start_plain(True, peer, key, tensor)
            return None if not number else self._begun(CompiledReceive(self, name, (peer,), None, tensor, number))

    def exchanged(self, name: str, number: int, seconds: float) -> None:
        """Count a message that was exchanged in one call, which took ``seconds``, and let go of it."""
        with self.lock:
            self.counts[name] += 1
            self.latencies[name].observe(seconds)
        self.take(number)

    def adopt(self, name: str, number: list[int], peer: int, tensor: torch.Tensor) -> Compiled:
        """Make an operation of a message that is not done yet, or not well; the caller's ``number`` is 0 from then on.

        Without the lock.
        """
        with self.lock:
            operation: Compiled
            if name == "send":
                operation = self._begun(CompiledSend(self, name, peer, None, tensor, number[0]))
            else:
                operation = self._begun(CompiledReceive(self, name, (peer,), None, tensor, number[0]))
            number[0] = 0
            if self.failure is None:
                operation.settle()
            else:
                operation.fail(self.failure)
        return operation

    def _start_plain(self, receives: bool, peer: int, key: int, tensor: torch.Tensor) -> int | None:
        """Start it, unless there is something to be said that the general way says."""
        if self.failure is not None or self.departed or self.native is None:
            return None
        return self.native.start_tensor(receives, peer, key, tensor)  # type: ignore[no-any-return]

    def _begun(self, operation: T) -> T:
        self.operations.add(operation)
        self.counts[operation.name] += 1
        return operation

    def receive_any(
        self,
        peers: tuple[int, ...],
        key: int,
        signature: Signature,
        view: View,  # noqa: ARG002 - the memory of ``keep``
        keep: Any,
        end: End = None,  # noqa: ARG002 - nothing is on a device here
    ) -> CompiledReceive:
        operation = CompiledReceive(self, "recv", peers, signature, keep)
        with self.lock:
            all_gone = self.departed.issuperset(peers)
            kept = all_gone and self.native is not None and any(self.native.keeps(peer, key) for peer in peers)
            if self.register(operation, peers if all_gone and not kept else ()):
                _, dtype, nbytes = signature
                operation.number = self.native.start_any(peers, key, dtype, nbytes, keep.data_ptr())
        return operation

    def collective(self, group: GroupMembers, plan: Plan) -> CompiledCollective:
        operation = CompiledCollective(self, group, plan)
        with self.lock:
            if self.register(operation, tuple(self.departed.intersection(group.ranks))):
                us = self.membership.rank
                outgoing = [
                    None if rank == us else _said(plan.outgoing(place)) for place, rank in enumerate(group.ranks)
                ]
                launches = plan.launch is not None
                given = group.gid, group.ranks, operation.fingerprint, launches, outgoing
                operation.number = self.native.collective(*given)
                if launches:
                    self._launching[operation.number] = operation
        return operation

    @contextmanager
    def together(self, peers: Iterable[int]) -> Iterator[None]:  # noqa: ARG002 - the compiled part knows them
        started: list[tuple[Compiled, _Message]] = []
        self._together = started
        try:
            yield
        finally:
            self._together = None
        registered = [(operation, message) for operation, message in started if not operation.done]
        numbers = self.native.start_all([message for _, message in registered])
        for (operation, _), number in zip(registered, numbers, strict=True):
            operation.number = number

    def _start(self, operation: CompiledSend | CompiledReceive, message: _Message) -> None:
        if self._together is None:
            operation.number = self.native.start(message)
        else:
            self._together.append((operation, message))

    def can_end_without(self, peer: int, *, gives_up: bool) -> bool:
        return bool(self.native.depart(peer, gives_up))

    def gives_up(self) -> bool:
        return bool(self.native.gives_up()) or self.awaited_work()

    def needed(self, peer: int) -> bool:
        native = self.native
        return native is not None and bool(native.needs(peer))

    def end(self, error: BrokenWorldException) -> None:
        self.fail_all(error, running=False)
        watched, self._watched = self._watched, {}  # those that run on the backend are told by it
        for operation in watched.values():
            if operation.done:
                operation.wake()  # where an interrupt came between its end and that

    # what happens in the compiled engine

    def progress(self) -> None:
        """Move what is ready, and settle what has ended of it; in the event loop."""
        if self.native is not None:
            for number in self.native.progress():
                operation = self._watched.get(number)
                if operation is not None:
                    operation.settle()
                    self._watched.pop(number, None)

    def watch(self, operation: Compiled) -> None:
        """Settle an operation in ``progress`` once it is done; at once if it is."""
        if operation.done or self.native is None:
            return
        self._watched[operation.number] = operation
        if not self.native.notify(operation.number):
            del self._watched[operation.number]
            operation.settle()

    def agreed(self, number: int) -> None:
        """All members agree on a collective: run it on the backend."""
        operation = self._launching.pop(number, None)
        if operation is None or operation.done or self.native is None:
            return
        self.native.launched(number)
        self._host.launch(operation.gid, operation.launched())

    def look(self, number: int) -> None:
        """See what is with a collective that nobody waits for: all agree on it, or do not."""
        operation = self._launching.get(number)
        if operation is not None:
            operation.settle()
            if operation.done:
                self.take(number)

    # what operations ask; nothing is left to ask once the generation is over

    def outcome(self, number: int) -> tuple[int, ...]:
        """Its outcome, and what the peer has instead."""
        return (Outcome.PENDING, -1) if self.native is None else self.native.outcome(number)

    def received(self, number: int) -> Any:
        """What it got in memory of the engine's own."""
        return self.native.received(number)

    def waits_for(self, number: int) -> list[int]:
        """Whether it is matched, and the world ranks that it waits for. Without the lock."""
        native = self.native
        return [0] if native is None or not number else native.awaited(number)

    def take(self, number: int) -> None:
        """Let go of its number. Without the lock."""
        native = self.native
        if native is not None:
            native.take(number)

    def withdraw(self, number: int) -> None:
        """Give it up."""
        self._watched.pop(number, None)
        if self.native is not None:
            self.native.withdraw(number)

    def over(self, number: int) -> None:
        """The backend is done with it, or will not begin it."""
        self._launching.pop(number, None)
        self._watched.pop(number, None)
        if self.native is not None:
            self.native.over(number)


def _said(data: Bytes | None) -> bytes | tuple[int, int] | None:
    """A payload as the compiled part takes it: bytes, or address and length."""
    if data is None or isinstance(data, bytes):
        return data
    return (ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data)) if len(data) else (0, 0)


def _view_of(keeper: Any, address: int, nbytes: int) -> memoryview:
    """Memory of the compiled engine's own, which lives as long as its views."""
    array = (ctypes.c_char * nbytes).from_address(address)
    array.keeper = keeper  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def _tensor_over(keeper: Any, address: int, nbytes: int) -> torch.Tensor:
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(_view_of(keeper, address, nbytes), dtype=torch.uint8)
