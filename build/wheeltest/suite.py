"""Install both wheel forms and the stock wheel, and run the probes and the tests of the wheel and of multiworld."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from packaging.version import Version
from rich.progress import Progress, TaskID

from build import official, paths, record, releases
from build.console import console, log, log_to_file, note, progress, step
from build.errors import ProbeError, UsageError
from build.overlay.toolchain import free_memory
from build.paths import REPO
from build.process import run, run_shown, run_together
from build.record import BuildRecord
from build.wheeltest import results
from build.wheeltest.environments import Form, environment, install
from build.wheeltest.results import HARNESS, SIMULATED, Run, TestRecord

_CORE = ("tests/multiworld/core",)
_FAULTS = ("tests/multiworld/faults",)
#: Without `--whole`: `nox -s tests` runs both suites on the newest torch, and the patches change NCCL sources only.
#: What may differ on another torch: its groups and tensors, and a world that breaks and comes back.
_CORE_PART = tuple(f"{_CORE[0]}/test_{name}.py" for name in ("collectives", "point_to_point", "objects", "kinds"))
_FAULTS_PART = tuple(f"{_FAULTS[0]}/test_{name}.py" for name in ("recovery", "isolation"))
#: What of the fault-tolerance suite runs on simulated NCCL on all wheels: failures of NCCL and CUDA on torch's group,
#: which is what the patches change. `nox -s faults -- --simulated` runs all rows, those of the driver `nccl` too.
_FAILURES = ("tests/multiworld/faults/test_nccl_failures.py", "tests/multiworld/faults/test_torch_groups.py")
_ROWS = "torch-nccl and simulated"
#: the drivers, and tensors that stay on the device, between processes on the imitation; both drivers
_DEVICE = ("tests/multiworld/device",)
#: On the overlay without `--whole`: its functions are the patched wheel's, and these rows call the patched ones.
_ON_DEVICE = ("device_lost", "driver_watchdog", "isolation_device", "stream")
_DEVICE_PART = tuple(f"{_DEVICE[0]}/test_{name}.py" for name in _ON_DEVICE)
#: The oldest torch that the package serves; `dependencies` in pyproject.toml.
_OLDEST = Version("2.2.1")
#: Bytes of memory that one suite may take: test processes, and the workers that they fork.
_MEMORY = 2 << 30
#: Exit statuses of pytest and of `python -m gpuless` after Ctrl-C.
_INTERRUPTED = (2, 130)
#: What `python -m gpuless` prints: how many probes there are, and each result.
_TOTAL = re.compile(r"(\d+) probes on torch ")
_RESULT = re.compile(r"\S+: .* \((as expected|MISMATCH|not measured)\)$")


class Extent(Enum):
    """Extent of the tests of wheels."""

    FIRST = "first proof"  # every probe, tests/wheel, and failures of NCCL in real processes
    SUITES = "suites"  # also the harness's own tests, and multiworld's as far as another torch may change them
    WHOLE = "whole suites"


@dataclass(frozen=True, slots=True)
class Plan:
    """The wheels in `folder`, which gets the results, too, and how much of the tests; `stock`: stock again."""

    made: BuildRecord
    folder: Path
    multiworld: bool
    stock: bool
    extent: Extent

    @property
    def whole(self) -> bool:
        return self.extent is Extent.WHOLE


def _wheels(plan: Plan, form: Form) -> list[Path]:
    if form is Form.PATCHED:
        return [plan.folder / plan.made.patched.name]
    stock = official.fetch_wheel(releases.get(plan.made.provenance.release), plan.made.python)
    return [stock] if form is Form.STOCK else [stock, plan.folder / plan.made.overlay.name]


def _run(
    form: Form,
    suite: str,
    command: list[str | Path],
    junit: Path,
    env: Mapping[str, str],
    watch: Callable[[str], None] | None = None,
) -> Run:
    """Run a suite; its output goes to `watch` and the log, and to the terminal only after a failure."""
    junit.unlink(missing_ok=True)
    said: list[str] = []

    def seen(line: str) -> None:
        said.append(line)
        if watch:
            watch(line)

    status = run_shown(command, cwd=REPO, env={"PYTHONPATH": str(REPO), **env}, timeout=3600, seen=seen)
    log.info("%s on %s: exit status %d\n%s", suite, form.value, status, "\n".join(said))
    if status not in (0, *_INTERRUPTED):
        console.print("\n".join(said[-200:]), markup=False)
    return Run(form.value, suite, status, results.read_junit(junit))


def _probes(plan: Plan, form: Form, python: Path, bar: Progress, task: TaskID) -> Run:
    junit = plan.folder / f"probes-{form.value}.xml"
    expected = Form.STOCK if form is Form.STOCK else Form.PATCHED
    command: list[str | Path] = [sys.executable, "-m", "gpuless", "--python", python, "--expect", expected.value]

    def watch(line: str) -> None:
        if total := _TOTAL.match(line):
            bar.update(task, total=int(total[1]))
        elif _RESULT.match(line):
            bar.advance(task)

    return _run(form, "probes", [*command, "--junit", junit], junit, {}, watch)


def _suite(
    plan: Plan, form: Form, name: str, python: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> Run:
    """Run tests with pytest, in the environment under test if `python` is its interpreter."""
    junit = plan.folder / f"{re.sub('[^a-z]+', '-', name).strip('-')}-{form.value}.xml"
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}"]
    return _run(form, name, [*command, *arguments], junit, env or {})


def _with_tools(plan: Plan, form: Form, name: str, python: Path, *arguments: str) -> Run:
    """Run a suite in this interpreter, since the environment under test has torch alone."""
    own = record.place(plan.folder, plan.made.python)
    env = {
        "MULTIWORLD_TORCH_PYTHON": str(python),
        "MULTIWORLD_TORCH_FORM": form.value,
        "MULTIWORLD_BUILD_JSON": str(own if own.is_file() else plan.folder / record.NAME),
    }
    return _suite(plan, form, name, Path(sys.executable), *arguments, env=env)


def _first_proof(plan: Plan, pythons: dict[Form, Path]) -> list[Run]:
    """Run the probes, tests/wheel and the failures of NCCL on all forms at once: they wait most of the time."""
    names = ", ".join(form.value for form in pythons)
    step(f"probes, tests/wheel{f' and {SIMULATED}' if plan.multiworld else ''} on {names}")
    work: list[Callable[[], Run]] = []
    with progress() as bar:
        for form, python in pythons.items():
            task = bar.add_task(f"probes on {form.value}", total=None)
            # Most of the rows that stock fails wait for what never comes.
            rows = ("-n", "6" if form is Form.STOCK else "2", "-k", _ROWS, *_FAILURES)
            work += [partial(_suite, plan, form, SIMULATED, python, *rows)] if plan.multiworld else []
            work.append(partial(_probes, plan, form, python, bar, task))
            work.append(partial(_with_tools, plan, form, "wheel", python, "tests/wheel"))
        runs = _at_once(work)
    order = list(Form)
    return sorted(runs, key=lambda run: order.index(Form(run.form)))


def _suites(plan: Plan, pythons: dict[Form, Path]) -> list[Run]:
    """Run the harness's own tests, where stock is tested, and multiworld's."""
    work: list[Callable[[], Run]] = []
    if plan.multiworld:
        step(f"core, faults and drivers of multiworld{'' if plan.whole else '; `-- --whole` runs all of their tests'}")
        work += _own_tests(plan, pythons)
    if Form.STOCK in pythons:
        step("the harness's own tests on stock")
        work.append(partial(_with_tools, plan, Form.STOCK, HARNESS, pythons[Form.STOCK], "-n", "2", "tests/gpuless"))
    return _at_once(work)


def _own_tests(plan: Plan, pythons: dict[Form, Path]) -> Iterator[Callable[[], Run]]:
    """Yield the tests of multiworld's core and faults, on the patched wheel, and of its drivers for devices."""
    only = ("-n", "auto", "-k", "not simulated", *(("--whole",) if plan.whole else ()))
    rows = (
        (Form.PATCHED, "core", only, _CORE if plan.whole else _CORE_PART),
        (Form.PATCHED, "faults", only, _FAULTS if plan.whole else _FAULTS_PART),
        (Form.PATCHED, "device", ("-n", "2"), _DEVICE),
        (Form.OVERLAY, "device", ("-n", "2"), _DEVICE if plan.whole else _DEVICE_PART),
    )
    for form, name, options, what in rows:
        yield partial(_suite, plan, form, f"multiworld {name}", pythons[form], *options, *what)


