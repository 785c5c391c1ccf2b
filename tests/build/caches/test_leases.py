"""A lease protects an entry of the cache for as long as its process lives, whatever happens at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from build import clearing, leases, seals
from build.paths import REPO, cache

#: Takes a lease, then becomes another program, as the noxfile does when it starts itself again in an environment.
_SUCCESSOR = """
import os, sys
from pathlib import Path
from build import leases
entry = Path(sys.argv[1])
leases.inherit(leases.take(entry))
os.execv(sys.executable, [sys.executable, "-c", "print('held', flush=True); input()"])
"""


@pytest.fixture
def entry(own_cache: Path) -> Path:
    assert own_cache
    path = cache("headers") / "entry"
    path.mkdir()
    seals.seal(path)
    return path


def test_a_use_counts_although_the_entry_is_old(entry: Path) -> None:
    leases.place(entry).touch()
    os.utime(leases.place(entry), (0, 0))
    assert clearing.entries()[0].used == 0
    leases.take(entry)
    assert clearing.entries()[0].used > time.time() - 3600


def test_a_lease_on_a_file_that_is_removed_meanwhile_is_taken_again(entry: Path) -> None:
    """The cleaner removes the lease file that this run has opened and waits for: its lock would protect nothing."""
    with leases.unused(entry) as free:
        assert free
        opened = leases.place(entry).stat().st_ino
        taker = threading.Thread(target=leases.take, args=[entry])
        taker.start()
        _wait_until_locked_for(opened)
        assert taker.is_alive()
    taker.join(60)
    assert not taker.is_alive()
    assert leases.place(entry).is_file()
    with leases.unused(entry) as free:
        assert not free, "the lease is on the file that others see"


def _wait_until_locked_for(inode: int) -> None:
    """Wait until a lock request on a file waits for another: the lines of `/proc/locks` with an arrow."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        if any("-> FLOCK" in line and line.split()[-3].endswith(f":{inode}") for line in lines):
            return
        time.sleep(0.01)
    pytest.fail("nothing waits for the lease")


def test_a_lease_outlives_a_change_of_program(entry: Path) -> None:
    command = [sys.executable, "-c", _SUCCESSOR, str(entry)]
    with subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "held\n"
        assert not any(map(clearing.free, clearing.entries()))
        run.communicate("\n", timeout=60)
    assert [item.path for item in clearing.entries() if clearing.free(item)] == [entry]
