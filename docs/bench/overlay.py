"""`bench overlay` and `bench verify`: time and memory of each step of a build, and of checking and repeating it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from build import official, record, releases
from build.console import step
from build.errors import ProbeError, UsageError
from build.overlay.build import build_overlay
from build.overlay.model import Overlay
from build.paths import REPO
from build.pipeline import Request, check, documents, prepared
from build.record import BuildRecord
from build.wheels import patched
from docs.bench.figures import Figure, of_samples

#: What the project promises for two cores, downloads excluded.
COMPILE, ASSEMBLE, MEMORY, REBUILD, SIZE, VERIFY = 75.0, 15.0, 1000.0, 10.0, 2.0, 120.0
_TOOLING = "import sys; from build.cli import run; sys.exit(run())"


@dataclass(frozen=True, slots=True)
class Subject:
    """A build to measure.

    Attributes:
        dist: folder with the results of `build`.
        source: where the release's sources are; None: found.
        rounds: of `import torch`, and of worlds on NCCL; `repeats` of everything else.
    """

    release: str
    dist: Path
    source: Path | None = None
    rounds: int = 15
    repeats: int = 3

    @property
    def folder(self) -> Path:
        return self.dist / self.release

    @property
    def made(self) -> BuildRecord:
        """The record of the build as it is now.

        Raises:
            UsageError: there is none.
        """
        made = record.read(self.folder)
        if made is None:
            remedy = f"nox -s build-{self.release} -- --no-test"
            raise UsageError(f"{self.folder} holds no build to measure", remedy=remedy)
        return made


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a process.

    Attributes:
        seconds: from start to end.
        cpu: seconds of processor time, user and system, its own children included.
        peak: greatest resident set, bytes, of itself or the largest of its children.
        output: its standard output.
    """

    seconds: float
    cpu: float
    peak: int
    output: str


#: Runs its other arguments and writes to the file named first their seconds, their processor time and their greatest
#: resident set in kB. A process begins with the greatest one of the program that starts it: this one is small.
_MEASURED = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
began = time.perf_counter()
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ, setsigmask=())
signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
_, status, usage = os.wait4(child, 0)
seconds = time.perf_counter() - began
open(sys.argv[1], "w").write(f"{seconds} {usage.ru_utime + usage.ru_stime} {usage.ru_maxrss}")
sys.exit(os.waitstatus_to_exitcode(status) & 255)
"""


def cost(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Cost:
    """Run a command and return what it took; `env` replaces all variables of this process.

    Raises:
        ProbeError: it failed.
    """
    with tempfile.TemporaryFile() as out, tempfile.NamedTemporaryFile("r") as taken:
        command = [sys.executable, "-I", "-S", "-c", _MEASURED, taken.name, *command]
        process = subprocess.Popen(command, env=env, cwd=cwd, stdout=out, stderr=subprocess.STDOUT)
        try:
            process.wait()
        except BaseException:
            process.terminate()
            raise
        out.seek(0)
        output = out.read().decode("utf-8", "replace")
        seconds, processor, greatest = map(float, taken.read().split() or (0, 0, 0))
    if process.returncode:
        tail = "\n".join(output.splitlines()[-20:])
        raise ProbeError(f"{Path(command[6]).name} failed while being measured", cause=tail)
    return Cost(seconds, processor, int(greatest) * 1024, output)


def _processor() -> float:
    """Return the processor seconds of this process and of the children that have ended."""
    kinds = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(item.ru_utime + item.ru_stime for item in kinds)


def compile_and_link(request: Request, rounds: int) -> list[Figure]:
    """Compile, link and check an overlay with only the downloads cached.

    The processor time is measured as well, since it does not depend on what else the machine does. Its limit is twice
    the promised time, which is for two cores.
    """
    samples, processor = [], []
    check(request)
    with prepared(request) as ready:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="bench-") as scratch, patch.dict(os.environ):
                os.environ["MULTIWORLD_CACHE"] = str(Path(scratch, "cache"))  # it holds no compiled objects
                began, used = time.perf_counter(), _processor()
                build_overlay(ready.inputs, Path(scratch, "out"))
                samples.append(time.perf_counter() - began)
                processor.append(_processor() - used)
    return [
        of_samples(f"compile and link {request.release}, nothing cached", samples, COMPILE, "s"),
        of_samples("processor time of that", processor, 2 * COMPILE, "s"),
    ]


def _overlay(made: BuildRecord, folder: Path, scratch: Path) -> Overlay:
    """Extract the overlay of a build from its wheel."""
    with zipfile.ZipFile(folder / made.overlay.name) as archive:
        name = next(item for item in archive.namelist() if "/lib/libtorch_mw" in item)
        path = Path(archive.extract(name, scratch))
    proven = made.provenance
    return Overlay(
        path=path,
        soname=path.name,
        sha256=proven.overlay_sha256,
        build_id=proven.overlay_build_id,
        made_for=proven.libtorch_cuda_build_ids,
        objects=(),
        replaced=made.replaced,
        flags=proven.flags,
        checks=proven.checks,
    )


def assemble(subject: Subject) -> None:
    """Write the patched wheel of a build a second time and compare; runs in a process that is measured.

    Raises:
        UsageError: the build is of an older state of this project.
    """
    made, entry = subject.made, releases.get(subject.release)
    wheel, proven = official.fetch_wheel(entry, made.python), made.provenance
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=subject.folder) as scratch:
        overlay = _overlay(made, subject.folder, Path(scratch))
        began = time.perf_counter()
        inside = documents("torch", proven, made.official)
        again = patched.assemble(entry, wheel, overlay, proven.platform, inside, Path(scratch))
        sys.stdout.write(f"{time.perf_counter() - began}\n")
        if record.artifact(again) != made.patched:
            remedy = f"nox -s build-{subject.release}, then again"
            raise UsageError(f"{again.name} came out with other bytes", remedy=remedy)


def child(code: str, *arguments: str) -> Cost:
    """Run a line of the tooling in a process of its own."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(REPO)])
    return cost([sys.executable, "-c", code, *arguments], env={**os.environ, "PYTHONPATH": path}, cwd=REPO)


