"""A session: the life of one generation of one world in this process, from its connections to its end.

It ends in this order: waiters first, then sockets, then threads and memory. ``_release`` runs under the
lock and blocks on nothing: who waits has its exception when they return, except for those whose memory the backend
still works on. They have it when the backend lets go, which is as soon as its connections are closed. What may take
time is done in a thread of its own, with a deadline.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from multiworld.backends import device_failures
from multiworld.backends.cuda import CudaDevice
from multiworld.backends.slot import DriverSlot
from multiworld.config import WorldConfig, WorldState
from multiworld.engine import library
from multiworld.engine.engine import Engine
from multiworld.errors import BrokenWorldException, DeviceFailed, LossReason, OpTimeout, PeerLost, WorldClosed
from multiworld.events import (
    DeviceLost,
    Event,
    EventBus,
    PeerLeft,
    PeerRecovered,
    PeerSuspected,
    WorldBroken,
    WorldLeft,
)
from multiworld.matching.membership import Membership
from multiworld.matching.operation import Launch, Operation
from multiworld.matching.protocol import MAX_GROUPS, ranks_of_channel
from multiworld.process.hooks import patience
from multiworld.process.hub import Hub
from multiworld.process.threads import start_or_run
from multiworld.rendezvous.ledger import Claim
from multiworld.rendezvous.renewal import HeldLanes, Kept
from multiworld.rendezvous.wiring import HandshakeAcceptor, Wires
from multiworld.session.bridge import Bridge
from multiworld.session.control import CANCELLED_CAUSE, GONE, Control
from multiworld.session.counters import Counters
from multiworld.session.door import Door
from multiworld.transport.descriptors import reserve

logger = logging.getLogger(__name__)

DRIVER_SECONDS = 10.0
#: how often a world that is to end looks whether what can finish has, in seconds
LOOK_SECONDS = 0.02
#: how long a leaving member waits for what it sent to be taken
LINGER_SECONDS = 2.0
#: a backend that has not let go of a caller's memory after this long never will: its connections are closed
HELD_SECONDS = 0.5
#: how long the connections of a generation that is over are kept for the next one
KEEP_SECONDS = 10.0
#: how long it may take from the end of a generation until they are known
PART_SECONDS = 1.0


class Session:
    """One generation of one world.

    Args:
        acceptor: answers those who dial this member.
        claims: of all members, by rank.

    Attributes:
        lock: guards all of it; held for short, never while waiting.
        leaving: ranks that have said that they leave.
        gone: ranks that are lost, or have left for good.
        door: where newcomers wait.
        freed: set when nothing is left of it.
    """

    def __init__(
        self,
        hub: Hub,
        bus: EventBus,
        config: WorldConfig,
        generation: int,
        wires: Wires,
        acceptor: HandshakeAcceptor,
        claims: Sequence[Claim],
    ) -> None:
        self.hub, self.bus, self.config = hub, bus, config
        self.membership = Membership(
            config.name,
            config.rank,
            config.size,
            generation,
            config.backend,
            config.op_timeout,
            config.max_message_bytes,
        )
        self.name = config.name
        self.lock = threading.RLock()
        self.state = WorldState.ACTIVE
        self.leaving: set[int] = set()
        self.gone: set[int] = set()
        self.claims = claims
        self._ending: BrokenWorldException | None = None
        self._lanes = HeldLanes()  # that are kept
        self._parted, self._parting = threading.Event(), threading.Lock()
        self._farewells: set[int] = set()  # members that have said that nothing follows
        self._ended: set[int] = set()  # members whose connections end in order, after all that they sent
        self.slots: dict[int, DriverSlot] = {}
        device = CudaDevice(torch.device(config.device)) if self.membership.on_device else None
        self._connect(wires, device)
        self.acceptor = acceptor
        self.freed = threading.Event()
        self.control = Control(self, wires.lines)
        self.door = Door(hub, config.backend, self.control.tell_pending)
        if not config.rank:
            acceptor.knock = self.door.knock
        self._forget_device: Callable[[], None] = lambda: None
        hub.monitor.add(self, claims, config.heartbeat, wires.pulses, wires.dial_pulse)  # which may break us at once
        if device is not None:
            self._forget_device = device_failures.listen(config.device, self._device_lost)
            if self.freed.is_set():
                self._forget_device()
        # Last: a peer may have broken the world already, and that is handled in the hub's thread.
        self.bridge.start()
        self.control.start()

    def _connect(self, wires: Wires, device: CudaDevice | None) -> None:
        """Hand the data connections to the engine of this world."""
        us, held = self.membership, wires.held
        lanes = held.descriptors | {peer: sock.fileno() for peer, sock in wires.lanes.items()}
        native = reserve.make(library.module().Engine, us.rank, lanes, us.max_message_bytes)
        native.begin_at(tuple(held.descriptors), wires.mark)
        held.detach()  # the engine's from here on, as the others are
        for sock in wires.lanes.values():
            sock.detach()
        self.engine = Engine(us, self, self.lock, time.monotonic, native, device)
        self.bridge = Bridge(self, self.engine)

    @property
    def failure(self) -> BrokenWorldException | None:
        """The first cause, once it is broken or closed."""
        return self.engine.failure

    @property
    def departed(self) -> frozenset[int]:
        """Ranks that left in good order, all their data read."""
        return self.engine.departed

    # the backends

    def slot(self, number: int) -> DriverSlot:
        """The backend of a group or channel; a peer may have begun to set it up before us."""
        found = self.slots.get(number)
        if found is None:
            found = self.slots[number] = DriverSlot(self, number)
        return found

    def launch(self, number: int, launch: Launch) -> None:
        """Run an agreed collective, or a matched transfer, after those before it of that group or channel."""
        slot = self.slot(number)
        slot.ranks = launch.ranks
        slot.launch(launch)

    def adopt(self, number: int, launch: Launch) -> None:
        """Hear the end of a transfer that compiled code has handed to the driver of that channel."""
        self.slot(number).adopt(launch)

    def taken_in(self, number: int) -> None:
        """Let the caller of what had no operation see that it has one."""
        self.bridge.let_look(number)

    def aside(self, function: Callable[[], None]) -> None:
        """Run ``function`` soon in a thread of its own."""
        start_or_run(f"mw-aside-{self.name}", function)

    def on_value(self, peer: int, gid: int, name: bytes, value: bytes) -> None:
        """A value for the set-up of a backend has come; the world breaks if it can be for none."""
        ends, nbytes = ranks_of_channel(gid), len(name) + len(value)
        known = gid in self.slots or len(self.slots) < MAX_GROUPS
        known = known and (ends is None or set(ends) == {peer, self.membership.rank})
        if known and self.slot(gid).expects(nbytes):
            self.slot(gid).receive(name, value)
        else:
            self.engine.protocol_error(peer, f"a value of {nbytes} bytes for the set-up of group {gid}")

    # deadlines

    def set_alarm(self) -> None:
        self.hub.call(self.arm)

    def arm(self) -> None:
        """Set the alarm for the next deadline; a session that has ended has none. In the hub's thread."""
        self.hub.alarm(self.check_deadlines, self.engine.next_look if self.failure is None else math.inf)

    def check_deadlines(self, now: float) -> None:
        """Break the world if an operation is overdue. In the hub's thread."""
        with self.lock:
            late = self.engine.overdue(now)
            if late is not None:
                self._time_out(late)
                return
        self.arm()

    def _time_out(self, operation: Operation) -> None:
        what = f"{operation.name} was not done within {operation.timeout} s, waiting for {operation.waiting_for()}"
        ranks = tuple(sorted(operation.awaits())) or (self.membership.rank,)
        where = self.membership.where(operation.name)
        self.break_(OpTimeout(self.name, what, timeout=operation.timeout, ranks=ranks, **where))

    # lanes

    def on_bye(self, peer: int, *, gives_up: bool) -> None:
        """``peer`` left in good order: what needs it fails, the rest goes on. See ``Engine.depart``."""
        with self.lock:
            if self.failure is not None or peer in self.departed:
                return
            self.leaving.add(peer)
            self._farewells.add(peer)
            goes_on = self.engine.depart(peer, gives_up=gives_up)
            self.publish(PeerLeft(**self._event(), peer=peer))
            if not goes_on:
                self.lost(peer, LossReason.LEFT, f"rank {peer} left the world")

    def lane_ended(self, peer: int, error: OSError | None) -> None:
        """A data connection ended: the control connections say why."""
        if peer not in self.departed and self.failure is None:
            self.control.explain(peer, error)

    def interrupted(self, what: str) -> None:
        """A signal handler raised, as that of Ctrl-C does, where nothing can be resumed: the world ends."""
        what, cause = f"this process was interrupted while {what}", "Ctrl-C, or a signal handler that raises"
        remedy = "call rejoin(); under asyncio.run, Ctrl-C cancels instead"
        self.break_(WorldClosed(self.name, what, cause=cause, remedy=remedy, **self.membership.where()))

    def cancelled(self, name: str) -> None:
        """The caller of a collective has stopped waiting: the next ones of this member would be taken for this one."""
        if self.config.on_cancel == "finish":
            return
        us = self.membership
        what = f"rank {us.rank} cancelled {name}, which all members count on"
        again = "call rejoin(); with on_cancel='finish' it goes on without its caller, who must not repeat it"
        told: dict[str, Any] = {"cause": CANCELLED_CAUSE, "remedy": again, "how": LossReason.CANCELLED}
        self.break_(PeerLost(self.name, what, ranks=(us.rank,), **told, **us.where(name)))

    def drain(self, peer: int) -> None:
        """Read what ``peer`` sent before it left."""
        self.bridge.drain(peer)

    # liveness, in the hub's thread

    def awaited(self, before: float) -> set[int]:
        """World ranks that an operation has waited for since ``before``, or longer."""
        return self.engine.awaited(before)

    def peer_silent(self, peer: int, silence: float) -> None:
        """``peer`` gave no sign of life for too long."""
        # Who has said that it leaves may end any time; but not while its last messages are waited for.
        may_be_silent = peer in self.departed or (peer in self.leaving and not self.engine.needed(peer))
        if not may_be_silent:
            self.lost(peer, LossReason.SILENCE, f"rank {peer} gave no sign of life for {silence:.2f} s")

    def peer_suspected(self, peer: int, silence: float) -> None:
        """``peer`` may be lost soon."""
        if peer not in self.leaving:
            self.publish(PeerSuspected(**self._event(), peer=peer, silence=silence))

    def peer_recovered(self, peer: int, silence: float) -> None:
        """A suspected ``peer`` was heard."""
        self.publish(PeerRecovered(**self._event(), peer=peer, silence=silence))

    # the end

    def lost(self, peer: int, how: LossReason, what: str, cause: str | None = None) -> None:
        """Break the world because of ``peer``, at once, or once what can finish has if it left."""
        if peer in self._ended:
            return
        if how in GONE:
            self.gone.add(peer)
        if cause is None and how is LossReason.LEFT:
            cause = "leave() or close() was called there"
        error = PeerLost(self.name, what, cause=cause, ranks=(peer,), how=how, **self.membership.where())
        if how is LossReason.LEFT:
            self.end_in_order(error)
        else:
            self.break_(error)

    def end_in_order(self, error: BrokenWorldException, ended: Collection[int] = ()) -> None:
        """Break the world because a member left, once what all members have sent their part of is done.

        Args:
            ended: members that send nothing more; what they have sent is read first.
        """
        with self.lock:
            self._ended.update(ended)
            if self.failure is not None or self._ending is not None:
                return
            if not self._pending():
                self.break_(error, orderly=True)
                return
            self._ending = error
        until = time.monotonic() + LINGER_SECONDS
        self.hub.call(lambda: self._end_once_done(error, until))

    def _end_once_done(self, error: BrokenWorldException, until: float) -> None:
        """Read what has come, and end the session unless something can still finish; in the hub's thread."""
        others = set(range(self.membership.size)) - {self.membership.rank}
        for peer in others:
            self.bridge.drain(peer)
        with self.lock:
            all_read = all(map(self.bridge.lane_ended, (self._ended & others) - self._farewells))
            finishing = self.engine.finishing() or not (all_read or time.monotonic() > until)
            if not (finishing and self._pending()):
                self.break_(error, orderly=True)
        if self.failure is None:
            self.hub.call_later(LOOK_SECONDS, lambda: self._end_once_done(error, until))

    def _pending(self) -> bool:
        """Tell whether an operation is under way; a message that is exchanged in one call is one, too."""
        return bool(self.engine.operations) or any(map(self.engine.needed, range(self.membership.size)))

    def break_(self, error: BrokenWorldException, *, tell: bool = True, orderly: bool = False) -> None:
        """End the session for ``error``, unless it has ended: the first cause wins. From any thread, at once.

        With ``orderly``, what was sent still arrives.
        """
        with self.lock:
            if self.failure is not None:
                return
            self.engine.failure = error
            self.state = WorldState.BROKEN
            # Before any waiter is released: one that rejoins at once has its WorldJoined told after this.
            self.publish(WorldBroken(**self._event(), failure=error))
            self._release(error, orderly=orderly)
        # Before the data connections end, so that the others know why; and before an abort frees what a kernel of
        # theirs may be reading (NCCL#863).
        if tell:
            self.control.tell_break(error, orderly=orderly)
        if orderly:
            self._parted.set()
            self.hub.monitor.tidy()
        else:
            self._part(error)
        self._abort_slots()
        if orderly or self.slots:  # which may take time
            start_or_run(f"mw-free-{self.name}", self._linger if orderly else self._free)
        else:
            self.hub.call(self._free)

    def _device_lost(self, failure: DeviceFailed) -> None:
        """CUDA refuses every call of this process on the world's device. From any thread."""
        with self.lock:  # two threads may tell
            if self.failure is None:
                ours = failure.with_context(world=self.name, **self.membership.where())
                self.publish(DeviceLost(**self._event(), device=failure.device, failure=ours))
                self.break_(ours)

    def torch_failed(self, error: RuntimeError) -> None:
        """Torch raised ``error`` in the thread of a caller: the device may be lost, and then this world ends."""
        if self.engine.device is not None:
            device_failures.look(self.config.device, error)

    def abort(self, reason: str) -> None:
        """Break the world here and for all members."""
        where, again = self.membership.where("abort"), "call rejoin() to bring the world back, or leave()"
        cause = "abort() was called here"
        self.break_(WorldClosed(self.name, f"aborted: {reason}", cause=cause, remedy=again, **where))

    def leave(self, seconds: float = LINGER_SECONDS, *, returns: bool = False) -> None:
        """Leave in good order; blocks for at most ``seconds``, so that what was sent can arrive. With ``returns`` we
        go on in the next generation."""
        with self.lock:
            was_broken, was_closed = self.failure is not None, self.state is WorldState.CLOSED
            self.state = WorldState.CLOSED
            if not was_broken:
                error = WorldClosed(self.name, "the world was left", **self.membership.where())
                self.engine.failure = error
                self.engine.native.bye(self.engine.gives_up())  # nothing follows
                self._release(error, orderly=True)
        if not was_closed:
            self.control.tell_bye(returns=returns)
        if not was_broken:
            self._abort_slots()
            self.publish(WorldLeft(**self._event()))
            self._linger(seconds, returns=returns)
        if not returns:
            self.forget_kept()
            self.acceptor.endpoint.forget(self.name, 0, self.config.identity)

    def _linger(self, seconds: float = LINGER_SECONDS, *, returns: bool = False) -> None:
        """Let what was sent arrive, then give everything back."""
        until, over = time.monotonic() + seconds, self.bridge.flushed if returns else self.bridge.written_out
        while not (over() and not self.engine.under_way) and time.monotonic() < until:
            time.sleep(0.001)
        if returns:
            self.bridge.stop(orderly=False)
            self._part(None)
        self._free()

    def _part(self, error: BrokenWorldException | None) -> None:
        """End the data connections, but for those to members that may go on with us."""
        wrong = set(error.ranks) if isinstance(error, PeerLost) and error.how is LossReason.PROTOCOL else set()
        lanes = self.bridge.shut(set(range(self.membership.size)) - wrong - self.gone)
        with self._parting:
            in_time = not self._parted.is_set()
            if in_time:
                self._lanes = lanes
                self.control.keep(lanes.descriptors)
                self._parted.set()
        if in_time:
            self.hub.call_later(KEEP_SECONDS, self.forget_kept)
        else:
            lanes.close()

    def kept(self) -> Kept:
        """Hand over the connections of a generation that is over to members that may go on with us; not from the hub's
        thread."""
        if not self._parted.wait(PART_SECONDS):
            self.forget_kept()  # the others see their ends, and dial
        with self._parting:
            lanes, self._lanes = self._lanes, HeldLanes()
        return Kept(self.claims[0].incarnation, self.membership.rank, lanes, self.control.give_up())

    def forget_kept(self) -> None:
        """Close the connections that were kept. From any thread."""
        with self._parting:
            self._parted.set()
            lanes, self._lanes = self._lanes, HeldLanes()
            self.control.keep(())
        self.hub.monitor.tidy()
        self.control.close()
        lanes.close()

    def _release(self, error: BrokenWorldException, *, orderly: bool = False) -> None:
        """Fail every operation with ``error``, and let nothing begin any more; under the lock."""
        cut = not orderly or self.engine.awaited_work()
        self.bridge.stop(orderly=orderly)  # first: from here on nothing is written to a caller's memory
        self.engine.end(error)
        self.hub.call_later(HELD_SECONDS, lambda: self._fail_rest(error))
        for slot in self.slots.values():
            slot.stop(cut=cut)
        self.hub.monitor.remove(self)
        self.set_alarm()  # takes the alarm back
        self.acceptor.close()
        self.door.close()

    def _abort_slots(self) -> None:
        """Release the threads that wait in a backend."""
        for slot in tuple(self.slots.values()):
            slot.abort()

    def _fail_rest(self, error: BrokenWorldException) -> None:
        with self.lock:
            self.engine.fail_all(error, running=True)

    def _free(self) -> None:
        """Give back sockets, threads and backends."""
        self._forget_device()
        self.control.close()
        for slot in tuple(self.slots.values()):
            try:
                slot.free(patience(DRIVER_SECONDS))
            except Exception:  # noqa: PERF203 - one slot's failure must not keep the others
                logger.exception("world %r: its backend could not be freed", self.name)
        if self.failure is not None:
            self._fail_rest(self.failure)
        self.bridge.close()
        self.freed.set()

    def drop_in_child(self) -> None:
        """Leave the backends alone in a forked child."""
        for slot in self.slots.values():
            slot.drop_in_child()

    # waiting

    def counters(self) -> Counters:
        """Count what this generation did so far."""
        traffic = self.bridge.traffic()
        sent = Counter({peer: sent for peer, (sent, _) in traffic.items()})
        received = Counter({peer: received for peer, (_, received) in traffic.items()})
        return Counters(Counter(self.engine.counts), sent, received, self.engine.latencies)

    def publish(self, event: Event) -> None:
        """Hand an event to those who listen; in the hub's thread, never in the caller's."""
        self.hub.call(lambda: self.bus.publish(event))

    def _event(self) -> dict[str, Any]:
        us = self.membership
        return {"world": us.name, "generation": us.generation, "rank": us.rank, "monotonic": time.monotonic()}
