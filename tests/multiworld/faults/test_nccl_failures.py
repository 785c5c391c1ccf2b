"""Failures of NCCL and CUDA themselves, with a transfer on the device: what the patches of the wheels are for.

A peer holds its part of an operation back, so that ours is on the device and cannot end. Then the peer dies, or a call
of NCCL or CUDA in our process fails or hangs. Whoever waits is told, the process lives, and its other world goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from gpuless.control import Action, Remote, Switch
from multiworld import BrokenWorldException, PeerLost
from multiworld.errors import DeviceFailed
from multiworld.lab.injector import Fired, proven
from multiworld.lab.workers import Running, Worker
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import GONE_SECONDS, GRACE_SECONDS
from tests.multiworld.faults.operations import COLLECTIVES, SMALL, Row, rows
from tests.multiworld.faults.scene import CALM, Scene

pytestmark = pytest.mark.only_rows("simulated", "the failures are injected into the imitated CUDA and NCCL")

WORLD, AFTER = "struck", "after"
REMOTE_ERROR, SYSTEM_ERROR = 6, 2  # of ncclResult_t
ILLEGAL_ADDRESS, STREAM_CAPTURE = 700, 900  # of cudaError_t: one damages the context, the other one does not
#: of the heartbeat monitor of torch's group, and longer than it waits
MONITORED, MONITOR_SECONDS = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3"}, 9.0
#: what can carry one of our operations
LAUNCHES = (
    "ncclAllReduce",
    "ncclBroadcast",
    "ncclReduce",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclAlltoAll",
    "ncclGather",
    "ncclScatter",
    "ncclSend",
    "ncclRecv",
    "ncclBcast",
)
CREATIONS = ("ncclCommInitRank", "ncclCommInitRankConfig")


@dataclass(frozen=True, slots=True)
class Injection:
    """A change of a call of our process from now on."""

    site: str
    action: Action
    code: int = 0
    times: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """One row.

    Attributes:
        name: of the row.
        injections: into our process; the last one has to be hit.
        kill: whether the peer dies, too: first where that leads to an abort that is injected into, else afterwards.
        network: whether the peer counts as being on another host, whose death NCCL notices.
        variables: of our process.
        window: how long the process has to live after the injection, and before the peer dies, in seconds.
    """

    name: str
    injections: tuple[Injection, ...] = ()
    kill: bool = True
    network: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    window: float = 0.0

    def __str__(self) -> str:
        return self.name


_ASYNC = Injection("ncclCommGetAsyncError", Action.FAIL, REMOTE_ERROR)
_ABORT_FAILS = Injection("ncclCommAbort", Action.FAIL, SYSTEM_ERROR)
_ABORT_HANGS = Injection("ncclCommAbort", Action.HANG)

FAILURES = (
    Failure("peer killed"),
    Failure("peer killed on another host", network=True),
    Failure("remote error", (_ASYNC,), kill=False),
    Failure("peer killed, abort fails", (_ABORT_FAILS,)),
    Failure("peer killed, abort hangs", (_ABORT_HANGS,)),
    Failure("remote error, abort fails", (_ASYNC, _ABORT_FAILS), kill=False),
    Failure(
        "remote error, abort hangs", (_ASYNC, _ABORT_HANGS), kill=False, variables=MONITORED, window=MONITOR_SECONDS
    ),
)
WATCHDOG_FAILURES = (
    Failure("event query fails", (Injection("cudaEventQuery", Action.FAIL, STREAM_CAPTURE, times=1),)),
    Failure(
        "event query hangs",
        (Injection("cudaEventQuery", Action.HANG, times=1),),
        variables=MONITORED,
        window=MONITOR_SECONDS,
    ),
)


@dataclass(frozen=True, slots=True)
class Held:
    """Our process, one that shares its calm world, the peer that holds back, and our operation on the device.

    Attributes:
        number: of the communicator of the world's collectives, in our process.
    """

    us: Worker
    other: Worker
    peer: Worker
    remote: Remote
    number: int
    waiting: Running


@contextmanager
def held(
    scene: Scene, row: Row, variables: dict[str, str] | None = None, *, quiet: bool = False, keep: bool = False
) -> Iterator[Held]:
    """An operation of ours that is on the device and cannot end.

    Args:
        scene: of the test.
        row: the operation.
        variables: of our process.
        quiet: no other operation is asked for any more when this block begins.
        keep: our process has tensors that a world has carried.
    """
    us, other, peer = scene.worker(env=variables), scene.worker(), scene.worker()
    scene.join(CALM, [us, other])
    scene.join(WORLD, [us, peer])
    scene.works(CALM, [us, other], 1)
    scene.works(WORLD, [us, peer], 1)  # ends with a collective, so its communicator is the last one
    if keep:
        scene.everywhere([us, other], acts.keep_memory, CALM)
    assert us.run(acts.drivers, WORLD) == {scene.backend.backend}, "the row runs on another driver"
    with ExitStack() as stack:
        remote, theirs = (stack.enter_context(scene.imitation(worker)) for worker in (us, peer))
        for site in LAUNCHES:
            theirs.inject(site, Action.HOLD)
        number = remote.counters().communicators - 1
        if quiet:
            proven(lambda: _quiet(remote), "that the watchdogs of all groups have nothing to do")
        before = _launches(remote)
        mirror = {"send": "recv", "recv": "send"}.get(row.operation, row.operation)
        waiting = us.start(acts.operate, WORLD, row, 1)
        peer.start(acts.operate, WORLD, Row(mirror, row.count), 0 if mirror != row.operation else 1)
        proven(lambda: "launched" if _launches(remote) > before else None, f"the launch of {row}")
        yield Held(us, other, peer, remote, number, waiting)


def _quiet(remote: Remote) -> str | None:
    before = remote.counters().sites["cudaEventQuery"].calls
    time.sleep(0.4 if _looks_often() else 1.5)
    after = remote.counters().sites["cudaEventQuery"].calls
    return f"{after} queries of events, and no more" if after == before else None


def _looks_often() -> bool:
    """Return whether a watchdog of torch's looks every tenth of a second; before 2.4 once a second."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 4)


