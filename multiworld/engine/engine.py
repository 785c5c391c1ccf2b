"""The compiled engine as operations and the session see it: each operation has a number there, and its outcome here.

The compiled part matches messages and moves their bytes. Names, errors, deadlines and results are made here. All
methods are called with the registry's lock held, unless they say otherwise.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import methodcaller
from typing import Any, TypeVar, cast

from multiworld.engine.memory import memory_of, plain_signature, ready, said, tensor_over, view_of
from multiworld.errors import BrokenWorldException, MultiWorldError
from multiworld.matching.agreement import CollectiveOperation
from multiworld.matching.collective_plan import Part, Plan, Steps
from multiworld.matching.device import Device, DeviceEnd, Place
from multiworld.matching.driver import Driver
from multiworld.matching.membership import GroupMembers, Membership
from multiworld.matching.operation import Host, Launch, Operation, Registry
from multiworld.matching.protocol import channel
from multiworld.matching.send_receive import (
    End,
    Payload,
    Received,
    Signature,
    refused_receive,
    refused_send,
)

T = TypeVar("T", bound="Compiled")
#: a message as the compiled part takes it: whether it is received, and on the device, peer, key, mode, dtype code,
#: bytes, memory, what follows it
_Message = tuple[bool, bool, int, int, int, int, int, int | bytes | Place | None, bytes | None]


class Outcome(enum.IntEnum):
    """The outcomes of the compiled engine, see ``core/operation.h``."""

    PENDING = 0
    DONE = 1
    MISMATCH = 2
    ENDED = 3
    OWED = 4
    KEPT = 5
    ENQUEUED = 6


class Compiled(Operation, ABC):
    """An operation that is under way in the compiled engine.

    Attributes:
        engine: that it is under way in.
        number: names it there; 0 until it is started.
        end: of a message, where it is on the device.
    """

    engine: Engine
    number = 0
    end: End = None

    @abstractmethod
    def launched(self, peer: int) -> Launch:
        """Make the call of the backend, once ``peer``, or all members, agree."""

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
        if outcome == Outcome.OWED:
            self.engine.begin()
        elif outcome in (Outcome.DONE, Outcome.KEPT):
            try:
                self.finished(peer)
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

    def watch(self) -> None:
        if self.launch is None:  # else the backend tells its end
            self.engine.watch(self)

    def _settle(self) -> None:
        if self.launch is not None:
            self.engine.over(self)
        super()._settle()


class CompiledSend(Compiled):
    """A send that is under way in the compiled engine.

    Args:
        end: where the payload is on the device.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        peer: int,
        signature: Signature | None,
        keep: Any,
        end: End = None,
    ) -> None:
        super().__init__(engine, name, keep)
        self.engine, self.peer, self.signature, self.end = engine, peer, signature, end
        self.copying = False  # the caller's memory is copied on the device, since its caller waits no more

    def launched(self, peer: int) -> Launch:
        launch = self.launch = Launch(self, (self.registry.membership.rank, peer), self._begin, self.complete)
        launch.streamed = self.end is not None and self.end.streamed
        self.running = launch.borrows = launch.ready = not self.copying
        return launch

    def _begin(self, driver: Driver) -> Any:
        data, moment = ready(self.end)
        work = driver.send(data, 1, after=moment.event)
        self.engine.begun(self.number)
        return work

    def withdraw(self) -> None:
        """Give it up. What is matched goes on; on the device in the caller's memory, or, if it is only offered, from a
        copy."""
        self.withdrawn = True
        self.copying = self.engine.withdraw(self) and self.launch is None
        if not self.running:
            self.registry.operations.discard(self)

    def detach(self) -> None:
        super().detach()
        end = self.end
        if not self.copying or end is None or end.data is None:
            return
        (data,), moment = end.device.copies_of([end.data], end.moment)
        with self.registry.lock:
            end.data, end.moment = data, moment
            self.copying, self.keep = False, None
            if self.launch is not None:
                self.launch.set_ready()

    def finished(self, _: int) -> None:
        """Complete it: all is written, or copied."""
        self.complete()

    def differs(self, peer: int, theirs: Signature) -> MultiWorldError:
        """Make the error of a receive that is for something else."""
        return refused_send(self, peer, self.signature or plain_signature(self.keep), theirs)

    def awaits(self) -> tuple[int, ...]:
        return (self.peer,)

    def waiting_for(self) -> str:
        matched, *_ = self.engine.waits_for(self.number)
        return f"rank {self.peer} {'to take the payload' if matched else 'to post the receive'}"


