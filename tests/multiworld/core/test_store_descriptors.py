"""A process without free file descriptors: said as what it is, and a hosted store goes on when there are some again."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from pathlib import Path
from typing import TextIO

import procs
import pytest

from multiworld import MultiWorld, RendezvousError
from multiworld.config import TcpStoreAddress
from multiworld.lab.context import Context
from multiworld.store.client import Deadline
from tests.multiworld.core.stores import MoreOfAClient

LIMIT = 64


def _take_all(keep: int = 0) -> list[int]:
    """Open descriptors until there are none, but for ``keep``."""
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    for _ in range(keep):
        os.close(taken.pop())
    return taken


def join_without_descriptors(context: Context, store: str, keep: int) -> str:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with MultiWorld() as mw:
        taken = _take_all(keep)
        try:
            mw.sync.join("w", 0, 1, store=store, join_timeout=2.0)
        except RendezvousError as error:
            return str(error)
        finally:
            for number in taken:
                os.close(number)
    return "joined"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("keep", [0, 1])
def test_a_join_says_that_no_descriptor_is_free(host: str, keep: int) -> None:
    with procs.cluster() as c, MultiWorld() as mw:
        port = mw.serve_store().port
        said = c.start(join_without_descriptors, f"tcp://{host}:{port}", keep).result()
        assert f"no free file descriptors (limit {LIMIT})" in said
        assert "ulimit -n" in said
        assert "name is not known" not in said


def serve_without_descriptors(context: Context) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with MultiWorld() as mw:
        context.send(mw.serve_store())
        hub = next(thread for thread in threading.enumerate() if thread.name == "mw-hub")
        with Path(f"/proc/self/task/{hub.native_id}/stat").open() as stat:
            taken = _take_all()
            context.send("none left")
            assert context.recv() == "connecting"
            before = _cpu_ticks(stat)
            time.sleep(1.0)  # the time over which the use of CPU is measured
            for number in taken:
                os.close(number)
            context.send(_cpu_ticks(stat) - before)
        context.recv()


def _cpu_ticks(stat: TextIO) -> int:
    stat.seek(0)
    fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_hosted_store_backs_off_and_goes_on() -> None:
    with procs.cluster() as c:
        host = c.start(serve_without_descriptors)
        where: TcpStoreAddress = host.recv()
        assert host.recv() == "none left"
        with socket.create_connection((where.host, where.port)):  # waits for being accepted, and keeps the socket ready
            host.send("connecting")
            assert host.recv() < os.sysconf("SC_CLK_TCK") // 2, "the hub spins"
            client = MoreOfAClient.connect(where, Deadline(time.monotonic() + 10))
            assert client.add("n", 1) == 1
            client.close()
        host.send("end")
        host.result()
