"""One rank: a process on the imitation that calls CUDA and NCCL directly, as the test tells it to.

Each line of standard input is a call (JSON: the name of a function below, its arguments), each line of standard
output its answer. The standard library only; no torch.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import os
import struct
import sys
import threading
import time
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # isolated, it has no path of ours
from tests.gpuless.nccl_types import Config, UniqueId

lib = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[0])

NON_BLOCKING_STREAM = 1
TO_HOST, TO_DEVICE = 2, 1

comms: list[c_void_p] = []
streams: list[c_void_p] = []
events: list[c_void_p] = []
buffers: list[tuple[c_void_p, int]] = []


def check(code: int) -> None:
    if code:
        raise RuntimeError(f"error {code}")


def unique_id() -> str:
    made = UniqueId()
    check(lib.ncclGetUniqueId(byref(made)))
    return made.text()


def init(identifier: str, ranks: int, rank: int, device: int = 0, blocking: int = 1) -> int:
    """Make a communicator, number `len(comms)`, and return NCCL's answer."""
    check(lib.cudaSetDevice(device))
    comm, config = c_void_p(), Config(ctypes.sizeof(Config), 0xCAFEBEEF, 22105, blocking)
    code = lib.ncclCommInitRankConfig(byref(comm), ranks, UniqueId.of(identifier), rank, byref(config))
    comms.append(comm)
    return int(code)


def stream() -> int:
    made = c_void_p()
    check(lib.cudaStreamCreateWithFlags(byref(made), NON_BLOCKING_STREAM))
    streams.append(made)
    return len(streams) - 1


def buffer(data: str = "", size: int = 0) -> int:
    """Allocate device memory with these bytes (base64) or of that size; return its number."""
    content = base64.b64decode(data)
    made = c_void_p()
    check(lib.cudaMalloc(byref(made), c_size_t(len(content) or size)))
    if content:
        check(lib.cudaMemcpy(made, content, c_size_t(len(content)), TO_DEVICE))
    buffers.append((made, len(content) or size))
    return len(buffers) - 1


def pattern(size: int, seed: int) -> int:
    """Allocate device memory with a pattern; return its number."""
    return buffer(base64.b64encode(_pattern(size, seed)).decode())


