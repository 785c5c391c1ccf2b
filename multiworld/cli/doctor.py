"""``multiworld doctor``: is everything there that worlds need, and does a world really work here?"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from multiworld.cli.nccl_checks import Check, Verdict, judged, nccl_checks
from multiworld.engine import library
from multiworld.errors import BackendUnavailable, BrokenWorldException
from multiworld.transport.network_settings import SAME_HOST, network_settings
from multiworld.version import VERSION
from multiworld.worlds.multi_world import MultiWorld

_FEW_DESCRIPTORS = 4096
_TRIAL_SECONDS = 20.0


def examine() -> list[Check]:
    """Look at everything; a check that fails in an unexpected way is a failed check, not a traceback."""
    installation = _versions, _torch, _loopback, _own_name, _descriptors, _own_sockets
    looks = (*installation, _engine, _trial, _same_host, nccl_checks)
    return [check for look in looks for check in _looked(look)]


def _looked(look: Callable[[], Check | list[Check]]) -> list[Check]:
    try:
        found = look()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was found
        name = look.__name__.strip("_").removesuffix("_checks")
        return [Check(name, Verdict.FAIL, f"{type(error).__name__}: {error}", "see the message")]
    return found if isinstance(found, list) else [found]


def _versions() -> Check:
    found = f"multiworld {VERSION}, Python {platform.python_version()}, {platform.platform()}"
    return judged("versions", sys.version_info >= (3, 10), found, "Python 3.10 or newer is needed")


def _torch() -> Check:
    found = f"{torch.__version__}, commit {torch.version.git_version[:12]}, CUDA {torch.version.cuda or 'none'}"
    there = dist.is_available()
    found += "" if there else ", without torch.distributed"
    return judged("torch", there, found, "install a torch with distributed support")


def _loopback() -> Check:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=2):
        return Check("loopback", Verdict.OK, "TCP on 127.0.0.1 works")


def _own_name() -> Check:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        remedy = "name addresses, not hosts, in store= and address="
        return Check("host name", Verdict.NOTE, f"{name} has no address", remedy)
    remedy = "between hosts, give address= : peers elsewhere cannot reach a loopback address"
    return judged("host name", not address.startswith("127."), f"{name} is {address}", remedy, Verdict.NOTE)


def _descriptors() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard > 0 else 65536
    remedy = f"ulimit -n {most}: a world takes two descriptors and two for each member"
    found = f"limit {soft}, {len(list(Path('/proc/self/fd').iterdir()))} in use"
    return judged("descriptors", soft >= _FEW_DESCRIPTORS, found, remedy, Verdict.NOTE)


def _own_sockets() -> Check:
    with socket.socket() as probe:
        target = str(Path(f"/proc/self/fd/{probe.fileno()}").readlink())
    seen = target.startswith("socket:")
    return judged("/proc", seen, "our sockets can be seen" if seen else target, "mount /proc")


def _engine() -> Check:
    try:
        library.module()
    except BackendUnavailable as missing:
        return Check("engine", Verdict.FAIL, missing.what, missing.remedy)
    found = "compiled code moves the data, and answers heartbeats even while a thread holds the GIL"
    return Check("engine", Verdict.OK, found)


def _same_host() -> Check:
    """How data goes to a member on this host."""
    if not network_settings().same_host:
        return Check("same host", Verdict.OK, f"TCP between members on one host: {SAME_HOST} says so")
    way = asyncio.run(asyncio.wait_for(_way(), _TRIAL_SECONDS))
    if way == "ring":
        return Check("same host", Verdict.OK, "sockets without TCP, and shared memory for what is large")
    refused = library.module().shared_memory_error()
    why = f": {os.strerror(refused)}" if refused else ""
    if way == "unix":
        found, remedy = f"sockets without TCP, and no shared memory{why}", "allow memfd_create(2), or raise the limits"
    else:
        found, remedy = "TCP between members on one host: other sockets are refused", "allow abstract AF_UNIX sockets"
    return Check("same host", Verdict.NOTE, found, f"{remedy}: large messages take about twice as long without")


@contextlib.asynccontextmanager
async def _pair() -> AsyncIterator[list[Any]]:
    """A world of two in this process, in which something was exchanged."""
    async with MultiWorld() as left, MultiWorld() as right:
        store = left.serve_store()
        pair = await asyncio.gather(*(mw.join("doctor", rank, 2, store=store) for rank, mw in enumerate((left, right))))
        await _exchange(*pair)
        yield pair


async def _way() -> str:
    """The way of large payloads between two members in this process."""
    async with _pair() as pair:
        return str(pair[0].member.session.bridge.ways()[1])


def _trial() -> Check:
    started = time.monotonic()
    found = asyncio.run(asyncio.wait_for(_two_in_one(), _TRIAL_SECONDS))
    return Check("a world of two", Verdict.OK, f"{found}; {time.monotonic() - started:.2f} s in all")


async def _two_in_one() -> str:
    """Join, send, break, rejoin and send again, with both members in this process."""
    async with _pair() as pair:
        pair[0].abort("doctor breaks it on purpose")
        noticed = await _break_seconds(pair[1])
        await asyncio.gather(*(world.rejoin() for world in pair))
        await _exchange(*pair)
        again = f"rejoined as generation {pair[0].generation}"
        return f"joined, exchanged, broken (noticed in {noticed * 1e3:.1f} ms), {again}"


async def _exchange(a: Any, b: Any) -> None:
    got = torch.zeros(4)
    await asyncio.gather(a.send(torch.arange(4.0), 1), b.recv(got, 0))
    sums = [torch.ones(100_000), torch.ones(100_000)]
    await asyncio.gather(a.all_reduce(sums[0]), b.all_reduce(sums[1]))
    if got.tolist() != [0.0, 1.0, 2.0, 3.0] or not all(bool((s == 2).all()) for s in sums):
        raise RuntimeError("a world of two delivered wrong data")


async def _break_seconds(world: Any) -> float:
    started = time.monotonic()
    try:
        await world.recv(torch.zeros(1), 0, timeout=5.0)
    except BrokenWorldException:
        return time.monotonic() - started
    raise RuntimeError("a broken world went on")