def _launches(remote: Remote) -> int:
    return remote.counters().launched


def _strike(scene: Scene, on: Held, failure: Failure) -> Fired:
    at = time.monotonic()
    on.remote.switch(Switch.NETWORK, on=failure.network)
    for one in failure.injections:
        where = {"comm": on.number} if one is _ASYNC else {}  # else the other world would hear of it, too
        on.remote.inject(one.site, one.action, one.code, times=one.times, **where)
    leads_to_it = failure.kill and any(one.site == "ncclCommAbort" for one in failure.injections)
    if leads_to_it:
        scene.injector.kill(on.peer)
    if failure.injections:
        site = failure.injections[-1].site
        proof = proven(lambda: site if on.remote.counters().sites[site].fired else None, f"{failure}: a hit of {site}")
        scene.injector.record(failure.name, on.us.name, at, f"{proof} was hit")
    time.sleep(failure.window)  # the time that the process has to outlive
    if failure.kill and not leads_to_it:
        scene.injector.kill(on.peer)
    return scene.injector.fired[-1]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_failure(scene: Scene, failure: Failure) -> None:
    _survived(scene, failure)


@pytest.mark.only_rows("torch-nccl (simulated)", "only torch's group has a watchdog, which asks for events")
@pytest.mark.parametrize("failure", WATCHDOG_FAILURES, ids=str)
def test_failure_of_the_watchdog(scene: Scene, failure: Failure) -> None:
    _survived(scene, failure)


def _survived(scene: Scene, failure: Failure) -> None:
    # Most of what is injected is for all communicators of the process: nothing of the other world must be asked.
    with held(scene, Row("all_reduce", SMALL), failure.variables, quiet=True) as on:
        fired = _strike(scene, on, failure)
        outcome = on.waiting.outcome(GONE_SECONDS + GRACE_SECONDS)
        assert isinstance(outcome.error, PeerLost), f"got {outcome.error!r} and value {outcome.value!r}"
        assert outcome.ended - fired.at <= GONE_SECONDS
        scene.works(CALM, [on.us, on.other])
        scene.join(AFTER, [on.us, on.other])
        scene.works(AFTER, [on.us, on.other])


OPERATIONS = ("send", "recv", *(operation.name for operation in COLLECTIVES if operation.by_length))


# A small send is over when NCCL has it in its buffers, whether the peer takes it or not.
@pytest.mark.parametrize("row", [row for row in rows(OPERATIONS) if row != Row("send", SMALL)], ids=str)
def test_peer_dies_with_our_part_on_the_device(scene: Scene, row: Row) -> None:
    """In every operation: NCCL alone would wait for ever."""
    with held(scene, row) as on:
        fired = scene.injector.kill(on.peer)
        outcome = on.waiting.outcome(GONE_SECONDS + GRACE_SECONDS)
        assert isinstance(outcome.error, PeerLost), f"got {outcome.error!r} and value {outcome.value!r}"
        assert outcome.ended - fired.at <= GONE_SECONDS
        scene.works(CALM, [on.us, on.other])


@pytest.mark.only_rows("torch-nccl (simulated)", "the call in which it happens is the watchdog's")
def test_lost_device(scene: Scene) -> None:
    """An error that damages the context ends every world on that device with one typed error, and not the process.

    Nor does the end of tensors: where streams of torch's are recorded for them, the allocator throws in a destructor.
    """
    with held(scene, Row("all_reduce", SMALL), quiet=True, keep=True) as on:
        failure = Failure(
            "illegal address", (Injection("cudaEventQuery", Action.FAIL, ILLEGAL_ADDRESS, times=1),), False
        )
        _strike(scene, on, failure)
        outcome = on.waiting.outcome(GONE_SECONDS + GRACE_SECONDS)
        assert isinstance(outcome.error, BrokenWorldException), f"got {outcome.error!r} and value {outcome.value!r}"
        for worlds in (WORLD, CALM):
            event = on.us.run(acts.await_break, worlds)
            assert isinstance(event.failure, DeviceFailed), repr(event.failure)
            assert event.failure.code == ILLEGAL_ADDRESS
        on.us.run(acts.free_memory)


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_peer_is_hit_while_the_communicator_is_made(scene: Scene, fault: str) -> None:
    """The creation waits for it without a limit of its own."""
    us, other, peer = scene.workers(3)
    scene.join(CALM, [us, other])
    scene.join(WORLD, [us, peer])
    scene.works(CALM, [us, other], 1)
    with scene.imitation(peer) as theirs:
        for site in CREATIONS:
            theirs.inject(site, Action.HANG)
        waiting = us.start(acts.operate, WORLD, Row("all_reduce", SMALL), 1)
        peer.start(acts.operate, WORLD, Row("all_reduce", SMALL), 1)
        proven(lambda: _hanging(theirs), "a creation that hangs")
        fired = getattr(scene.injector, fault)(peer)
        outcome = waiting.outcome(GONE_SECONDS + GRACE_SECONDS)
        assert isinstance(outcome.error, PeerLost), f"got {outcome.error!r} and value {outcome.value!r}"
        assert outcome.ended - fired.at <= GONE_SECONDS
        scene.works(CALM, [us, other])
        scene.join(AFTER, [us, other])
        scene.works(AFTER, [us, other])


def _hanging(remote: Remote) -> str | None:
    sites = remote.counters().sites
    return next((site for site in CREATIONS if sites[site].hanging), None)
