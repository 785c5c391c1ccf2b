"""The plan of a full build: its steps, its costs, and the problems: printed before anything is fetched or compiled."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import partial

from rich.markup import escape
from rich.table import Table

from build.console import console, counted, note, step, table
from build.errors import EnvironmentUnfitError, UsageError
from build.full import toolchains
from build.full.caching import CompilerCache
from build.full.project import Project, UnitKind
from build.full.toolchains import Kind
from build.overlay.toolchain import free_memory
from build.paths import cache
from build.preflight import interpreter, lacking, other_platform

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Row:
    """Units of one kind: how many, and the seconds of one core for all of them."""

    kind: UnitKind
    units: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Facts known before a full build; `jobs` is 0 if the memory is too small, `missing` empty if it can start."""

    project: Project
    kind: Kind
    caching: CompilerCache
    rows: tuple[Row, ...]
    jobs: int
    counted: bool
    free: int
    missing: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows) / max(self.jobs, 1)


def _rows(project: Project) -> tuple[Row, ...]:
    made = []
    for kind in project.units:
        units = kind.count(project.tree)
        times = max(1, len(project.targets)) if kind.device else 1
        made.append(Row(kind, units, units * kind.seconds * times))
    return tuple(made)


def make(project: Project, kind: Kind, caching: CompilerCache, asked: int | None) -> Plan:
    """Look at this machine and return the plan; it fetches and writes nothing.

    Args:
        asked: the value of `--jobs`.

    Raises:
        UsageError: MAX_JOBS is not a number.
    """
    missing, at_once = list(other_platform()), 0
    try:
        at_once = jobs(project.memory_per_job, len(os.sched_getaffinity(0)), free_memory(), asked)
    except EnvironmentUnfitError as error:
        missing.append(f"{error.what}: {error.cause}; {error.remedy}")
    missing += lacking(partial(toolchains.check, kind, project.cuda, project.min_gcc))
    missing += filter(None, [caching.problem()])
    missing += lacking(partial(interpreter, project.python))
    if shutil.which("git") is None:
        missing.append("git is not on PATH: install it")
    free = shutil.disk_usage(cache()).free
    if free < project.disk:
        remedy = "free disk space, or set MULTIWORLD_CACHE to a folder on another disk"
        missing.append(f"{cache()} has {free / _GIB:.0f} GiB free, {project.disk / _GIB:.0f} GiB are needed: {remedy}")
    return Plan(project, kind, caching, _rows(project), at_once, project.tree is not None, free, tuple(missing))


def jobs(per_job: int, cores: int, memory: int, asked: int | None = None) -> int:
    """Return how many compilers run at once: as many as were asked for, else as cores and memory allow.

    Args:
        per_job: bytes that one compiler takes at its peak.
        memory: bytes that are free.
        asked: the value of `--jobs`; default MAX_JOBS, if it is set.

    Raises:
        EnvironmentUnfitError: the memory is not enough, for what was asked or for one job.
        UsageError: MAX_JOBS is not a number.
    """
    named, fit = os.environ.get("MAX_JOBS", ""), memory // per_job
    if not asked and named and (not named.isdecimal() or int(named) < 1):
        raise UsageError(f"MAX_JOBS={named} is not a number of jobs", remedy="set it to e.g. 8, or unset it")
    wanted = asked or int(named or 0)
    if max(wanted, 1) > fit:
        what = f"the memory is too small for {counted(wanted or 1, 'job')}"
        all_, each = max(wanted, 1) * per_job / _GIB, per_job / _GIB
        cause = f"{memory / _GIB:.1f} GiB are available, {all_:.1f} GiB are needed: {each:.1f} GiB for each compiler"
        remedy = f"--jobs {fit} fits" if fit else "end other programs, or build on a machine with more memory"
        raise EnvironmentUnfitError(what, cause=cause, remedy=remedy)
    return wanted or min(cores, fit)


def hours(seconds: float) -> str:
    """Return a duration as a person says it: `40 s`, `12 min`, `7.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def show(plan: Plan) -> None:
    project = plan.project
    step(f"full build of {project.name} {project.version} for Python {project.python}")
    if plan.rows:
        console.print(_table(plan))
    cuda = f", CUDA {project.cuda}" if project.cuda else ""
    note(f"{len(project.patches)} patches; toolchain: {plan.kind.value}{cuda}")
    if project.targets:
        note(f"architectures: {', '.join(f'{target} ({target.architecture.gpus})' for target in project.targets)}")
    note(f"compiler cache: {plan.caching.value}")
    each = f"{project.memory_per_job / _GIB:.1f} GiB"
    note(f"{counted(plan.jobs, 'compiler')} at once, {each} of memory for each")
    note(f"disk: {project.disk / _GIB:.1f} GiB in {cache()}, {plan.free / _GIB:.1f} GiB are free")
    for problem in plan.missing:
        note(f"missing: {problem}")


def _table(plan: Plan) -> Table:
    how = "counted in the tree" if plan.counted else "estimated: the tree is not here yet"
    shown = table(f"to compile, {how}", "units", "how many", "each", "on one core")
    for row in plan.rows:
        each = f"{row.kind.seconds:.1f} s" + (" per architecture" if row.kind.device and plan.project.targets else "")
        shown.add_row(escape(row.kind.name), str(row.units), each, hours(row.seconds))
    whole = f"about {hours(plan.seconds)} with {plan.jobs} at once" if plan.jobs else "-"
    shown.add_row("all", str(sum(row.units for row in plan.rows)), "", whole)
    return shown


def require(plan: Plan) -> None:
    """Raise EnvironmentUnfitError, which lists what is missing, unless the build can start."""
    if plan.missing:
        problems = counted(len(plan.missing), "problem")
        what = f"this machine cannot make a full build of {plan.project.name} {plan.project.version}: {problems}"
        raise EnvironmentUnfitError(what, cause="\n".join(plan.missing), remedy="fix these and run again")