class CompiledReceive(Compiled, Received):
    """A receive that is under way in the compiled engine, from ``peers`` or the one of them that sends first.

    Where its payload lies on the device, it may be the receive of a caller who has left; then it is kept for the next.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        peers: tuple[int, ...],
        signature: Signature | None,
        keep: Any,
        end: End = None,
    ) -> None:
        super().__init__(engine, name, keep, end=end)
        self.engine, self.peers, self.signature = engine, peers, signature
        self._borrowed = end is not None and end.data is not None
        self._kept: CompiledReceive | None = None  # whose message it has

    @property
    def taken(self) -> DeviceEnd | None:
        kept = self._kept
        return None if kept is None or self.shape is not None else kept.end

    def launched(self, peer: int) -> Launch:
        _, self.dtype, nbytes, shape = self.engine.on_device(self.number)
        self.shape = shape or None
        end, us = self.end, self.registry.membership.rank
        launch = self.launch = Launch(self, (peer, us), self._begin, lambda: self._landed(peer), value=peer)
        launch.streamed = end is not None and end.streamed
        self.running = launch.borrows = self._borrowed
        launch.ready = end is not None and end.data is not None
        if not launch.ready:
            self.engine.host.aside(lambda: self._find_room(launch, nbytes))
        return launch

    def _begin(self, driver: Driver) -> Any:
        data, moment = ready(self.end)
        work = driver.recv(data, 0, after=moment.event)
        self.engine.begun(self.number)
        return work

    def _find_room(self, launch: Launch, nbytes: int) -> None:
        """Find memory for a message whose length the sender has said, or that has no waiter. Without the lock."""
        end = self.end
        try:
            end = self.engine.an_end() if end is None else end
            data, moment = end.device.room(nbytes, end.moment)
        except RuntimeError as error:  # what torch raises when there is no memory
            with self.registry.lock:
                what = f"a message of {nbytes} bytes for which the device has no memory: {error}"
                self.registry.protocol_error(launch.ranks[0], what)
            return
        with self.registry.lock:
            end.data, end.moment, self.end = data, moment, end
            launch.set_ready()

    def _landed(self, peer: int) -> None:
        """The payload is there. In the memory of a caller who has left it is kept as soon as it is copied there."""
        self.running = False
        self.engine.landed(self.number)
        if self._borrowed or not self.withdrawn:
            self.complete(peer)

    def finished(self, peer: int) -> None:
        """Complete it: the message is there."""
        number, dtype, _, shape = self.engine.on_device(self.number) if self.end is not None else (0, 0, 0, b"")
        if number:
            self._kept = self.engine.message(number) if number != self.number else None
            self.dtype, self.shape = dtype, shape or None
            if self._kept is not None and self.shape is not None:
                self.end = self._kept.end
        elif self.keep is None:
            keeper, self.dtype, memory = self.engine.native.received(self.number)
            self.buffer = tensor_over(keeper, *memory)
        self.complete(peer)

    def differs(self, peer: int, theirs: Signature) -> MultiWorldError:
        """Make the error of a message that is something else."""
        return refused_receive(self, peer, self.signature or plain_signature(self.keep), theirs)

    def withdraw(self) -> None:
        """Give it up. On the device a message that is on its way is waited for, and kept for the next receive."""
        self.withdrawn = True
        self.registry.operations.discard(self)
        self._kept = None  # it is back where it was
        if not self.engine.withdraw(self):
            self.keep = self.end = None
            self._borrowed = False
        elif self.launch is not None and self.launch.operation is not None:
            # Its caller waits for its end now, also who went on with the stream and was not woken yet.
            self.done, self.running = False, self._borrowed
            self.registry.operations.add(self)
        else:
            self.settle()

    def detach(self) -> None:
        """See ``Operation.detach``: a message without a waiter is kept for the next receive."""
        super().detach()
        end = self.end
        if not (self.withdrawn and self._borrowed and self.succeeded) or end is None or end.data is None:
            return
        (data,), moment = end.device.copies_of([end.data], end.moment)
        with self.registry.lock:
            self.end, self.keep, self._borrowed = DeviceEnd(end.device, moment, data), None, False
            self.engine.keep(self)

    def result(self) -> Any:
        kept = self._kept
        try:
            return super().result()
        finally:
            if kept is not None:
                self.engine.take(kept.number)

    def awaits(self) -> tuple[int, ...]:
        if len(self.peers) == 1:
            return self.peers
        return tuple(self.engine.waits_for(self.number)[1:])

    def waiting_for(self) -> str:
        if len(self.peers) == 1:
            return f"rank {self.peers[0]} to send"
        return f"one of the ranks {list(self.peers)} to send"


class CompiledCollective(Compiled, CollectiveOperation):
    """A collective that is agreed on in the compiled engine, and goes with that, in parts, or through the backend."""

    def __init__(self, engine: Engine, group: GroupMembers, plan: Plan) -> None:
        super().__init__(engine, group.gid, group.digest, group.ranks, plan)
        self.engine = engine
        self._steps: Steps | None = None

    def move(self) -> None:
        """Go on: compute on the parts that have come, and move the next ones."""
        if self._steps is None and self.plan.steps is not None:
            self._steps = self.plan.steps()
            self.running = True
        try:
            for step in self._steps or ():
                if parts := [part for part in step if part.tensor.nbytes]:
                    self.engine.move(self, parts)
                    return
        except (RuntimeError, TypeError) as error:
            super().fail(self.unmade(error))
            self.engine.host.abort(f"{self.name} cannot be computed here, and the others wait for that: {error}")
            return
        self._steps = None
        self.complete()

    def launched(self, _: int = -1) -> Launch:
        return CollectiveOperation.launched(self)

    def finished(self, _: int) -> None:
        """Make the result of what all sent, or leave it to the backend's end."""
        if not self.plan.begins:
            keeper, heard = self.engine.native.received(self.number)
            self.absorb([view_of(keeper, *heard[rank][1]) if rank in heard else None for rank in self.ranks])

    def differs(self, _: int, __: Signature) -> MultiWorldError:
        """Make the error of members that call something else."""
        _, heard = self.engine.native.received(self.number)
        return self.mismatch([heard[rank][0] if rank in heard else self.fingerprint for rank in self.ranks])

    def withdraw(self) -> None:
        """Give it up; for the others it goes on."""
        self.withdrawn = True
        self.give_back()
        if not self.engine.withdraw(self):
            self.registry.operations.discard(self)

    def missing(self) -> tuple[int, ...]:
        return tuple(self.engine.waits_for(self.number)[1:])

    def awaits(self) -> tuple[int, ...]:
        return super().awaits() if self._steps is None else self.missing()

    def needs(self, peer: int) -> bool:
        return peer in self.missing()

    def _settle(self) -> None:
        if self.plan.begins:
            self.engine.over(self)
        super()._settle()


