"""The flight recorder's record of the operations that ran."""

from __future__ import annotations

import http.client
import os
import pickle
import socket

import torch
from world import World

_RUN = ("all_reduce", "all_gather", "broadcast")


def run(door: str) -> tuple[str, dict[str, object]]:
    """Run three operations and dump the recorder.

    Args:
        door: "function" for `_dump_nccl_trace`, "handler" for the control plane's HTTP handler.
    """
    world = World()
    for operation in _RUN:
        world.run(operation)
    trace = pickle.loads(_DOORS[door]())  # noqa: S301 - its own process wrote it
    entries = trace["entries"] if isinstance(trace, dict) else trace  # a bare list up to 2.2
    recorded = [entry.get("profiling_name", "") for entry in entries]
    shown = [name for name in recorded if any(op in name for op in _RUN)]
    wanted = [f"nccl:{operation}" for operation in _RUN]
    return ("OK" if shown == wanted else "WRONG_RECORD"), {"recorded": recorded}


def _by_handler() -> bytes:
    """Ask the worker server over its socket, as an operator's tool does."""
    path = os.path.join(os.environ["TMPDIR"], "control-plane")  # noqa: PTH118
    server = torch._C._distributed_c10d._WorkerServer(path)
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(20)
    connection.sock.connect(path)
    connection.request("POST", "/handler/dump_nccl_trace_pickle")
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != http.client.OK:
        raise RuntimeError(f"handler answered {answer.status}: {body[:300]!r}")
    server.shutdown()
    return body


_DOORS = {"function": lambda: torch._C._distributed_c10d._dump_nccl_trace(), "handler": _by_handler}
