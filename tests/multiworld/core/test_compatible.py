"""Programs for pymultiworld 0.2.3, written as its examples are."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch
from free_port import free_port
from procs import cluster

from multiworld.lab.context import Context


def _leader(context: Context, ports: dict[str, int]) -> Any:
    from multiworld.manager import WorldManager

    async def main() -> Any:
        manager = WorldManager()
        for name, port in ports.items():
            await manager.initialize_world(
                name, 0, 2, backend="gloo", addr="127.0.0.1", port=port, device=torch.device("cpu")
            )
        received: dict[str, int] = dict.fromkeys(ports, 0)
        errors: dict[str, str] = {}
        worlds = dict.fromkeys(ports, 1)
        while len(worlds):
            for world, peer in list(worlds.items()):
                tensor = torch.ones(1)
                try:
                    await manager.communicator.recv(tensor, peer, world)
                    received[world] += 1
                    if received == dict.fromkeys(ports, 3):
                        context.send("three of each")
                except Exception as e:  # noqa: BLE001 - as the examples do
                    errors[world] = type(e).__name__ + ": " + str(e)
                    del worlds[world]
        broken = {name: manager.communicator.is_broken(name) for name in (*ports, "unknown")}
        with pytest.raises(ValueError, match="does not exist"):
            manager.remove_world("unknown")
        manager.cleanup()
        return received, errors, broken

    return asyncio.run(asyncio.wait_for(main(), 25))


def _worker(context: Context, world: str, port: int, count: int) -> None:
    from multiworld.world_manager import WorldManager

    async def main() -> None:
        manager = WorldManager()
        await manager.initialize_world(world, 1, 2, port=port)
        for _ in range(count):
            await manager.communicator.send(torch.ones(1), 0, world)
            await asyncio.sleep(0.02)
        manager.cleanup()

    asyncio.run(main())


def test_leader_goes_on_with_the_other_world_when_a_worker_is_killed() -> None:
    ports = {"world1": free_port(), "world2": free_port()}
    with cluster() as c:
        leader = c.start(_leader, ports)
        c.start(_worker, "world1", ports["world1"], 40)
        victim = c.start(_worker, "world2", ports["world2"], 1000)
        assert leader.recv() == "three of each"
        os.kill(victim.pid, signal.SIGKILL)
        received, errors, broken = leader.result()
    assert received["world1"] == 40
    assert 3 <= received["world2"] < 1000
    assert errors["world2"].startswith("PeerLost: world 'world2'")
    assert broken == {"world1": True, "world2": True, "unknown": True}


def _all_coroutines(context: Context, port: int, rank: int) -> Any:
    from multiworld.communicator import BrokenWorldException
    from multiworld.manager import WorldManager

    async def main() -> Any:
        manager = WorldManager(enable_monitor=False)
        await manager.initialize_world("w", rank, 2, "gloo", "127.0.0.1", port, 30, torch.device("cpu"))
        com, out = manager.communicator, {}
        t = torch.full((2,), float(rank + 1))
        await com.broadcast(t, 1, "w")
        out["broadcast"] = t.tolist()
        await com.all_reduce(t, torch.distributed.ReduceOp.SUM, "w")
        out["all_reduce"] = t.tolist()
        await com.reduce(t, 0, torch.distributed.ReduceOp.MAX, "w")
        gathered = [torch.zeros(2), torch.zeros(2)]
        await com.all_gather(gathered, torch.full((2,), float(rank)), "w")
        out["all_gather"] = torch.stack(gathered).tolist()
        await com.gather(t, gathered if rank == 0 else None, 0, "w")
        await com.scatter(t, [torch.zeros(2), torch.ones(2)] if rank == 0 else None, 0, "w")
        out["scatter"] = t.tolist()
        with pytest.raises(ValueError, match="already exists"):
            manager.add_world("w", "gloo")
        manager.remove_world("w")
        out["broken"] = com.is_broken("w")
        with pytest.raises(BrokenWorldException):
            await com.send(t, 1 - rank, "w")
        manager.cleanup()
        return out

    return asyncio.run(asyncio.wait_for(main(), 25))


def test_the_eight_coroutines() -> None:
    port = free_port()
    with cluster() as c:
        c.start(_all_coroutines, port, 0), c.start(_all_coroutines, port, 1)
        for rank, out in enumerate(c.results()):
            assert out == {
                "broadcast": [2.0, 2.0],
                "all_reduce": [4.0, 4.0],
                "all_gather": [[0.0, 0.0], [1.0, 1.0]],
                "scatter": [float(rank)] * 2,
                "broken": True,
            }


def test_a_communicator_may_be_made_of_a_manager() -> None:
    from multiworld.communicator import WorldCommunicator
    from multiworld.manager import WorldManager

    async def main() -> bool:
        manager = WorldManager()
        try:
            return WorldCommunicator(manager).is_broken("w")
        finally:
            manager.cleanup()

    assert asyncio.run(main())


def test_old_names_and_the_post_setup_command() -> None:
    from multiworld.communicator import BrokenWorldException
    from multiworld.watchdog import WatchDog
    from multiworld.world_communicator import WorldCommunicator

    assert str(BrokenWorldException("world1", "gone")).startswith("world 'world1': gone")
    assert WatchDog.__init__.__code__.co_varnames[1:3] == ("event_q", "action_q")
    assert WorldCommunicator.recv.__code__.co_varnames[1:4] == ("tensor", "src", "world_name")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-m", "multiworld.compat.post_setup"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=True,
    )
    assert "nothing to patch" in done.stdout
