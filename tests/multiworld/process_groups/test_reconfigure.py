"""The demands that torch makes on ``reconfigure``, of 2.14 and newer; on older releases the same group by itself."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from procs import cluster

from multiworld import InvalidArgument, MultiWorldError, PeerLost, RendezvousError, WorldClosed
from multiworld.lab.workers import Worker
from multiworld.torch.quorum import ReconfigurableProcessGroup

HAS_NAMES = hasattr(dist, "_reconfigure")
LIMIT = timedelta(seconds=60)


def made(address: str, rank: int, size: int) -> Any:
    """Make a group without members, by torch where it can."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=False)
    if not HAS_NAMES:
        return ReconfigurableProcessGroup(store, "0", rank, size, LIMIT, "gloo", None)
    dist.init_process_group(
        "multiworld", store=store, rank=rank, world_size=size, timeout=LIMIT, enable_reconfigure=True
    )
    return dist.group.WORLD


def reconfigure(pg: Any, uuid: int, handles: Collection[str], timeout: timedelta | None) -> bool:
    """Call it by torch's name where there is one; whether it is done."""
    if HAS_NAMES:
        return bool(dist._reconfigure(uuid=uuid, handles=handles, group=pg, timeout=timeout).wait())
    opts = SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout, hints={})
    return bool(pg.reconfigure(opts).wait())


def member(context: Any, address: str, rank: int, size: int) -> None:
    """Say our handle; then answer each order until there is none."""
    import multiworld.torch  # noqa: F401 - torch before 2.14 finds the backend by it

    pg = made(address, rank, size)
    context.send((pg.get_reconfigure_handle(), pg.supports_reconfigure, pg.rank(), pg.size()))
    while order := context.recv(600.0):
        try:
            context.send(_did(pg, *order))
        except MultiWorldError as error:  # noqa: PERF203 - each order is answered
            context.send(error)
    pg.shutdown()


def _did(pg: Any, uuid: int, handles: Collection[str] = (), timeout: timedelta | None = None) -> Any:
    """Go on with these, unless ``uuid`` is 0; our rank, the size, and the sum over all ranks."""
    if uuid:
        assert reconfigure(pg, uuid, handles, timeout)
    total = torch.tensor([pg.rank() + 1.0])
    pg.allreduce([total]).wait()
    return pg.rank(), pg.size(), float(total)


def started(c: Any, store: str, rank: int, size: int) -> tuple[Worker, str]:
    worker = c.start(member, store, rank, size)
    handle, supported, *place = worker.recv()
    assert (supported, place) == (True, [rank, size])
    return worker, handle


def answers(members: list[tuple[Worker, str]], *order: Any) -> list[Any]:
    for worker, _ in members:
        worker.send(order)
    return [worker.recv() for worker, _ in members]


def test_members_come_and_go(tcp_store: str) -> None:
    """Nothing before the first; then three, another order, two after a death, and three with a newcomer."""
    with cluster() as c:
        members = [started(c, tcp_store, rank, 3) for rank in range(3)]
        handles = [handle for _, handle in members]
        assert len(set(handles)) == 3
        assert [type(error) for error in answers(members, 0)] == [WorldClosed] * 3
        assert answers(members, 1, handles) == [(0, 3, 6.0), (1, 3, 6.0), (2, 3, 6.0)]
        assert answers(members, 2, handles[::-1]) == [(2, 3, 6.0), (1, 3, 6.0), (0, 3, 6.0)]
        members.pop(1)[0].kill()
        assert [type(error) for error in answers(members, 0)] == [PeerLost] * 2
        assert answers(members, 3, [handles[0], handles[2]]) == [(0, 2, 3.0), (1, 2, 3.0)]
        members.append(started(c, tcp_store, 1, 3))
        found = answers(members, 4, {handle for _, handle in members})
        assert sorted(found) == [(0, 3, 6.0), (1, 3, 6.0), (2, 3, 6.0)]
        for worker, _ in members:
            worker.send(None)


def test_bad_orders(tcp_store: str) -> None:
    """Handles without ours, one twice, and a member that does not come: typed errors, and the next order goes well."""
    with cluster() as c:
        members = [started(c, tcp_store, rank, 2) for rank in range(2)]
        ours, theirs = (handle for _, handle in members)
        for handles in ([theirs], [ours, ours]):
            (error,) = answers(members[:1], 1, handles)
            assert isinstance(error, InvalidArgument), error
        (error,) = answers(members[:1], 2, [ours, theirs], timedelta(seconds=0.5))
        assert isinstance(error, RendezvousError), error
        assert answers(members, 3, [ours, theirs]) == [(0, 2, 3.0), (1, 2, 3.0)]
        for worker, _ in members:
            worker.send(None)


@pytest.mark.skipif(not HAS_NAMES, reason="this torch has no reconfigure of its own; it has from 2.14 on")
def test_torch_knows_that_it_can(tcp_store: str) -> None:
    with cluster() as c:
        assert c.start(_supports, tcp_store).result() == (True, True)


def _supports(context: Any, address: str) -> tuple[bool, bool]:
    pg = made(address, 0, 1)
    return dist._supports_reconfigure(), dist._get_reconfigure_handle() == pg.get_reconfigure_handle()
