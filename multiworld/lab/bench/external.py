"""The optional comparison with pymultiworld: one program, run in turns by its interpreter and by ours."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from multiworld.errors import InvalidArgument
from multiworld.lab.bench.report import Figure, Verdict, judged
from multiworld.lab.bench.setup import Progress
from multiworld.lab.bench.stats import Spread, paired_ratio

_SIZES = {4: 200, 400_000: 60}
_ROUNDS = 3
_SECONDS = 120


def check(python: Path | None) -> None:
    """Before anything is measured, raise ``InvalidArgument`` if the interpreter is missing or has no pymultiworld."""
    if python is None:
        return
    command = [str(python), "-c", "from multiworld.manager import WorldManager"]
    remedy = "name the python of an environment with `pip install multiworld==0.2.3` and its own set-up done"
    try:
        done = subprocess.run(command, cwd=tempfile.gettempdir(), capture_output=True, text=True, timeout=_SECONDS)
    except OSError as error:
        raise InvalidArgument(what=f"{python} cannot be run: {error.strerror}", remedy=remedy) from None
    if done.returncode:
        raise InvalidArgument(what=f"{python} has no pymultiworld", cause=done.stderr[-300:], remedy=remedy)


def compare(python: Path | None, progress: Progress) -> list[Figure]:
    """Round trips of the same program under both packages.

    Args:
        python: interpreter that has pymultiworld installed and set up; None leaves the comparison out.

    Raises:
        InvalidArgument: the interpreter is not there, or the program fails with it.
    """
    if python is None:
        wanted, why = "faster", "no interpreter with pymultiworld was named (--pymultiworld)"
        return [Figure("against pymultiworld 0.2.3", wanted, why, Verdict.NOT_MEASURED)]
    found = []
    for nbytes, turns in _SIZES.items():
        progress(f"pymultiworld's program, {nbytes:,} bytes")
        theirs, ours = [], []
        for _ in range(_ROUNDS):
            theirs.append(Spread.of(_run(python, nbytes, turns)).p50)
            ours.append(Spread.of(_run(Path(sys.executable), nbytes, turns)).p50)
        ratio = paired_ratio(ours, theirs)
        text = f"{ratio.text} x its time; p50 {min(ours) * 1e6:,.0f} us, pymultiworld {min(theirs) * 1e6:,.0f} us"
        name = f"pymultiworld's program, round trip, {nbytes:,} bytes"
        found.append(judged(name, "faster", text, ratio.value < 1, ours=ours, theirs=theirs))
    return found


def _run(python: Path, nbytes: int, turns: int) -> list[float]:
    """Both ranks of the program; the seconds of each turn but the first few."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = Path(sys.executable) == python
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": root if own else ""}
    program = Path(__file__).with_name("foreign.py").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:  # not ours: its modules would be found before theirs
        started = [
            subprocess.Popen(
                [str(python), "-c", program, str(rank), str(port), str(nbytes), str(turns)],
                cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        return _seconds(python, started)[3:]


def _seconds(python: Path, processes: list[subprocess.Popen[str]]) -> list[float]:
    try:
        said, complaint = processes[0].communicate(timeout=_SECONDS)
        lines = [line for line in said.splitlines() if line.startswith("SECONDS ")]
        if not lines:
            raise InvalidArgument(what=f"{python} could not run the program", cause=complaint[-500:], remedy="check it")
        return [float(value) for value in json.loads(lines[0].removeprefix("SECONDS "))]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
