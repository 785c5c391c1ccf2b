"""Configure and compile: the project's own `setup.py`, through its PEP 517 backend, with ninja's progress and a log."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.progress import Progress, TaskID

from build import paths, seals
from build.console import log, note, progress, step
from build.errors import CompileError
from build.full import workspace
from build.full.plan import Plan, hours
from build.full.project import External, Project
from build.full.toolchains import Toolchain
from build.full.workspace import Workspace
from build.overlay.toolchain import STEERING
from build.preflight import interpreter
from build.process import run_shown
from build.wheeltest import environments

#: Seconds; nobody waits longer for a build that makes no progress than for its machine.
_TIMEOUT = 7 * 24 * 3600.0
_STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)")
_FAILED = re.compile(r"^FAILED: (?:\[code=\d+\] )?(.*)")
#: Lines of a failed command's output that are kept for the message.
_KEPT = 40
#: On a pipe, a line per this many percent; a terminal has a bar.
_PERCENT = 5


@dataclass(slots=True)
class Watch:
    """Reads a build's output line by line: what ninja says of failed steps, and the last lines for other failures."""

    bar: Progress
    task: TaskID
    done: int = 0
    total: int = 0
    failed: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    _reading: bool = False
    _said: int = -1

    def line(self, text: str) -> None:
        log.debug("| %s", text)
        self.tail = [*self.tail[1 - _KEPT :], text]
        if status := _STATUS.match(text):
            self._reading = False
            self._advance(int(status[1]), int(status[2]), status[3])
        elif _FAILED.match(text):
            self._reading = True
        if self._reading and len(self.failed) < 2 * _KEPT:
            self.failed.append(text)

    def _advance(self, done: int, total: int, what: str) -> None:
        self.done, self.total = done, total
        self.bar.update(self.task, completed=done, total=total, description=f"building {what[-50:]}")
        percent = 100 * done // max(total, 1)
        if self.bar.disable and percent // _PERCENT != self._said:
            self._said = percent // _PERCENT
            note(f"{percent} %: {done} of {total} steps")


def steps(tree: Path) -> dict[str, float]:
    """Return the seconds of each step that ninja has recorded in the build folders of `tree`, the last of an output."""
    found: dict[str, float] = {}
    # setup.py runs CMake in `build` itself or in a folder or two below it; deeper there are only objects.
    for place in sorted(path for depth in ("", "*/", "*/*/") for path in tree.glob(f"build/{depth}.ninja_log")):
        for line in place.read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split("\t")
            if len(fields) == 5 and fields[0].isdecimal() and fields[1].isdecimal():
                found[f"{place.parent}/{fields[3]}"] = (int(fields[1]) - int(fields[0])) / 1000
    return found


def prepare(project: Project, place: Workspace) -> Path:
    """Return the interpreter of the build's environment, made on the first call and when its requirements change."""
    wanted = [project.python, *project.requires, *project.pins]
    record = place.folder / "environment.json"
    python = place.environment / "bin" / "python"
    if seals.read_record(record, list[str]) != wanted or not python.exists():
        step("environment of the build: " + ", ".join((*project.requires, *project.pins)))
        record.unlink(missing_ok=True)
        paths.clear(place.environment)
        environments.create(place.environment, interpreter(project.python))
        environments.install(python, *project.requires, *project.pins)
        seals.write_record(record, wanted)
    return python


def site_packages(python: Path) -> Path:
    return next((python.parent.parent / "lib").glob("python*")) / "site-packages"


def libraries(project: Project, python: Path) -> dict[Path, External]:
    """Return the libraries that other distributions have, by their places in `site-packages`."""
    every = {canonicalize_name(item.name): item for item in distributions(path=[str(site_packages(python))])}
    owners = {canonicalize_name(Requirement(item.distribution).name): item for item in project.externals}
    for name, owner in list(owners.items()):
        needs = map(Requirement, (every[name].requires if name in every else None) or ())
        owners |= {need: owner for need in (canonicalize_name(item.name) for item in needs) if need not in owners}
    files = ((Path(file), owner) for name, owner in owners.items() if name in every for file in every[name].files or ())
    return {file: owner for file, owner in files if re.search(r"\.so(\.|$)", file.name)}


def environment(
    project: Project, place: Workspace, tools: Toolchain, jobs: int, launchers: Mapping[str, str], python: Path
) -> dict[str, str]:
    """Return the variables of the build; those of the project come last."""
    site = site_packages(python)
    folders = list(dict.fromkeys(site / file.parent for file in libraries(project, python)))
    includes = [folder.parent / "include" for folder in folders]
    # As CMake names them: code for each, and the portable form where asked for.
    named = ((item.architecture.capability.replace(".", ""), item.ptx) for item in project.targets)
    architectures = [name if portable else f"{name}-real" for name, portable in named]
    path = [str(python.parent), *map(str, tools.path), os.environ.get("PATH", os.defpath)]
    return {
        **tools.variables,
        **launchers,
        **workspace.variables(place.tree),
        "PATH": os.pathsep.join(path),
        "VIRTUAL_ENV": str(place.environment),
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        "CMAKE_LIBRARY_PATH": os.pathsep.join(map(str, folders)),
        "CMAKE_INCLUDE_PATH": os.pathsep.join(map(str, includes)),
        "MAX_JOBS": str(jobs),
        "TORCH_CUDA_ARCH_LIST": ";".join(map(str, project.targets)),
        "CUDAARCHS": ";".join(architectures),
        "NINJA_STATUS": "[%f/%t] ",
        **project.environment,
    }


def compile_wheel(plan: Plan, place: Workspace, tools: Toolchain, launchers: Mapping[str, str], python: Path) -> Path:
    """Compile, and return the wheel as the project's own build makes it; what is compiled already is kept.

    Raises:
        CompileError: the build failed; the message has the failed step, and says how much is kept.
    """
    project = plan.project
    variables = environment(project, place, tools, plan.jobs, launchers, python)
    paths.clear(place.wheels)
    # `env -u`: an empty CPATH would mean the current folder.
    command: list[str | Path] = ["env", *(part for name in STEERING for part in ("-u", name))]
    command += [uv.find_uv_bin(), "build", "--wheel", "--no-build-isolation", "--python", python]
    started = time.monotonic()
    before = len(steps(place.tree))
    step(f"compiling with {plan.jobs} at once" + (f"; {before} steps of an earlier run are kept" if before else ""))
    with progress() as bar:
        watch = Watch(bar, bar.add_task("configuring", total=None))
        command += ["--out-dir", place.wheels, place.tree]
        status = run_shown(command, cwd=place.tree, env=variables, timeout=_TIMEOUT, seen=watch.line)
    took = time.monotonic() - started
    wheels = sorted(place.wheels.glob("*.whl"))
    if status or len(wheels) != 1:
        killed = any("Killed" in line or "out of memory" in line for line in watch.failed)
        hint = "a compiler was killed: the memory ran out. Run again with a smaller --jobs; " if killed else ""
        kept = f"the {len(steps(place.tree))} steps that are done are kept; the whole output is in the log"
        raise CompileError(
            f"{project.name} {project.version} does not compile (status {status}, after {hours(took)})",
            cause="\n".join(watch.failed or watch.tail) or "no output",
            remedy=f"{hint}correct the cause and run the same command again: {kept}",
        )
    step(f"compiled in {hours(took)}: {wheels[0].name}")
    return wheels[0]
