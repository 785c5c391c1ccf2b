"""The interpreter ends in the middle of a join: with the program's own exit status, and without a word of C++."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import procs
import pytest

from multiworld import MultiWorld

ROOT = Path(__file__).resolve().parents[3]
MOMENTS = ("0", "0.005", "0.03", "0.15", "0.5")
WORDS = ("terminate called", "Fatal Python error", "Aborted", "Traceback")


def host(link: procs.Link) -> None:
    """Host a store until the test ends."""
    with MultiWorld() as mw:
        link.send(str(mw.serve_store()))
        link.recv(120)


@pytest.mark.timeout(240)  # five interpreters come up and end, one after the other
@pytest.mark.parametrize("kind", ["tcp", "file"])
@pytest.mark.parametrize("scenario", ["frozen", "timed_out", "cancelled", "own"])
def test_the_exit_status_is_the_programs(scenario: str, kind: str, tmp_path: Path) -> None:
    if kind == "file" and scenario != "cancelled":
        pytest.skip("a file has no host that could freeze")
    with procs.cluster() as c:
        hosting = c.start(host)
        store = hosting.recv()
        given = store if kind == "tcp" else f"file://{tmp_path}/store"
        command = [sys.executable, str(Path(__file__).with_name("exits.py")), scenario, given, str(hosting.pid)]
        said = subprocess.run(
            [*command, str(tmp_path), *MOMENTS], capture_output=True, text=True, timeout=180, check=False, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        hosting.send("end")
    logs = "".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert said.stdout.splitlines() == [f"{float(moment)} 7" for moment in MOMENTS], said.stdout + said.stderr + logs
    assert not [word for word in WORDS if word in logs], logs