def tooling(*arguments: str, source: Path | None = None) -> Cost:
    """Run a command of the tooling in a process of its own, start of Python included."""
    return child(_TOOLING, *arguments, *(["--source", str(source)] if source else []))


def assembling(subject: Subject) -> list[Figure]:
    code = "import sys; from pathlib import Path; from docs.bench.overlay import Subject, assemble; "
    code += "assemble(Subject(sys.argv[1], Path(sys.argv[2])))"
    costs = [child(code, subject.release, str(subject.dist)) for _ in range(subject.repeats)]
    size = (subject.folder / subject.made.patched.name).stat().st_size / 1e6
    seconds = [float(item.output.splitlines()[-1]) for item in costs]
    return [
        of_samples(f"assemble the patched wheel ({size:.0f} MB)", seconds, ASSEMBLE, "s"),
        of_samples("peak memory of that", [item.peak / 1e6 for item in costs], MEMORY, "MB"),
    ]


def rebuild(subject: Subject) -> Figure:
    """Build again with nothing changed, by the command line.

    Raises:
        UsageError: something changes from build to build.
    """
    arguments = ["build", subject.release, "--python", subject.made.python, "--dist", str(subject.dist)]
    # The first is not measured: it builds when the tooling has changed since the last build.
    _, *costs = [tooling(*arguments, source=subject.source) for _ in range(subject.repeats + 1)]
    for done in costs:
        if "wheels unchanged, kept" not in done.output:
            raise UsageError("a build of the same input was not the same", cause=done.output[-2000:])
    return of_samples("unchanged rebuild", [done.seconds for done in costs], REBUILD, "s")


def measure(subject: Subject) -> list[Figure]:
    """Measure each step of the build, and compiling at most three times."""
    step(f"rebuilding {subject.release} with nothing changed")
    figures = [rebuild(subject)]
    step(f"assembling {subject.made.patched.name}")
    figures += assembling(subject)
    size = (subject.folder / subject.made.overlay.name).stat().st_size / 1e6
    figures.append(of_samples("overlay wheel", [size], SIZE, "MB"))
    step("compiling and linking with nothing cached")
    request = Request(subject.release, subject.made.python, subject.source, subject.dist)
    return [*compile_and_link(request, min(subject.repeats, 3)), *figures]


def verify(subject: Subject) -> list[Figure]:
    """Verify both wheels of a build once, building each again."""
    figures = list[Figure]()
    for name, item in (("patched", subject.made.patched), ("overlay", subject.made.overlay)):
        step(f"verifying {item.name}")
        taken = tooling("verify", str(subject.folder / item.name), source=subject.source)
        figures.append(of_samples(f"verify the {name} wheel", [taken.seconds], VERIFY, "s"))
        # Compiling uses both cores.
        figures.append(of_samples("processor time of that", [taken.cpu], 2 * VERIFY, "s"))
    return figures
