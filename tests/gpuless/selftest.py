"""The imitation itself, called directly: injections, groups, held operations. Needs no torch."""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_char, c_float, c_void_p

import fake

_lib = fake.library
_NOT_READY = 600  # cudaErrorNotReady
_NON_BLOCKING = 1  # cudaStreamNonBlocking: the default stream does not wait for it


class _UniqueId(ctypes.Structure):
    _fields_ = (("bytes", c_char * 128),)


def run() -> tuple[str, dict[str, object]]:
    """Run every check; the first that fails names itself."""
    checks = (_after_and_times, _one_communicator_only, _groups, _failing_group, _hang, _hold, _data, _dead_handles)
    for check in checks:
        check(_communicator(), _communicator())
        fake.lift(*fake.DATA_CALLS, "ncclCommAbort", "ncclGroupEnd", "cudaEventQuery")
        _expect(_lib.cudaDeviceSynchronize(), 0)
    return "OK", {"checks": [check.__name__ for check in checks]}


def _communicator() -> c_void_p:
    comm = c_void_p()
    _expect(_lib.ncclCommInitRankConfig(byref(comm), 2, _UniqueId(), 0, None), 0)
    return comm


def _all_reduce(comm: c_void_p, stream: c_void_p | None = None) -> int:
    return int(_lib.ncclAllReduce(None, None, ctypes.c_size_t(0), 7, 0, comm, stream))


def _expect(got: object, wanted: object) -> None:
    if got != wanted:
        raise AssertionError(f"expected {wanted}, got {got}")


def _after_and_times(comm: c_void_p, _: c_void_p) -> None:
    before = fake.fired("ncclAllReduce")
    fake.inject("ncclAllReduce", fake.FAIL, 6, after=1, times=2)
    _expect([_all_reduce(comm) for _ in range(4)], [0, 6, 6, 0])
    _expect(fake.fired("ncclAllReduce") - before, 2)


def _one_communicator_only(comm: c_void_p, other: c_void_p) -> None:
    fake.inject("ncclAllReduce", fake.FAIL, 6, comm=fake.comms() - 1)  # the last one made
    _expect([_all_reduce(comm), _all_reduce(other)], [0, 6])


def _groups(comm: c_void_p, other: c_void_p) -> None:
    before = fake.launched()
    _lib.ncclGroupStart()
    _all_reduce(comm)
    _all_reduce(other)
    _expect((fake.depth(), fake.launched() - before), (1, 0))
    _expect(_lib.ncclGroupEnd(), 0)
    _expect((fake.depth(), fake.launched() - before), (0, 2))
    _expect(_lib.ncclGroupEnd(), 5)  # none is open: invalid usage


def _failing_group(comm: c_void_p, other: c_void_p) -> None:
    before = fake.launched()
    fake.inject("ncclAllReduce", fake.FAIL, 6, times=1)
    _lib.ncclGroupStart()
    _expect([_all_reduce(comm), _all_reduce(other)], [6, 0])
    _expect(_lib.ncclGroupEnd(), 6)
    _expect((fake.depth(), fake.launched() - before), (0, 0))


def _hang(comm: c_void_p, _: c_void_p) -> None:
    fake.inject("ncclCommAbort", fake.HANG)
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(_lib.ncclCommAbort(comm)), daemon=True)
    thread.start()
    _expect(fake.await_true(lambda: fake.hanging("ncclCommAbort") == 1, 5) is not None, True)
    _expect(result, [])
    fake.lift("ncclCommAbort")
    thread.join(5)
    _expect(result, [0])


def _hold(comm: c_void_p, other: c_void_p) -> None:
    stream, event, free = c_void_p(), c_void_p(), c_void_p()
    _lib.cudaStreamCreateWithPriority(byref(stream), _NON_BLOCKING, 0)
    for made in (event, free):
        _lib.cudaEventCreateWithFlags(byref(made), 0)
    fake.inject("ncclAllReduce", fake.HOLD, comm=fake.comms() - 2)
    _expect([_all_reduce(comm, stream), _all_reduce(other)], [0, 0])
    _lib.cudaEventRecord(event, stream)
    _lib.cudaStreamSynchronize(None)
    _lib.cudaEventRecord(free, None)
    _expect([_lib.cudaEventQuery(event), _lib.cudaEventQuery(free)], [_NOT_READY, 0])
    _lib.ncclCommAbort(comm)
    _expect(_lib.cudaEventQuery(event), 0)
    _expect(_all_reduce(comm), 4)  # an aborted communicator takes no operations


def _data(comm: c_void_p, _: c_void_p) -> None:
    sent, received = (c_float * 2)(1, 2), (c_float * 4)()
    _lib.ncclAllGather(sent, received, ctypes.c_size_t(2), 7, comm, None)
    _lib.cudaStreamSynchronize(None)
    _expect(list(received), [1, 2, 0, 0])  # rank 0's share; there is no peer


def _dead_handles(comm: c_void_p, other: c_void_p) -> None:
    """The use of a communicator after its end is counted, and refused as NCCL refuses a corrupted one."""
    before = fake.misused()
    _expect([_lib.ncclCommAbort(comm), _lib.ncclCommDestroy(other)], [0, 0])
    _expect([_lib.ncclCommAbort(comm), _lib.ncclCommDestroy(other), _all_reduce(comm)], [4, 4, 4])
    _expect(fake.misused() - before, 3)