def _at_once(work: list[Callable[[], Run]]) -> list[Run]:
    """Run as many suites at once as the memory is enough for."""
    return run_together(work, max(1, free_memory() // _MEMORY))


def _python(plan: Plan, form: Form, wheels: list[Path], stack: ExitStack) -> Path:
    """Make the environment of one form, which goes with `stack`, and return its interpreter."""
    python = stack.enter_context(environment(form, plan.made.python, wheels))
    if plan.multiworld:  # and what its tests need: they use torch in their own process, and the harness in another
        groups = [item for name in ("test", "tooling") for item in ("--group", f"{REPO / 'pyproject.toml'}:{name}")]
        install(python, *groups, "--editable", f"{REPO}[cli,metrics,nccl]")
    # Once: the suites begin together, and each process would compile torch. Whether it works is theirs to say.
    run([python, "-c", "import torch.distributed"])
    return python


def _runs(plan: Plan) -> list[Run]:
    known = [] if plan.stock else results.read_stock(plan.made)
    if not _needed(plan) <= {run.suite for run in known}:
        known = []
    if known:
        for junit in plan.folder.glob("*-stock.xml"):
            junit.unlink()  # of another run
        note("stock: neither wheel nor probes nor harness have changed since they were run, so its record is used")
    with ExitStack() as stack:
        wheels = {form: _wheels(plan, form) for form in Form if form is not Form.STOCK or not known}
        made = run_together([partial(_python, plan, form, of_it, stack) for form, of_it in wheels.items()])
        pythons = dict(zip(wheels, made, strict=True))
        runs = _first_proof(plan, pythons)
        if plan.extent is not Extent.FIRST:
            runs += _suites(plan, pythons)
        results.write_stock(plan.made, runs)
    return [*known, *runs]


def _needed(plan: Plan) -> set[str]:
    """Return the suites that a record of stock must have to take the place of a run."""
    more = {SIMULATED} if plan.multiworld else set()
    return {"probes", "wheel", *more} | ({HARNESS} if plan.extent is not Extent.FIRST else set())


def prove_release(
    release: str, dist: Path, *, multiworld: bool, python: str = "", stock: bool = False, extent: Extent = Extent.SUITES
) -> TestRecord:
    """Test the wheels that `build RELEASE` made.

    Args:
        dist: folder with a folder per release.
        multiworld: whether to run multiworld's own tests on the patched wheel.
        python: CPython version of the patched wheel, default that of the last build.
        stock: whether to test the stock wheel again although its record is valid.
        extent: how much of the tests to run.

    Returns:
        The results; also in `tests.json` and as JUnit XML next to the wheels.

    Raises:
        UsageError: nothing was built, or the wheels are not those of the record.
        BusyError: a build or another test of the release did not end in time.
        ProbeError: a test failed.
    """
    version = releases.get(release).version
    # The build's own lock: a build would replace the wheels during the tests, which take minutes.
    with paths.locked(dist / version / "build", f"the build of {version}"):
        folder = dist / version
        made = _built(release, folder, python)
        log_to_file(folder / "test.log")
        own = multiworld and (paths.TESTS / "multiworld").is_dir() and _serves_multiworld(version)
        return _prove(release, Plan(made, folder, own, stock, extent))


def _serves_multiworld(version: str) -> bool:
    """Return whether the package can be installed with this torch, and say so where it cannot."""
    if Version(version) >= _OLDEST:
        return True
    note(f"the package's own tests are left out: it needs torch {_OLDEST} or newer")
    return False


def _built(release: str, folder: Path, python: str) -> BuildRecord:
    remedy = f"nox -s build-{release}" + (f" -- --python {python}" if python else "")
    made = record.read(folder, python)
    if made is None or not all((folder / item.name).is_file() for item in (made.patched, made.overlay)):
        wanted = f" for Python {python}" if python else ""
        raise UsageError(f"{folder} holds no wheels{wanted} to test", remedy=remedy)
    for item in (made.patched, made.overlay):
        if record.artifact(folder / item.name) != item:
            raise UsageError(f"{item.name} is not the wheel in {record.NAME}", remedy=remedy)
    return made


def _prove(release: str, plan: Plan) -> TestRecord:
    made = plan.made
    runs = tuple(_runs(plan))
    proven = all(item.green for item in runs)
    wheels = made.patched.sha256, made.overlay.sha256
    found = TestRecord(release, made.provenance.version, made.python, *wheels, proven, runs)
    results.write(found, plan.folder)
    console.print(results.probe_table(runs, f"{found.version}: probes"))
    if any(run.suite == SIMULATED for run in runs):
        console.print(results.fault_table(runs, f"{found.version}: faults of worlds on NCCL"))
    console.print(results.run_table(runs))
    if not proven:
        red = ", ".join(f"{run.form}/{run.suite}" for run in runs if not run.green)
        raise ProbeError(f"the wheels fail their tests: {red}", remedy=f"see above, and the XML files in {plan.folder}")
    return found
