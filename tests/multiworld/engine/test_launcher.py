"""The launcher of a device: who launches and who waits, what is told, and how it ends. Functions in the place of CUDA's
and NCCL's do as the test says."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from multiworld.engine import library

pytestmark = pytest.mark.skipif(not library.launch_functions(), reason="multiworld was built without a compiler")

SECONDS = 20.0
NONE, TELL, PREPARE, LOOK, END = range(5)
LAUNCHED, OVER, FAILED, BROKEN = range(4)
SEND, COPY = 0, 7
REMOTE, IN_PROGRESS, ILLEGAL_ADDRESS = 6, 7, 700
COMM, STREAM, AFTER = 0xC0, 0x51, 0xAF
#: how many arguments the functions have
ARGUMENTS = {"cudaEventCreateWithFlags": 2, "cudaEventDestroy": 1, "cudaEventRecord": 2, "cudaEventSynchronize": 1}
ARGUMENTS |= {"cudaStreamWaitEvent": 3, "cudaMemcpyAsync": 5, "cudaGetErrorString": 1, "ncclGroupStart": 0}
ARGUMENTS |= {"ncclGroupEnd": 0, "ncclSend": 6, "ncclRecv": 6, "ncclBroadcast": 7, "ncclAllReduce": 7, "ncclReduce": 8}
ARGUMENTS |= {"ncclAllGather": 6, "ncclReduceScatter": 7, "ncclCommGetAsyncError": 2, "ncclCommFinalize": 1}
ARGUMENTS |= {"ncclCommDestroy": 1, "ncclCommAbort": 1, "ncclCommRevoke": 2, "ncclGetErrorString": 1}
ARGUMENTS |= {"ncclGetLastError": 1}
_TEXTS = {"cudaGetErrorString": "words of CUDA", "ncclGetErrorString": "words of NCCL", "ncclGetLastError": "detail"}
WORDS = {name: ctypes.create_string_buffer(text.encode()) for name, text in _TEXTS.items()}


class Device:
    """CUDA and NCCL as a launcher sees them, and its owner with the two threads. A launch has the number of its order.

    Attributes:
        calls: what was called, in its order.
        answers: what a function returns.
        state: of the communicator in the background.
        done: set when the event of a launch comes.
        waits: set when it is waited for.
        waiters: who waited for it.
        launchers: who launched it.
        told: the reports about each launch.
        prepare: makes the calls of a launch whose owner does.
    """

    def __init__(self, comm: int) -> None:
        self.calls: list[str] = []
        self.answers: dict[str, int] = {}
        self.state = 0
        self.may_launch = threading.Event()
        self.may_launch.set()
        self.done: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self.waits: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self.launched: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self.waiters: dict[int, int] = {}
        self.launchers: dict[int, int] = {}
        self.told: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        self.changed = threading.Condition()
        self.blocked: set[bool] = set()
        self.looked, self.ended = threading.Event(), threading.Event()
        self.prepare: Callable[[int], list[tuple[int, ...]]] = lambda _: []
        self.launcher = library.launcher()
        self._recorded: dict[int, int] = {}
        self._events = self._records = 0
        self._functions = {name: self._function(name) for name in library.launch_functions()}
        self.addresses = {name: ctypes.cast(one, ctypes.c_void_p).value for name, one in self._functions.items()}
        self.launcher.open(self.addresses, STREAM, comm)
        self.threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(2)]
        for thread in self.threads:
            thread.start()

    def send(self, number: int, count: int = 1) -> None:
        assert self.launcher.add(number, [(SEND, number, 0, 4, 7, 0, 1)] * count, AFTER)

    def was_told(self, number: int, *reports: int) -> bool:
        """Return whether these are the reports of a launch, soon."""
        with self.changed:
            return self.changed.wait_for(lambda: [what for what, _ in self.told[number]] == list(reports), SECONDS)

    def _serve(self) -> None:
        while True:
            job, number, reports = self.launcher.next()
            if job == TELL:
                with self.changed:
                    for what, launch, error in reports:
                        self.told[launch].append((what, error))
                    self.changed.notify_all()
            elif job == PREPARE:
                self.launchers[number] = threading.get_ident()
                self.launcher.go_on(number, self.prepare(number))
            elif job == LOOK:
                self.looked.set()
            elif job == END:
                self.ended.set()
            else:
                return

    def _function(self, name: str) -> Any:
        kind = ctypes.c_void_p if name in WORDS else ctypes.c_int
        own = getattr(self, f"_{name}", None)

        def call(*given: int) -> int:
            if name in WORDS:
                return ctypes.addressof(WORDS[name])
            self.calls.append(name)
            said = own(*given) if own is not None else None
            return self.answers.get(name, 0) if said is None else said

        return ctypes.CFUNCTYPE(kind, *[ctypes.c_void_p] * ARGUMENTS[name])(call)

    def _ncclSend(self, source: int, *_: int) -> None:  # noqa: N802 - it is NCCL's
        self.launchers[source] = threading.get_ident()
        self.launched[source].set()
        assert self.may_launch.wait(SECONDS)

    def _cudaEventCreateWithFlags(self, made: int, flags: int) -> None:  # noqa: N802
        assert flags == 3  # blocking, without times
        self._events += 1
        ctypes.cast(made, ctypes.POINTER(ctypes.c_void_p))[0] = self._events

    def _cudaEventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        assert stream == STREAM
        self._records += 1
        self._recorded[event] = self._records

    def _cudaEventSynchronize(self, event: int) -> None:  # noqa: N802
        number = self._recorded[event]
        self.blocked.add(signal.pthread_sigmask(signal.SIG_BLOCK, []) >= {signal.SIGTERM, signal.SIGUSR1})
        self.waiters[number] = threading.get_ident()
        self.waits[number].set()
        assert self.done[number].wait(SECONDS)

    def _ncclCommGetAsyncError(self, _: int, found: int) -> None:  # noqa: N802
        ctypes.cast(found, ctypes.POINTER(ctypes.c_int))[0] = self.state


@pytest.fixture
def comm() -> int:
    """The communicator; 0 where the owner makes all calls."""
    return COMM


@pytest.fixture
def device(comm: int) -> Iterator[Device]:
    made = Device(comm)
    yield made
    made.may_launch.set()
    for number in range(1000):
        made.done[number].set()
    made.launcher.stop()
    for thread in made.threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert made.ended.is_set()
    assert made.blocked <= {True}, "a signal would be handled inside CUDA"


def test_who_launches_waits_for_the_end(device: Device) -> None:
    for number in range(1, 21):
        device.done[number].set()
        device.send(number)
        assert device.was_told(number, OVER)
        assert device.launchers[number] == device.waiters[number]
    assert device.calls.count("cudaEventCreateWithFlags") <= 2, "events are not used again"


def test_the_other_one_launches_meanwhile_and_the_ends_keep_their_order(device: Device) -> None:
    device.send(1)
    assert device.waits[1].wait(SECONDS)
    device.done[2].set()
    device.send(2)
    assert device.launched[2].wait(SECONDS)
    assert device.launchers[2] != device.waiters[1]
    assert not device.told[2]
    device.done[1].set()
    assert device.was_told(1, OVER)
    assert device.was_told(2, OVER)


def test_a_launch_waits_on_the_device_for_what_came_before_it(device: Device) -> None:
    device.done[1].set()
    device.send(1)
    assert device.was_told(1, OVER)
    assert [call for call in device.calls if call in ("cudaStreamWaitEvent", "ncclSend", "cudaEventRecord")] == [
        "cudaStreamWaitEvent",
        "ncclSend",
        "cudaEventRecord",
    ]


def test_a_launch_is_told_where_that_is_asked_for(device: Device) -> None:
    device.may_launch.clear()
    device.send(1)
    assert not device.launcher.tell_launch(1)
    device.may_launch.set()
    assert device.was_told(1, LAUNCHED)
    assert device.launcher.tell_launch(1)
    device.done[1].set()
    assert device.was_told(1, LAUNCHED, OVER)


def test_several_calls_are_one_group_which_is_closed_after_an_error(device: Device) -> None:
    device.answers["ncclSend"] = REMOTE
    device.send(1, count=3)
    assert device.was_told(1, FAILED)
    assert device.told[1] == [(FAILED, "NCCL error 6, words of NCCL: detail")]
    ours = [call for call in device.calls if call in ("ncclGroupStart", "ncclSend", "ncclGroupEnd")]
    assert ours == ["ncclGroupStart", "ncclSend", "ncclGroupEnd"]


def test_nothing_follows_a_launch_that_failed(device: Device) -> None:
    device.may_launch.clear()
    device.send(1)
    assert device.launched[1].wait(SECONDS)
    device.send(2)
    device.answers["ncclSend"] = REMOTE
    device.may_launch.set()
    assert device.was_told(1, FAILED)
    assert device.launcher.stop() == [2]
    assert not device.launched[2].is_set()


def test_an_event_that_fails_is_told_with_its_words(device: Device) -> None:
    device.answers["cudaEventSynchronize"] = ILLEGAL_ADDRESS
    device.done[1].set()
    device.send(1)
    assert device.was_told(1, OVER)
    assert device.told[1] == [(OVER, "cudaEventSynchronize: CUDA error 700, words of CUDA")]


def test_failures_are_looked_for_while_something_is_under_way(device: Device) -> None:
    device.send(1)
    assert device.waits[1].wait(SECONDS)
    device.state = REMOTE
    assert device.was_told(0, BROKEN)
    assert device.told[0] == [(BROKEN, "NCCL error 6, words of NCCL: detail")]


def test_what_is_in_progress_is_waited_for(device: Device) -> None:
    device.state = IN_PROGRESS
    device.send(1)
    assert device.launched[1].wait(SECONDS)
    assert not device.waits[1].wait(0.05)
    device.state = 0
    assert device.waits[1].wait(SECONDS)


def test_it_is_stopped_while_nccl_is_at_work(device: Device) -> None:
    device.state = IN_PROGRESS
    device.send(1)
    assert device.launched[1].wait(SECONDS)
    device.launcher.stop()
    assert device.was_told(1, FAILED)
    assert device.told[1][0][1] == "aborted while NCCL was at work"
    assert device.ended.wait(SECONDS)


def test_a_call_that_hangs_holds_nobody_else(device: Device) -> None:
    device.may_launch.clear()
    device.send(1)
    assert device.launched[1].wait(SECONDS)
    device.send(2)
    assert not device.launcher.tell_launch(2)
    assert device.launcher.stop() == [2]
    assert not device.launcher.add(3, [], 0)
    assert device.launcher.drained(0.0)


def test_an_abort_waits_for_the_call_that_another_thread_is_inside(device: Device) -> None:
    device.may_launch.clear()
    device.send(1)
    assert device.launched[1].wait(SECONDS)
    abort = threading.Thread(target=device.launcher.abort, daemon=True)
    abort.start()
    abort.join(0.05)
    assert "ncclCommAbort" not in device.calls
    device.may_launch.set()
    abort.join(SECONDS)
    assert "ncclCommAbort" in device.calls


@pytest.mark.parametrize(
    ("revokes", "answer", "called"),
    [
        (False, 0, ["ncclCommAbort"]),
        (True, 0, ["ncclCommRevoke", "ncclCommAbort"]),
        (True, 5, ["ncclCommRevoke", "ncclCommAbort"]),
    ],
    ids=["too old", "revoked", "the revoke fails"],
)
def test_an_abort_revokes_first_where_nccl_can(device: Device, revokes: bool, answer: int, called: list[str]) -> None:
    device.answers["ncclCommRevoke"] = answer
    device.launcher.open(device.addresses | ({} if revokes else {"ncclCommRevoke": 0}), STREAM, COMM)
    device.launcher.abort()
    device.launcher.abort()  # there is nothing left of it
    assert [call for call in device.calls if call in ("ncclCommRevoke", "ncclCommAbort")] == called


def test_an_abort_that_fails_is_told(device: Device) -> None:
    device.answers["ncclCommAbort"] = REMOTE
    with pytest.raises(RuntimeError, match="NCCL error 6, words of NCCL"):
        device.launcher.abort()


def test_it_is_freed_in_good_order(device: Device) -> None:
    device.launcher.finalize()
    assert device.calls == ["ncclCommFinalize", "ncclCommGetAsyncError", "ncclCommDestroy"]
    with pytest.raises(RuntimeError, match="aborted"):
        device.launcher.finalize()


@pytest.mark.parametrize("comm", [0])
def test_the_owner_makes_the_calls(device: Device) -> None:
    device.prepare = lambda _: [(COPY, 1, 2, 8, 0, 0, 0)]
    assert device.launcher.add(1, None, 0)
    assert device.waits[1].wait(SECONDS)
    assert device.calls[:1] == ["cudaMemcpyAsync"]
    assert device.looked.wait(SECONDS), "nobody looks for failures"
    device.done[1].set()
    assert device.was_told(1, OVER)


def test_it_is_stopped_while_one_waits(device: Device) -> None:
    device.send(1)
    assert device.waits[1].wait(SECONDS)
    assert device.launcher.stop() == []
    assert device.ended.wait(SECONDS), "nobody is left to end it"
    assert not device.launcher.drained(0.0)
    device.done[1].set()
    assert device.launcher.drained(SECONDS)


def test_it_is_stopped_while_one_launches(device: Device) -> None:
    device.may_launch.clear()
    device.send(1)
    assert device.launched[1].wait(SECONDS)
    device.send(2)
    assert device.launcher.stop() == [2]
    assert not device.ended.is_set()
    device.may_launch.set()
    assert device.ended.wait(SECONDS), "who has launched waits, and nobody ends it"


def test_it_is_closed_when_all_is_done(device: Device) -> None:
    device.send(1)
    device.send(2)
    device.launcher.close()
    device.done[1].set()
    assert device.waits[2].wait(SECONDS)
    assert not device.ended.is_set()
    device.done[2].set()
    assert device.ended.wait(SECONDS)


def test_a_stream_waits_for_what_is_under_way_and_for_nothing_that_is_over(device: Device) -> None:
    device.send(1)
    assert device.waits[1].wait(SECONDS)
    before = device.calls.count("cudaStreamWaitEvent")
    device.launcher.join(1, STREAM)
    assert device.calls.count("cudaStreamWaitEvent") == before + 1
    device.answers["cudaStreamWaitEvent"] = ILLEGAL_ADDRESS
    with pytest.raises(RuntimeError, match="cudaStreamWaitEvent: CUDA error 700"):
        device.launcher.join(1, STREAM)
    device.done[1].set()
    assert device.was_told(1, OVER)
    device.launcher.join(1, STREAM)
    assert device.calls.count("cudaStreamWaitEvent") == before + 2


def test_a_forked_child_leaves_it_alone(device: Device) -> None:
    device.send(1)
    assert device.waits[1].wait(SECONDS)
    child = os.fork()
    if child == 0:
        try:
            device.launcher.stop()
        except RuntimeError as error:
            os._exit("forked child" in str(error))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    device.done[1].set()
    assert device.was_told(1, OVER)
