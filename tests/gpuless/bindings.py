"""Two ranks on NVIDIA's bindings (`nccl4py`), each a process of the interpreter under test; prints what it got as JSON.

Arguments: the rank, a file for the unique id. No torch: memory and streams come from the imitation by ctypes.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path
from typing import Any

_IN_PROGRESS = 7
_FLOAT, _SUM = 7, 0
nccl: Any = importlib.import_module("nccl.bindings.nccl")
cuda = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[0])


def identity(rank: int, file: Path) -> Any:
    if rank == 0:
        made = nccl.get_unique_id()
        file.with_suffix(".part").write_bytes(ctypes.string_at(made.ptr, 128))
        file.with_suffix(".part").rename(file)
        return made
    while not file.exists():
        time.sleep(0.01)
    found = nccl.UniqueId()
    ctypes.memmove(found.ptr, file.read_bytes(), 128)
    return found


def settle(comm: object) -> int:
    while (code := int(nccl.comm_get_async_error(comm))) == _IN_PROGRESS:
        time.sleep(0.001)
    return code


def device_floats(*values: float) -> int:
    where = c_void_p()
    host = (ctypes.c_float * len(values))(*values)
    cuda.cudaMalloc(byref(where), c_size_t(ctypes.sizeof(host)))
    cuda.cudaMemcpy(where, host, c_size_t(ctypes.sizeof(host)), 1)
    return where.value or 0


def host_floats(where: int, count: int) -> list[float]:
    host = (ctypes.c_float * count)()
    cuda.cudaMemcpy(host, c_void_p(where), c_size_t(ctypes.sizeof(host)), 2)
    return list(host)


def refused(call: Callable[..., object], *arguments: object) -> str:
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - its text is what is asked for
        return str(error)
    return "returned"


def main(rank: int, file: Path) -> dict[str, object]:
    cuda.cudaSetDevice(rank)
    stream = c_void_p()
    cuda.cudaStreamCreateWithFlags(byref(stream), 1)
    at = stream.value or 0
    config = nccl.Config()
    config.blocking = 0
    comm = nccl.comm_init_rank_config(2, identity(rank, file), rank, config)
    seen: dict[str, object] = {"version": nccl.get_version(), "created": settle(comm)}
    seen["place"] = [nccl.comm_user_rank(comm), nccl.comm_count(comm)]
    send, recv = device_floats(rank + 1, rank + 2), device_floats(0, 0)
    nccl.group_start()
    nccl.send(send, 2, _FLOAT, 1 - rank, comm, at)
    nccl.recv(recv, 2, _FLOAT, 1 - rank, comm, at)
    nccl.group_end()
    seen["launched"] = settle(comm)
    cuda.cudaStreamSynchronize(stream)
    seen["received"] = host_floats(recv, 2)
    nccl.all_reduce(send, send, 2, _FLOAT, _SUM, comm, at)
    seen["launched again"] = settle(comm)
    cuda.cudaStreamSynchronize(stream)
    seen["reduced"] = host_floats(send, 2)
    child = nccl.comm_split(comm, 0, -rank, config)
    seen["split"] = [settle(child), nccl.comm_user_rank(child)]
    nccl.comm_abort(child)
    if int(nccl.get_version()) >= 22800:
        revoked = nccl.comm_split(comm, 0, 0, config)
        settle(revoked)
        nccl.comm_revoke(revoked, 0)
        seen["revoked"] = [settle(revoked), refused(nccl.all_reduce, send, send, 2, _FLOAT, _SUM, revoked, at)]
        nccl.comm_destroy(revoked)
    else:
        seen["revoke"] = refused(nccl.comm_revoke, comm, 0)
    nccl.comm_finalize(comm)
    seen["finalized"] = settle(comm)
    nccl.comm_destroy(comm)
    seen["after the end"] = refused(nccl.comm_count, comm)
    return seen


sys.stdout.write(json.dumps(main(int(sys.argv[1]), Path(sys.argv[2]))))
