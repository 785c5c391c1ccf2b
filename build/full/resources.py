"""Cores and memory of this machine, and the number of compilers that may run at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from build.console import counted
from build.errors import EnvironmentUnfitError, UsageError

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores that this process may use, and bytes of memory that are available to it."""

    cores: int
    memory: int


def machine() -> Machine:
    """Return what this process may use: a container's limit counts where it is below the machine's memory."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    return Machine(len(os.sched_getaffinity(0)), min(free, _of_container() or free))


def _of_container() -> int | None:
    """Return what the control group has left (version 2, as containers and Slurm set it), None without a limit."""
    try:
        group = Path("/proc/self/cgroup").read_text(encoding="ascii").partition("0::")[2].splitlines()[0]
        folder = Path("/sys/fs/cgroup") / group.lstrip("/")
        limit, used = ((folder / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        return max(0, int(limit) - int(used))
    except (OSError, ValueError, IndexError):
        return None


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"MAX_JOBS={text} is not a number of jobs", remedy="set it to e.g. 8, or unset it")
    return int(text)


def jobs(per_job: int, have: Machine, asked: int | None = None) -> int:
    """Return how many compilers run at once: as many as were asked for, else as cores and memory allow.

    Args:
        per_job: bytes that one compiler takes at its peak.
        asked: the value of `--jobs`; default MAX_JOBS, if it is set.

    Raises:
        EnvironmentUnfitError: the memory is not enough, for what was asked or for one job.
        UsageError: MAX_JOBS is not a number.
    """
    named = os.environ.get("MAX_JOBS", "")
    wanted = asked or (_number(named) if named else None)
    fit = have.memory // per_job
    if max(wanted or 1, 1) > fit:
        raise EnvironmentUnfitError(
            f"the memory is too small for {counted(wanted or 1, 'job')}",
            cause=f"{have.memory / _GIB:.1f} GiB are available, {(wanted or 1) * per_job / _GIB:.1f} GiB are needed: "
            f"{per_job / _GIB:.1f} GiB for each compiler at its peak",
            remedy=f"--jobs {fit} fits" if fit else "end other programs, or build on a machine with more memory",
        )
    return wanted or max(1, min(have.cores, fit))