def _pattern(size: int, seed: int) -> bytes:
    block = hashlib.sha256(str(seed).encode()).digest() * 128
    return (block * (size // len(block) + 1))[:size]


def floats(value: float, count: int) -> int:
    """Allocate device memory with the same number many times; return its number."""
    return buffer(base64.b64encode(struct.pack("=f", value) * count).decode())


def different_floats(number: int) -> list[float]:
    """Return the different numbers there are in a buffer."""
    data = base64.b64decode(content(number))
    return sorted(set(struct.unpack(f"={len(data) // 4}f", data)))


def content(number: int) -> str:
    where, size = buffers[number]
    host = ctypes.create_string_buffer(size)
    check(lib.cudaMemcpy(host, where, c_size_t(size), TO_HOST))
    return base64.b64encode(host.raw[:size]).decode()


def digest(number: int) -> str:
    return hashlib.sha256(base64.b64decode(content(number))).hexdigest()


def operate(
    name: str, send: int, recv: int, count: int, dtype: int, extra: list[int] | None = None, comm: int = 0, on: int = 0
) -> int:
    """Call an NCCL operation; `extra` is what stands between its dtype and its communicator."""
    pointers = {
        "ncclSend": (buffers[send][0],) if send >= 0 else (None,),
        "ncclRecv": (buffers[recv][0],) if recv >= 0 else (None,),
        "ncclBcast": (buffers[recv][0],) if recv >= 0 else (None,),
    }.get(name, (buffers[send][0] if send >= 0 else None, buffers[recv][0] if recv >= 0 else None))
    where = streams[on] if on >= 0 else None
    return int(getattr(lib, name)(*pointers, c_size_t(count), dtype, *(extra or []), comms[comm], where))


def premul(value: str, dtype: int, residence: int, comm: int = 0) -> int:
    """Make a PreMulSum reduction with a scalar (base64) and return its number."""
    made, given = c_int(), base64.b64decode(value)
    scalar = ctypes.create_string_buffer(given) if residence else buffers[buffer(value)][0]
    check(lib.ncclRedOpCreatePreMulSum(byref(made), scalar, dtype, residence, comms[comm]))
    return made.value


def exchange(peer: int, send: int, recv: int, count: int, dtype: int = 0, on: int = 0) -> int:
    """Send and receive in one group."""
    lib.ncclGroupStart()
    operate("ncclSend", send, -1, count, dtype, [peer], on=on)
    operate("ncclRecv", -1, recv, count, dtype, [peer], on=on)
    return int(lib.ncclGroupEnd())


def ordered_fill(number: int, size: int) -> list[int]:
    """Receive from rank 0, record an event, fill with sevens, record another; return both events' states."""
    events = [c_void_p(), c_void_p()]
    for event in events:
        check(lib.cudaEventCreateWithFlags(byref(event), 2))
    operate("ncclRecv", -1, number, size, 0, [0])
    check(lib.cudaEventRecord(events[0], streams[0]))
    check(lib.cudaMemsetAsync(buffers[number][0], 7, c_size_t(size), streams[0]))
    check(lib.cudaEventRecord(events[1], streams[0]))
    return [int(lib.cudaEventQuery(event)) for event in events]


def digest_of_memory(number: int) -> str:
    """Look at device memory behind CUDA's back: it is host memory."""
    where, size = buffers[number]
    return hashlib.sha256(ctypes.string_at(where, size)).hexdigest()


def digest_of_pattern(size: int, seed: int) -> str:
    return hashlib.sha256(_pattern(size, seed)).hexdigest()


def query(on: int = 0) -> int:
    return int(lib.cudaStreamQuery(streams[on]))


def synchronize(on: int = 0) -> int:
    return int(lib.cudaStreamSynchronize(streams[on]))


def settle(seconds: float, on: int = 0) -> int:
    """Return what cudaStreamQuery says at the end, at the latest after that time."""
    end = time.monotonic() + seconds
    while (code := query(on)) and time.monotonic() < end:
        time.sleep(0.005)
    return code


def async_error(comm: int = 0) -> int:
    code = c_int()
    check(lib.ncclCommGetAsyncError(comms[comm], byref(code)))
    return code.value


def await_async_error(wanted: int, seconds: float, comm: int = 0) -> bool:
    end = time.monotonic() + seconds
    while async_error(comm) != wanted:
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def split(color: int, key: int, comm: int = 0) -> int:
    made = c_void_p()
    code = lib.ncclCommSplit(comms[comm], color, key, byref(made), None)
    comms.append(made)
    return int(code)


def shrink(without: list[int], comm: int = 0) -> int:
    made, array = c_void_p(), (c_int * len(without))(*without)
    code = lib.ncclCommShrink(comms[comm], array, len(without), byref(made), None, 0)
    comms.append(made)
    return int(code)


def place(comm: int = 0) -> list[int]:
    """Return the rank and the number of ranks of a communicator."""
    rank, ranks = c_int(), c_int()
    check(lib.ncclCommUserRank(comms[comm], byref(rank)))
    check(lib.ncclCommCount(comms[comm], byref(ranks)))
    return [rank.value, ranks.value]


def grow(ranks: int, identifier: str, comm: int = -1, rank: int = -1) -> int:
    """Join a communicator that grows: as a member of the old one, or as a new rank."""
    made = c_void_p()
    name = byref(UniqueId.of(identifier)) if identifier else None
    old = comms[comm] if comm >= 0 else None
    code = lib.ncclCommGrow(old, ranks, name, rank, byref(made), None)
    comms.append(made)
    return int(code)


def grow_id(comm: int = 0) -> str:
    made = UniqueId()
    check(lib.ncclCommGetUniqueId(comms[comm], byref(made)))
    return made.text()


def init_scalable(identifier: str, ranks: int, rank: int) -> int:
    comm, ids = c_void_p(), (UniqueId * 1)(UniqueId.of(identifier))
    code = lib.ncclCommInitRankScalable(byref(comm), ranks, rank, 1, ids, None)
    comms.append(comm)
    return int(code)


def init_all(count: int) -> int:
    made = (c_void_p * count)()
    code = lib.ncclCommInitAll(made, count, None)
    comms.extend(c_void_p(one) for one in made)
    return int(code)


_background: list[object] = []


def background(name: str, *arguments: object) -> None:
    """Make a call in a thread; see `finished`."""
    _background.clear()
    function = globals()[name]
    threading.Thread(target=lambda: _background.append(function(*arguments)), daemon=True).start()


def finished(seconds: float) -> object:
    """Return the result of the call in the background, None when it has not returned by then."""
    end = time.monotonic() + seconds
    while not _background and time.monotonic() < end:
        time.sleep(0.005)
    return _background[0] if _background else None


def event(on: int = 0) -> int:
    """Record a new event on a stream; return its number."""
    made = c_void_p()
    check(lib.cudaEventCreateWithFlags(byref(made), 2))
    check(lib.cudaEventRecord(made, streams[on]))
    events.append(made)
    return len(events) - 1


def query_event(number: int) -> int:
    return int(lib.cudaEventQuery(events[number]))


def destroy_event(number: int) -> int:
    return int(lib.cudaEventDestroy(events[number]))


def on_stream(name: str, on: int = 0) -> int:
    """Call a function of the CUDA runtime that takes a stream alone."""
    return int(getattr(lib, name)(streams[on]))


def begin_capture(on: int = 0) -> int:
    return int(lib.cudaStreamBeginCapture(streams[on], 0))


def is_capturing(on: int = 0) -> int:
    status = c_int()
    check(lib.cudaStreamIsCapturing(streams[on], byref(status)))
    return status.value


def free(number: int) -> int:
    return int(lib.cudaFree(buffers[number][0]))


def launch_kernel() -> int:
    """Use a kernel for the first time."""
    return int(lib.cudaLaunchKernel(c_void_p(4096), 1, 1, 1, 1, 1, 1, None, c_size_t(0), None))


def memory() -> list[int]:
    """Return the free and all bytes of device memory."""
    free_bytes, total = c_size_t(), c_size_t()
    check(lib.cudaMemGetInfo(byref(free_bytes), byref(total)))
    return [free_bytes.value, total.value]


def registered(number: int, comm: int = 0) -> list[int]:
    """Register and deregister a buffer, as memory and as a window; return the results."""
    where, size = buffers[number]
    handle, window = c_void_p(), c_void_p()
    results = [
        lib.ncclCommRegister(comms[comm], where, c_size_t(size), byref(handle)),
        lib.ncclCommDeregister(comms[comm], handle),
    ]
    if has("ncclCommWindowRegister"):
        results.append(lib.ncclCommWindowRegister(comms[comm], where, c_size_t(size), byref(window), 0))
        results.append(lib.ncclCommWindowDeregister(comms[comm], window))
    return results


def has(name: str) -> bool:
    """Say whether the imitation exports a function."""
    return hasattr(lib, name)


def version() -> int:
    found = c_int()
    check(lib.ncclGetVersion(byref(found)))
    return found.value


def abort_together(which: list[int]) -> int:
    """Abort communicators in one group."""
    lib.ncclGroupStart()
    for comm in which:
        lib.ncclCommAbort(comms[comm])
    return int(lib.ncclGroupEnd())


def group_with_an_end(count: int) -> int:
    """Queue an operation in a group, let another thread abort its communicator, and end the group."""
    lib.ncclGroupStart()
    operate("ncclAllReduce", 0, 0, count, 7, [0])
    thread = threading.Thread(target=lambda: lib.ncclCommAbort(comms[0]))
    thread.start()
    thread.join()
    return int(lib.ncclGroupEnd())


def threads() -> int:
    """Return how many threads this process has."""
    return len(list(Path("/proc/self/task").iterdir()))


def nccl_memory(size: int) -> list[int]:
    """Allocate and free memory through NCCL; return the results."""
    made = c_void_p()
    return [lib.ncclMemAlloc(byref(made), c_size_t(size)), lib.ncclMemFree(made)]


def call(name: str, comm: int = 0, *arguments: int) -> int:
    """Call a function of NCCL on a communicator."""
    return int(getattr(lib, name)(comms[comm], *arguments))


def cuda(name: str, *arguments: int) -> int:
    """Call a function of the CUDA runtime without results."""
    return int(getattr(lib, name)(*arguments))


def device_count() -> int:
    found = c_int()
    check(lib.cudaGetDeviceCount(byref(found)))
    return found.value


def loop(peer: int, sending: bool, size: int) -> None:
    """Send or receive without end, and answer nothing."""
    here = buffer(size=size)
    while True:
        if sending:
            operate("ncclSend", here, -1, size, 0, [peer])
        else:
            operate("ncclRecv", -1, here, size, 0, [peer])
        synchronize()


def main() -> None:
    functions: dict[str, Any] = dict(globals())
    stream()
    for line in sys.stdin:
        name, arguments, named = json.loads(line)
        try:
            answer: object = {"value": functions[name](*arguments, **named)}
        except Exception as error:  # noqa: BLE001 - the test looks at it
            answer = {"error": repr(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


main()
