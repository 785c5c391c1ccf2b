"""The debug mode that checks that borrowed memory is given back: it changes no result, and it finds what it is for."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

import pytest

from multiworld.tensors import memory_check

PROGRAM = """
import sys
import torch
from concurrent.futures import ThreadPoolExecutor
from multiworld import MultiWorld
from multiworld.tensors import memory_check

def works(world):
    big = torch.full((300_000,), 1.0 + world.rank)
    world.sync.all_reduce(big)
    small = torch.full((3,), 1.0 + world.rank)
    world.sync.all_reduce(small)
    parts = [torch.zeros(2), torch.zeros(2)]
    world.sync.all_gather(parts, torch.full((2,), float(world.rank)))
    got = torch.zeros(5)
    if world.rank:
        world.sync.send(torch.ones(5), 0)
        world.sync.recv(got, 0)
    else:
        world.sync.recv(got, 1)
        world.sync.send(torch.ones(5), 1)
    shaped = world.sync.recv_tensor(0) if world.rank else world.sync.send_tensor(torch.eye(2), 1)
    assert shaped is None or torch.equal(shaped, torch.eye(2))
    return [big[0].item(), small[0].item(), [part[0].item() for part in parts], got.sum().item()]

def work():
    for result in pool.map(works, worlds):
        assert result == [3.0, 3.0, [0.0, 1.0], 5.0], result
    return list(memory_check._aside)

with ThreadPoolExecutor(2) as pool, MultiWorld() as one, MultiWorld() as other:
    join = lambda mw, rank: mw.sync.join("w", rank, 2, store=sys.argv[1])
    worlds = list(pool.map(join, (one, other), (0, 1)))
    print(sorted({operation for operation, _ in work()}))
    memory_check.verify()
    aside = work()
    aside[len(aside) // 2][1][3] = 0
memory_check.verify()
"""


def test_results_are_the_same_and_a_late_write_is_found(store: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, store],
        env={**os.environ, "MULTIWORLD_DEBUG_MEMORY": "1"},
        timeout=240,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "['all_gather', 'all_reduce', 'recv', 'send', 'send_tensor']", done.stderr
    assert done.returncode != 0
    assert "MemoryTouched" in done.stderr
    assert "1 of" in done.stderr


@pytest.mark.parametrize(("value", "active"), [("1", True), ("", False), ("0", False)])
def test_it_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch, value: str, active: bool) -> None:
    """The other tests show results and memory without it."""
    monkeypatch.setenv("MULTIWORLD_DEBUG_MEMORY", value)
    assert runpy.run_path(str(memory_check.__file__))["ACTIVE"] is active