class Engine(Registry):
    """Matches all messages and collectives of one generation in compiled code, which moves their data as well.

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
        device: Device | None = None,
    ) -> None:
        super().__init__(membership, host, lock, clock, device)
        self.native: Any = native
        self._watched: dict[int, Compiled] = {}
        #: what the backend does, or may have to do; and messages on the device that are kept
        self._going: dict[int, Compiled] = {}
        self._together: list[tuple[CompiledSend | CompiledReceive, _Message]] | None = None
        #: messages on the device that compiled code has started without operations, by number: what makes them
        self.held: dict[int, Callable[[], CompiledSend | CompiledReceive]] = {}
        #: to and from which world ranks, and whether it is from, compiled code launches those
        self.launches_alone: set[tuple[int, bool]] = set()

    def send(
        self,
        name: str,
        peer: int,
        key: int,
        signature: Signature,
        payload: Payload,
        keep: Any,
        end: End = None,
    ) -> CompiledSend:
        """Start a send.

        Args:
            name: of the operation, for messages.
            peer: world rank.
            key: of the message, see ``protocol.message_key``.
            payload: bytes to send, in pieces.
            keep: the tensor whose memory the first piece is; None if it is nobody's.
            end: where it is on the device.
        """
        operation = CompiledSend(self, name, peer, signature, keep, end=end)
        if end is None:
            first, *rest = payload
            memory = first if keep is None else keep.data_ptr()
            message = (False, False, peer, key, *signature, memory, rest[0] if rest else None)
        else:
            message = (False, True, peer, key, *signature, end.place(), b"".join(payload))
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
        keep: Any,
        end: End = None,
    ) -> CompiledReceive:
        """Start a receive into the memory of ``keep``, or into memory that is found when it comes."""
        operation = CompiledReceive(self, name, (peer,), signature, keep, end=end)
        message = (True, end is not None, peer, key, *signature, memory_of(keep, end), None)
        with self.lock:
            # A message from before the peer left can still be received.
            kept = self.departed and self.native is not None and self.native.keeps(peer, key)
            if self.register(operation, () if kept else (peer,)):
                self._start(operation, message)
        return operation

    def exchanged(self, name: str, seconds: float) -> None:
        """Count a plain message that was exchanged, which took ``seconds``."""
        with self.lock:
            self.counts[name] += 1
            self.latencies[name].observe(seconds)

    def adopt(self, make: Callable[[], T], number: list[int]) -> T:
        """Take in the operation of what is under way without one, or over, but not well. Without the lock.

        Args:
            make: makes it; of a message in ``held`` that may have been taken in before.
            number: its caller's, which is 0 from then on.
        """
        with self.lock:
            operation = make()
            if not operation.number:
                self._take_in(operation, number[0])
                if operation.end is not None and operation.end.streamed:
                    self.hear_end(number[0])
                if self.failure is None:
                    operation.settle()
                else:
                    operation.fail(self.failure)
            number[0] = 0
        return operation

    def _take_in(self, operation: Compiled, number: int) -> None:
        self.held.pop(number, None)
        operation.number = number
        if not operation.done:  # else its caller has gone on with the stream
            self.operations.add(operation)
            self.counts[operation.name] += 1
        if operation.end is not None:
            self._going[number] = operation

    def _under_way(self, number: int) -> Compiled | None:
        """What the backend has to do with, under that number."""
        if (make := self.held.get(number)) is not None:
            self._take_in(make(), number)
            self.host.taken_in(number)
        return self._going.get(number)

    def receive_any(
        self,
        peers: tuple[int, ...],
        key: int,
        signature: Signature,
        keep: Any,
        end: End = None,
    ) -> CompiledReceive:
        """Start a receive from the one of ``peers``, world ranks, that sends first."""
        operation = CompiledReceive(self, "recv", peers, signature, keep, end=end)
        with self.lock:
            all_gone = self.departed.issuperset(peers)
            kept = all_gone and self.native is not None and any(self.native.keeps(peer, key) for peer in peers)
            if self.register(operation, peers if all_gone and not kept else ()):
                self._began({self.native.start_any(peers, key, *signature, memory_of(keep, end)): operation})
        return operation

    def collective(self, group: GroupMembers, plan: Plan) -> CompiledCollective:
        """Start the collective of a group that ``plan`` says, and tell the others."""
        operation = CompiledCollective(self, group, plan)
        with self.lock:
            if self.register(operation, tuple(self.departed.intersection(group.ranks))):
                us = self.membership.rank
                outgoing = [
                    None if rank == us else said(plan.outgoing(place)) for place, rank in enumerate(group.ranks)
                ]
                given = group.gid, group.ranks, operation.fingerprint, plan.begins, outgoing
                operation.number = self.native.collective(*given)
                if plan.begins:
                    self._going[operation.number] = operation
                    self.begin()
        return operation

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let what is started meanwhile go out together, peer by peer. The caller holds the lock."""
        started: list[tuple[CompiledSend | CompiledReceive, _Message]] = []
        self._together = started
        try:
            yield
        finally:
            self._together = None
        registered = [(operation, message) for operation, message in started if not operation.done]
        numbers = self.native.start_all([message for _, message in registered])
        self._began(dict(zip(numbers, (operation for operation, _ in registered), strict=True)))

    def _start(self, operation: CompiledSend | CompiledReceive, message: _Message) -> None:
        if self._together is None:
            self._began({self.native.start(message): operation})
        else:
            self._together.append((operation, message))

    def _began(self, started: dict[int, CompiledSend | CompiledReceive]) -> None:
        """Note the numbers of what was started, and begin on the backend what was matched at once."""
        on_device = False
        for number, operation in started.items():
            operation.number = number
            if operation.end is not None:
                self._going[number] = operation
                on_device = True
        if on_device:  # all have their numbers
            self.begin()

    def depart(self, peer: int, *, gives_up: bool) -> bool:
        """``peer`` left in good order: whether every operation can still end."""
        return self.goes_on_without(peer, gives_up=gives_up) and bool(self.native.depart(peer, gives_up))

    def gives_up(self) -> bool:
        """Return whether our end now leaves something undone that others take part in."""
        return bool(self.native.gives_up()) or self.awaited_work()

    def needed(self, peer: int) -> bool:
        """Return whether an operation cannot be done without ``peer``. Without the lock."""
        native = self.native
        return native is not None and bool(native.needs(peer))

    def end(self, error: BrokenWorldException) -> None:
        """Fail every operation with ``error`` that the backend does not work on, and let none begin any more.

        The compiled part has ended: what it moved is nobody's any more.
        """
        self.hear_end()
        for operation in self.operations:
            operation.running = operation.running and operation.launch is not None
        self.fail_all(error, running=False)
        self._going.clear()
        watched, self._watched = self._watched, {}  # those that run on the backend are told by it
        for operation in watched.values():
            if operation.done:
                operation.wake()  # where an interrupt came between its end and that

    # what happens in the compiled engine

    def settle(self, numbers: Iterable[int]) -> None:
        """Settle what has ended of these, and begin what is agreed on; in the event loop."""
        for number in numbers:
            operation = self._watched.get(number)
            if operation is not None:
                operation.settle()
                self._watched.pop(number, None)
        self.begin()

    def watch(self, operation: Compiled) -> None:
        """Settle an operation in ``settle`` once it is done; at once if it is."""
        if operation.done or self.native is None:
            return
        self._watched[operation.number] = operation
        if not self.native.notify(operation.number):
            del self._watched[operation.number]
            operation.settle()

    def begin(self) -> None:
        """Begin, or go on with, what is agreed on or matched, in this order; whoever has moved data asks for it."""
        try:
            while self.native is not None and (owed := self.native.owed()):
                for number, begins, peer in owed:
                    try:
                        self._launch(number, peer) if begins else self._dropped(number)
                    except Exception as error:  # noqa: BLE001, PERF203 - the world's end tells it
                        self.mishandled(peer, error)
        except BaseException:
            self.host.interrupted("an operation was begun")  # what is owed is not told again
            raise

    def _launch(self, number: int, peer: int) -> None:
        operation = self._under_way(number)
        if operation is None:  # a message whose receive was given up before it came: it has no memory yet
            operation = self._going[number] = CompiledReceive(self, "recv", (peer,), None, None)
            operation.number, operation.withdrawn = number, True
        if operation.done or self.failure is not None:
            return
        if isinstance(operation, CompiledCollective) and operation.plan.steps is not None:
            operation.move()
            return
        launch = operation.launched(peer)
        slot = operation.gid if isinstance(operation, CompiledCollective) else channel(*launch.ranks)
        self.host.launch(slot, launch)

    def _dropped(self, number: int) -> None:
        """Let go of one that was withdrawn, and has ended before the backend began it, or that its caller has left."""
        self.held.pop(number, None)
        operation = self._going.pop(number, None)
        if operation is not None:
            operation.settle()
        self.take(number)

    # what operations ask; nothing is left to ask once the generation is over

    def outcome(self, number: int) -> tuple[int, ...]:
        """Its outcome, and what the peer has instead."""
        return (Outcome.PENDING, -1) if self.native is None else self.native.outcome(number)

    def waits_for(self, number: int) -> list[int]:
        """Whether it is matched, and the world ranks that it waits for. Without the lock."""
        native = self.native
        return [0] if native is None or not number else native.awaited(number)

    def take(self, number: int) -> None:
        """Let go of its number. Without the lock."""
        self._going.pop(number, None)
        native = self.native
        if native is not None:
            native.take(number)

    def withdraw(self, operation: Compiled) -> bool:
        """Give it up; whether it goes on, on the backend or to it. Nothing is matched any more that was not begun."""
        self._watched.pop(operation.number, None)
        flown = None if self.native is None else self.native.withdraw(operation.number)
        if flown is not None:
            self._going[operation.number] = operation
            self._hear_ends(flown)
            self.begin()
        else:
            self._going.pop(operation.number, None)
        return flown is not None

    def move(self, operation: CompiledCollective, parts: Sequence[Part]) -> None:
        """Move parts of a collective that all agreed on; then it goes on."""
        if self.native is not None:
            ranks = operation.ranks
            given = [(one.receives, ranks[one.place], one.tensor.data_ptr(), one.tensor.nbytes) for one in parts]
            self.native.parts(operation.number, given)

    def over(self, operation: Compiled) -> None:
        """The backend is done with it, or will not begin it; or its caller goes on with the stream."""
        self._going.pop(operation.number, None)
        self._watched.pop(operation.number, None)
        if self.native is not None:
            self.native.over(operation.number)

    # messages on the device

    def on_device(self, number: int) -> tuple[int, int, int, bytes]:
        """Of the message that a receive has there: its number, 0 if there is none, dtype code, bytes and shape."""
        return self.native.on_device(number)  # type: ignore[no-any-return]

    def message(self, number: int) -> CompiledReceive:
        """The receive without a waiter whose message is kept."""
        return cast("CompiledReceive", self._going[number])

    def landed(self, number: int) -> None:
        """Its payload is there."""
        if self.native is not None:
            self.native.landed(number)

    def keep(self, operation: CompiledReceive) -> None:
        """Keep its message, of which a copy was made, for the next receive."""
        if self.native is not None:
            self._going[operation.number] = operation
            self.native.keep(operation.number)

    def connect(self, peer: int, receives: bool, launcher: Any) -> None:
        """Let compiled code launch messages to or from ``peer`` from now on."""
        if self.native is not None:
            self.native.connect(peer, receives, launcher)
            self.launches_alone.add((peer, receives))

    def begun(self, number: int) -> None:
        """A message was handed to its launcher here: what is matched after it may follow it there."""
        if self.native is not None:
            self.native.begun(number)

    def hear_end(self, number: int = 0) -> None:
        """Hear the end of a message that compiled code has handed to a launcher, or of all: it knows good ends only."""
        if self.native is not None and (number or self._going or self.held):
            self._hear_ends(self.native.adopt(number))

    def _hear_ends(self, flown: list[tuple[int, int, bool]]) -> None:
        for number, peer, dropped in flown:
            operation = cast("Compiled", self._under_way(number))
            launch = operation.launched(peer)
            launch.begin = methodcaller("adopt", number, operation.end, dropped=dropped)
            self.host.adopt(channel(*launch.ranks), launch)
            if operation.done:
                self.over(operation)
                self.take(number)

    def launches(self) -> set[Launch]:
        """See ``Registry.launches``."""
        self.hear_end()
        return super().launches()

    def an_end(self) -> DeviceEnd:
        """An end for a message that has no waiter, in the calling thread's stream. Without the lock."""
        if self.device is None:
            raise LookupError("a message on the device, where there is none")
        return DeviceEnd(self.device, self.device.now())
