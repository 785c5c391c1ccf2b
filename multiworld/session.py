"""A session: one generation of one world in this process, with everything that lives and dies with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from multiworld.breaking import LINGER_SECONDS, cut, free, release
from multiworld.config import WorldConfig, WorldState
from multiworld.control import Control
from multiworld.drivers.slot import DriverSlot
from multiworld.errors import BrokenWorldException, OpTimeout, PeerLost, WorldClosed
from multiworld.events import (
    Event,
    EventBus,
    OwnStall,
    PeerLeft,
    PeerRecovered,
    PeerSuspected,
    WorldBroken,
    WorldLeft,
)
from multiworld.matching.any_source import AnyReceive
from multiworld.matching.collectives import Agreement, CollectiveOperation
from multiworld.matching.mailbox import Mailbox, SendOperation
from multiworld.matching.operation import Operation, wait_async, wait_sync
from multiworld.modes import disturbed, undisturbed
from multiworld.net.bridge import LoopBridge, SyncPoller
from multiworld.net.frames import Kind
from multiworld.net.lane import Done, Lane
from multiworld.ops.base import begin, outcome
from multiworld.ops.quarantine import watching
from multiworld.profiling import span
from multiworld.tally import Tally

if TYPE_CHECKING:
    from multiworld.net.reactor import Hub
    from multiworld.ops.base import GroupBase, Starter
    from multiworld.rendezvous.ledger import Claim
    from multiworld.rendezvous.wiring import HandshakeAcceptor, Wires

logger = logging.getLogger(__name__)

#: how many groups of a world may have collectives; a peer that names more makes them up
MAX_GROUPS = 1 << 16


class Session:
    """One generation of one world.

    Attributes:
        lock: guards all of it; held for short, never while waiting.
        operations: what is under way.
        failure: the first cause, once it is broken or closed.
        departed: ranks that left in good order, all their data read.
        leaving: ranks that have said that they leave.
        next_look: when the hub looks at the deadlines next; infinite if it need not.
    """

    def __init__(
        self,
        hub: Hub,
        bus: EventBus,
        config: WorldConfig,
        generation: int,
        wires: Wires,
        acceptor: HandshakeAcceptor,
        claims: dict[int, Claim],
        address: str,
    ) -> None:
        self.hub, self.bus, self.config, self.generation = hub, bus, config, generation
        self.name, self.rank, self.size = config.name, config.rank, config.size
        self.op_timeout, self.max_message_bytes = config.op_timeout, config.max_message_bytes
        self.address = address
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.mover = -1  # eventfd of the waiting thread that moves data now: it need not be woken
        self.operations: set[Operation] = set()
        self.any_receives: list[AnyReceive] = []
        self.failure: BrokenWorldException | None = None
        self.state = WorldState.ACTIVE
        self.departed: frozenset[int] = frozenset()
        self.leaving: set[int] = set()
        self.next_look = math.inf
        self.operation_counts: Counter[str] = Counter()
        self.lanes = {peer: Lane(sock, peer, self) for peer, sock in wires.lanes.items()}
        self.boxes = {peer: Mailbox(self, lane) for peer, lane in self.lanes.items()}
        self.slots: dict[int, DriverSlot] = {}
        self.bridge = LoopBridge(self)
        self.acceptor = acceptor
        self.freed = threading.Event()
        self._agreements: dict[int, Agreement] = {}
        self._any_seq = 0
        self.control = Control(self, wires.controls)
        peers = {peer: claim for peer, claim in claims.items() if peer != self.rank}
        hub.monitor.add(self, peers, config.heartbeat, wires.pulses, wires.dial_pulse)
        # Last: a peer may have broken the world already, and that is handled in the hub's thread.
        self.control.start()

    # operations

    def admit(self, operation: Operation, peers: tuple[int, ...]) -> bool:
        """Register ``operation`` unless the world is broken or one of ``peers`` has left; under the lock."""
        gone = self.departed.intersection(peers) if self.departed else ()
        if gone:
            self.lost(min(gone), "left", f"rank {min(gone)} left the world")
        if self.failure is not None:
            operation.fail(self.failure)
            return False
        self.operations.add(operation)
        self.operation_counts[operation.name] += 1
        return True

    def mailbox(self, peer: int) -> Mailbox:
        """The messages with ``peer``."""
        return self.boxes[peer]

    def next_any(self) -> int:
        """A number for a receive from any source."""
        self._any_seq = (self._any_seq + 1) & 0xFFFFFFFF
        return self._any_seq

    def offer_kept(self, box: Mailbox, key: int) -> None:
        """A message lies ready that a receive from any source may take."""
        for waiting in tuple(self.any_receives):
            if waiting.key == key and box.lane.peer in waiting.peers and waiting.take_kept(box):
                return

    def new_buffer(self, nbytes: int) -> torch.Tensor:
        """Memory for a message whose length the sender said. It is taken as it is filled, whatever was said.

        Raises:
            MemoryError: so much cannot be had.
        """
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        except RuntimeError as error:  # torch's word for it
            raise MemoryError(f"{nbytes} bytes") from error

    def agreement(self, gid: int) -> Agreement:
        """The collectives of a group, which a peer may have begun before us."""
        found = self._agreements.get(gid)
        if found is None:
            found = self._agreements[gid] = Agreement(self, gid)
        return found

    def start_collective(self, operation: CollectiveOperation) -> None:
        """Register a collective and tell the others."""
        with self.lock:
            if self.admit(operation, tuple(r for r in operation.ranks if r in self.departed)):
                self.agreement(operation.gid).start(operation)

    def slot(self, gid: int, ranks: tuple[int, ...] | None = None) -> DriverSlot:
        """The backend of a group; a peer may have begun to set it up before us."""
        found = self.slots.get(gid)
        if found is None:
            found = self.slots[gid] = DriverSlot(self, gid)
        if ranks is not None:
            found.ranks = ranks
        return found

    def launch(self, operation: CollectiveOperation) -> None:
        """Run an agreed collective on the backend."""
        self.slot(operation.gid, operation.ranks).launch(operation)

    def look_at(self, deadline: float) -> None:
        """Let the hub look at the deadlines when it is ``deadline``, or sooner. From any thread."""
        with self.lock:
            if deadline >= self.next_look or self.failure is not None:
                return
            self.next_look = deadline
        self.hub.call(self.arm)

    def arm(self) -> None:
        """Set the alarm for the next deadline; a session that has ended has none. In the hub's thread."""
        self.hub.alarm(self.check_deadlines, self.next_look if self.failure is None else math.inf)

    def check_deadlines(self, now: float) -> None:
        """Break the world if an operation is overdue. In the hub's thread."""
        with self.lock:
            # Before the deadlines are read: who sets one from now on finds that nobody is going to look.
            self.next_look = math.inf
            first = min(self.operations, key=lambda op: op.deadline, default=None)
            if first is None or self.failure is not None:
                return
            if first.deadline <= now:
                self._time_out(first)
                return
            self.next_look = min(self.next_look, first.deadline)
        self.arm()

    def awaited(self, before: float) -> set[int]:
        """World ranks that an operation has waited for since ``before``, or longer."""
        pending = tuple(self.operations)
        return {peer for op in pending if not op.withdrawn and op.waited_since() <= before for peer in op.awaits()}

    def _time_out(self, operation: Operation) -> None:
        what = f"{operation.name} was not done within {operation.timeout} s, waiting for {operation.waiting_for()}"
        self.break_(OpTimeout(self.name, what, timeout=operation.timeout, **self._where(operation.name)))

    # frames

    def pump(self, lane: Lane) -> None:
        """Read and handle what came on ``lane``; an error in that ends this world, and nobody waits for ever."""
        try:
            if disturbed():  # the caller's modes, or those of another coroutine of this loop
                with undisturbed():
                    lane.pump()
            else:
                lane.pump()
        except MemoryError as error:
            self.protocol_error(lane, f"a message for which there is no memory: {error}")
        except Exception as error:
            logger.exception("world %r: handling what rank %d sent failed", self.name, lane.peer)
            self.protocol_error(lane, f"{type(error).__name__}: {error}")

    def on_frame(
        self, lane: Lane, kind: int, dtype: int, flags: int, seq: int, key: int, nbytes: int
    ) -> tuple[memoryview | None, Done | None]:
        """Handle a frame's header; see ``LaneOwner``."""
        box = self.boxes[lane.peer]
        if kind == Kind.DATA:
            return box.on_data(dtype, seq, nbytes)
        if kind == Kind.POST:
            box.on_post(dtype, flags, seq, key, nbytes)
        elif kind == Kind.SIGNATURE:
            if key not in self._agreements and len(self._agreements) >= MAX_GROUPS:
                self.protocol_error(lane, f"a collective of one group more than {MAX_GROUPS}")
                return None, None
            return self.agreement(key).expect(lane.peer, seq, flags, nbytes)
        elif kind == Kind.VALUE:
            return self._on_value(lane, key, flags, nbytes)
        else:
            self._on_rare_frame(box, kind, dtype, flags, seq, key, nbytes)
        return None, None

    def _on_value(self, lane: Lane, gid: int, split: int, nbytes: int) -> tuple[memoryview | None, Done | None]:
        known = gid in self.slots or len(self.slots) < MAX_GROUPS
        place = self.slot(gid).expect(split, nbytes) if known else None
        if place is None:
            self.protocol_error(lane, f"a value of {nbytes} bytes for the set-up of group {gid}")
            return None, None
        return place

    def _on_rare_frame(self, box: Mailbox, kind: int, dtype: int, flags: int, seq: int, key: int, nbytes: int) -> None:
        if kind == Kind.REJECT:
            box.on_reject(dtype, flags, seq, nbytes)
        elif kind == Kind.CANCEL:
            box.on_cancel(seq, key)
        elif kind == Kind.CANCELLED:
            box.on_cancelled(seq)
        elif kind == Kind.ANY:
            box.on_any(seq, key)
        elif kind == Kind.ANY_DONE:
            box.on_any_done(seq, key)
        elif kind == Kind.OFFER:
            box.on_offer(seq)
        elif kind == Kind.TAKE:
            box.on_take(seq, key)
        elif kind == Kind.BYE:
            self.on_bye(box.lane.peer, gives_up=bool(flags))
        else:
            self.protocol_error(box.lane, f"frame of unknown kind {kind}")

    def protocol_error(self, lane: Lane, what: str) -> None:
        """A peer sent what no peer of ours can send."""
        self.lost(lane.peer, "protocol", f"rank {lane.peer} sent what cannot be right: {what}")

    def on_bye(self, peer: int, *, gives_up: bool) -> None:
        """``peer`` left in good order: what needs it fails, the rest goes on.

        A collective in which it took part goes on, too, unless it ``gives_up`` its own: the backend may never say so.
        """
        with self.lock:
            if self.failure is not None or peer in self.departed:
                return
            self.departed |= {peer}
            self.leaving.add(peer)
            self.publish(PeerLeft(**self._event(), peer=peer))
            for operation in tuple(self.operations):
                if operation.withdrawn and isinstance(operation, SendOperation) and operation.needs(peer):
                    self.operations.discard(operation)  # it went on for the peer's sake only
            if any(self._cannot_end(operation, peer, gives_up) for operation in tuple(self.operations)):
                self.lost(peer, "left", f"rank {peer} left the world")

    def _cannot_end(self, operation: Operation, gone: int, gives_up: bool) -> bool:
        unfinished = gives_up and isinstance(operation, CollectiveOperation) and gone in operation.ranks
        return unfinished or operation.needs(gone)

    def on_lane_end(self, lane: Lane, error: OSError | None) -> None:
        """A data connection ended: the control connections say why."""
        self.bridge.lane_closed(lane)
        if lane.peer not in self.departed and self.failure is None:
            self.control.explain(lane.peer, error)

    def on_torn(self, lane: Lane) -> None:
        """See ``LaneOwner``."""
        self.interrupted(f"data of rank {lane.peer} was moved")

    def interrupted(self, what: str) -> None:
        """A signal handler raised, as that of Ctrl-C does, where nothing can be resumed: the world ends."""
        error = WorldClosed(
            self.name, f"this process was interrupted while {what}", cause="Ctrl-C, or a signal handler that raises",
            remedy="call rejoin(); under asyncio.run, Ctrl-C cancels instead", **self._where(None),
        )  # fmt: skip
        self.break_(error)

    def on_backlog(self, lane: Lane) -> None:
        """Somebody must write the rest later."""
        self.bridge.want_write(lane)

    # liveness, in the hub's thread

    def peer_silent(self, peer: int, silence: float) -> None:
        """``peer`` gave no sign of life for too long."""
        if not self._may_be_silent(peer):
            self.lost(peer, "silence", f"rank {peer} gave no sign of life for {silence:.2f} s")

    def _may_be_silent(self, peer: int) -> bool:
        """Who has said that it leaves may end any time; but not while its last messages are waited for."""
        if peer in self.departed:
            return True
        return peer in self.leaving and not any(operation.needs(peer) for operation in tuple(self.operations))

    def peer_suspected(self, peer: int, silence: float) -> None:
        """``peer`` may be lost soon."""
        if peer not in self.leaving:
            self.publish(PeerSuspected(**self._event(), peer=peer, silence=silence))

    def peer_recovered(self, peer: int, silence: float) -> None:
        """A suspected ``peer`` was heard."""
        self.publish(PeerRecovered(**self._event(), peer=peer, silence=silence))

    def report_stall(self, bus: EventBus, gap: float) -> None:
        """Our own liveness thread did not run."""
        bus.publish(OwnStall(gap=gap))

    # the end

    def lost(self, peer: int, how: str, what: str, cause: str | None = None) -> None:
        """Break the world because of ``peer``."""
        if cause is None and how == "left":
            cause = "leave() or close() was called there"
        self.break_(PeerLost(self.name, what, cause=cause, ranks=(peer,), how=how, **self._where(None)))

    def break_(self, error: BrokenWorldException, *, tell: bool = True) -> None:
        """End the session for ``error``, unless it has ended: the first cause wins. From any thread, at once."""
        with self.lock:
            if self.failure is not None:
                return
            self.failure = error
            self.state = WorldState.BROKEN
            # Before anybody is released: whoever rejoins at once has its WorldJoined told after this.
            self.publish(WorldBroken(**self._event(), failure=error))
            release(self, error)
        if tell:  # before the data connections end, so that the others know why
            self.control.tell_break(error)
        with self.lock:
            cut(self)
        free(self)

    def abort(self, reason: str) -> None:
        """Break the world here and for everybody."""
        where, again = self._where("abort"), "call rejoin() to bring the world back, or leave()"
        self.break_(
            WorldClosed(self.name, f"aborted: {reason}", cause="abort() was called here", remedy=again, **where)
        )

    def leave(self, linger: float = LINGER_SECONDS) -> None:
        """Leave in good order; blocks for at most ``linger`` seconds, so that what was sent can arrive."""
        with self.lock:
            if self.state is WorldState.CLOSED:
                return
            was_broken = self.failure is not None
            self.state = WorldState.CLOSED
            if not was_broken:
                error = WorldClosed(self.name, "the world was left", **self._where(None))
                self.failure = error
                gives_up = any(isinstance(operation, CollectiveOperation) for operation in self.operations)
                for lane in self.lanes.values():
                    lane.put(Kind.BYE, flags=int(gives_up))
                release(self, error, orderly=True)
        if not was_broken:
            self.control.tell_bye()
            self.publish(WorldLeft(**self._event()))
            free(self, orderly=True, linger=linger)

    # waiting

    def tally(self) -> Tally:
        """What this generation did so far."""
        sent = Counter({peer: lane.sent for peer, lane in self.lanes.items()})
        return Tally(
            Counter(self.operation_counts), sent, Counter({p: lane.received for p, lane in self.lanes.items()})
        )

    def attach_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve operations that are awaited in ``loop``."""
        self.bridge.attach(loop)

    def resolve(self, future: asyncio.Future[None]) -> None:
        """Wake the coroutine that awaits ``future``."""
        self.bridge.resolve(future)

    @contextlib.contextmanager
    def sync_poller(self) -> Iterator[SyncPoller]:
        """Move this session's data in the calling thread for as long as the block lasts."""
        try:
            yield self.bridge.begin_wait()
        finally:
            with self.lock:
                self.bridge.end_wait()

    async def watched_async(self, group: GroupBase, timeout: float | None, starter: Starter, *args: Any) -> Any:
        """Run an operation inside a profiler's span, its memory watched."""
        with span(self.name, self.generation, starter.__name__), watching() as watch:
            operation = watch(begin(self, group, starter, *args))
            if not operation.done:
                await wait_async(operation, timeout)
            return outcome(operation)

    def watched_sync(self, group: GroupBase, timeout: float | None, starter: Starter, *args: Any) -> Any:
        """Run an operation inside a profiler's span, its memory watched, waiting in this thread."""
        with span(self.name, self.generation, starter.__name__), watching() as watch:
            operation = watch(begin(self, group, starter, *args))
            if not operation.done:
                wait_sync(operation, timeout)
            return outcome(operation)

    def publish(self, event: Event) -> None:
        """Hand an event to whoever listens; from the hub's thread, never under a caller's feet."""
        self.hub.call(lambda: self.bus.publish(event))

    def _where(self, operation: str | None) -> dict[str, Any]:
        return {"generation": self.generation, "rank": self.rank, "operation": operation}

    def _event(self) -> dict[str, Any]:
        return {"world": self.name, "generation": self.generation, "rank": self.rank, "monotonic": time.monotonic()}
