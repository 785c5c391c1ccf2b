"""Install both wheel forms and the stock wheel, and run the probes and the tests of the wheel and of multiworld."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.version import Version
from rich.progress import Progress, TaskID

from build import official, paths, record, releases
from build.console import console, log, log_to_file, note, progress, step
from build.errors import ProbeError, UsageError
from build.paths import REPO
from build.process import run, run_shown, run_together
from build.record import BuildRecord
from build.wheeltest.environments import Form, environment, install
from build.wheeltest.results import (
    SIMULATED,
    Run,
    TestRecord,
    fault_table,
    probe_table,
    read_junit,
    read_stock,
    run_table,
    write,
    write_stock,
)

_CORE = ("tests/multiworld/core",)
#: judged by time, so it runs alone
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
_DEVICE = "tests/multiworld/device"
_DEVICE_FORMS = Form.PATCHED, Form.OVERLAY
#: The oldest torch that the package serves; `dependencies` in pyproject.toml.
_OLDEST = Version("2.2.1")
#: Bytes of memory that this suite takes on one wheel: test processes, and the workers that they fork.
_MEMORY = 4 << 30
#: Exit statuses of pytest and of `python -m gpuless` after Ctrl-C.
_INTERRUPTED = (2, 130)
#: What `python -m gpuless` prints: how many probes there are, and each result.
_TOTAL = re.compile(r"(\d+) probes on torch ")
_RESULT = re.compile(r"\S+: .* \((as expected|MISMATCH|not measured)\)$")


@dataclass(frozen=True, slots=True)
class Plan:
    """The wheels in `folder`, which gets the results, too, and how much of the tests they get.

    Attributes:
        multiworld: whether multiworld's own tests run.
        stock: whether tests of stock run again although their record is valid.
        whole: whether core and faults of multiworld run as a whole on the patched wheel.
    """

    made: BuildRecord
    folder: Path
    multiworld: bool
    stock: bool
    whole: bool


def _wheels(plan: Plan, form: Form) -> list[Path]:
    if form is Form.PATCHED:
        return [plan.folder / plan.made.patched.name]
    stock = official.fetch_wheel(releases.get(plan.made.provenance.release), plan.made.python)
    return [stock] if form is Form.STOCK else [stock, plan.folder / plan.made.overlay.name]


def _probes(plan: Plan, form: Form, python: Path, bar: Progress, task: TaskID) -> Run:
    junit = plan.folder / f"probes-{form.value}.xml"
    junit.unlink(missing_ok=True)
    expected = Form.STOCK if form is Form.STOCK else Form.PATCHED
    command: list[str | Path] = [sys.executable, "-m", "gpuless", "--python", python, "--expect", expected.value]
    said: list[str] = []

    def seen(line: str) -> None:
        said.append(line)
        if total := _TOTAL.match(line):
            bar.update(task, total=int(total[1]))
        elif _RESULT.match(line):
            bar.advance(task)

    status = run_shown([*command, "--junit", junit], cwd=REPO, env={"PYTHONPATH": str(REPO)}, timeout=1800, seen=seen)
    return _found(form, "probes", status, junit, said)


def _wheel_tests(plan: Plan, form: Form, python: Path) -> Run:
    """Run tests/wheel on one form, and the harness's own tests on stock.

    They run in this interpreter: the environment under test has torch alone.
    """
    own = record.place(plan.folder, plan.made.python)
    env = {
        "MULTIWORLD_TORCH_PYTHON": str(python),
        "MULTIWORLD_TORCH_FORM": form.value,
        "MULTIWORLD_BUILD_JSON": str(own if own.is_file() else plan.folder / record.NAME),
        "PYTHONPATH": str(REPO),
    }
    junit, said = plan.folder / f"wheel-{form.value}.xml", list[str]()
    harness = ("tests/gpuless",) if form is Form.STOCK else ()  # it needs any CUDA build of torch
    command = _pytest(Path(sys.executable), junit, "tests/wheel", *harness)
    return _found(form, "wheel", run_shown(command, cwd=REPO, env=env, timeout=1800, seen=said.append), junit, said)


def _found(form: Form, suite: str, status: int, junit: Path, said: list[str]) -> Run:
    """Return the results of a suite; its output goes to the log, and to the terminal only after a failure."""
    log.info("%s on %s: exit status %d\n%s", suite, form.value, status, "\n".join(said))
    if status not in (0, *_INTERRUPTED):
        console.print("\n".join(said[-200:]), markup=False)
    return Run(form.value, suite, status, read_junit(junit))


def _pytest(python: Path, junit: Path, *arguments: str) -> list[str | Path]:
    """Return the command line of pytest, and remove its last results."""
    junit.unlink(missing_ok=True)
    return [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}", *arguments]


def _test_forms(plan: Plan, pythons: dict[Form, Path]) -> list[Run]:
    """Run at once what no clock judges, since it waits most of the time: probes and wheel tests of all forms, and
    multiworld's core and drivers."""
    step(f"probes, tests/wheel{', core and drivers' if plan.multiworld else ''} on {_names(pythons)}")
    own = list(_own_tests(plan, pythons)) if plan.multiworld else []
    others: list[Callable[[], Run]] = [partial(_wheel_tests, plan, form, python) for form, python in pythons.items()]
    with progress() as bar:
        tasks = {form: bar.add_task(f"probes on {form.value}", total=None, unit="done") for form in pythons}
        others += [partial(_probes, plan, form, python, bar, tasks[form]) for form, python in pythons.items()]
        if _available_memory() >= _MEMORY * (1 + len(own)):
            runs = run_together([*own, *others])
        else:
            runs = [*run_together(others), *(one() for one in own)]
    order = list(Form)
    return sorted(runs, key=lambda run: order.index(Form(run.form)))


def _own_tests(plan: Plan, pythons: dict[Form, Path]) -> Iterator[Callable[[], Run]]:
    """The tests of multiworld's core, on the patched wheel, and those of its drivers for devices."""
    core = _CORE if plan.whole else _CORE_PART
    only = ("-n", "auto", "-k", "not simulated")
    yield partial(_suite, plan, Form.PATCHED, "multiworld core", pythons[Form.PATCHED], *only, *core)
    for form in _DEVICE_FORMS:
        yield partial(_suite, plan, form, "multiworld device", pythons[form], "-n", "2", _DEVICE)


def _names(forms: Iterable[Form]) -> str:
    return ", ".join(form.value for form in forms)


def _suite(plan: Plan, form: Form, name: str, python: Path, *arguments: str) -> Run:
    """Run a suite of multiworld's in the environment under test."""
    file = re.sub("[^a-z]+", "-", name).strip("-")
    junit, said = plan.folder / f"{file}-{form.value}.xml", list[str]()
    command = _pytest(python, junit, *arguments)
    status = run_shown(command, cwd=REPO, env={"PYTHONPATH": str(REPO)}, timeout=3600, seen=said.append)
    return _found(form, name, status, junit, said)


def _python(plan: Plan, form: Form, wheels: list[Path], stack: ExitStack) -> Path:
    """Make the environment of one form, which goes with `stack`, and return its interpreter."""
    python = stack.enter_context(environment(form, plan.made.python, wheels))
    if plan.multiworld:
        _prepare_multiworld(python)
    # Once: the suites begin together, and each process would compile torch. Whether it works is theirs to say.
    run([python, "-c", "import torch.distributed"])
    return python


def _prepare_multiworld(python: Path) -> None:
    """Install multiworld and what its tests need: they use torch in their own process, and the harness in another."""
    groups = [item for name in ("test", "tooling") for item in ("--group", f"{REPO / 'pyproject.toml'}:{name}")]
    install(python, *groups, "--editable", f"{REPO}[cli,metrics,nccl]")


def _test_faults(plan: Plan, pythons: dict[Form, Path]) -> list[Run]:
    """Run the fault-tolerance suite on the patched wheel, then on simulated NCCL on all forms, at once where the memory
    is enough."""
    faults = _FAULTS if plan.whole else _FAULTS_PART
    step(f"{', '.join(faults)} on patched{'' if plan.whole else '; `-- --whole` runs all of core and faults'}")
    junit = plan.folder / "multiworld-faults-patched.xml"
    command = _pytest(pythons[Form.PATCHED], junit, "-n", "auto", "-k", "not simulated", *faults)
    status = run_shown(command, cwd=REPO, env={"PYTHONPATH": str(REPO)}, timeout=3600)
    alone = Run(Form.PATCHED.value, "multiworld faults", status, read_junit(junit))
    step(f"{SIMULATED} on {_names(pythons)}")
    together = _available_memory() >= _MEMORY * len(pythons)
    what = ("-k", _ROWS, *_FAILURES)
    work = [
        partial(_suite, plan, form, SIMULATED, python, "-n", _processes(form) if together else "auto", *what)
        for form, python in pythons.items()
    ]
    return [alone, *(run_together(work) if together else (one() for one in work))]


def _processes(form: Form) -> str:
    """Return the number of processes for the rows on simulated NCCL: most rows that stock fails only wait."""
    return "6" if form is Form.STOCK else "2"


def _available_memory() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])


def _runs(plan: Plan) -> list[Run]:
    known = [] if plan.stock else read_stock(plan.made)
    if plan.multiworld and not any(run.suite == SIMULATED for run in known):
        known = []
    if known:
        for junit in plan.folder.glob("*-stock.xml"):
            junit.unlink()  # of another run
        note("stock: neither wheel nor probes nor harness have changed since they were run, so its record is used")
    with ExitStack() as stack:
        wheels = {form: _wheels(plan, form) for form in Form if form is not Form.STOCK or not known}
        made = run_together([partial(_python, plan, form, of_it, stack) for form, of_it in wheels.items()])
        pythons = dict(zip(wheels, made, strict=True))
        runs = _test_forms(plan, pythons)
        if plan.multiworld:
            runs += _test_faults(plan, pythons)
        write_stock(plan.made, runs)
    return [*known, *runs]


def prove_release(
    release: str, dist: Path, *, multiworld: bool, python: str = "", stock: bool = False, whole: bool = False
) -> TestRecord:
    """Test the wheels that `build RELEASE` made.

    Args:
        dist: folder with a folder per release.
        multiworld: whether to run multiworld's own tests on the patched wheel.
        python: CPython version of the patched wheel, default that of the last build.
        stock: whether to test the stock wheel again although its record is valid.
        whole: whether to run all of multiworld's core and faults on the patched wheel, not a part of them.

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
        return _prove(release, Plan(made, folder, own, stock, whole))


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
            raise UsageError(
                f"{item.name} is not the wheel in {record.NAME}",
                cause="it was replaced after the build",
                remedy=remedy,
            )
    return made


def _prove(release: str, plan: Plan) -> TestRecord:
    made = plan.made
    runs = tuple(_runs(plan))
    proven = all(item.green for item in runs)
    found = TestRecord(
        release, made.provenance.version, made.python, made.patched.sha256, made.overlay.sha256, proven, runs
    )
    write(found, plan.folder)
    console.print(probe_table(runs, f"{found.version}: probes"))
    if any(run.suite == SIMULATED for run in runs):
        console.print(fault_table(runs, f"{found.version}: faults of worlds on NCCL"))
    console.print(run_table(runs))
    if not proven:
        raise ProbeError(
            "the wheels fail their tests: " + ", ".join(f"{r.form}/{r.suite}" for r in runs if not r.green),
            cause="see the failures above and the JUnit XML files",
            remedy=f"read these files in {plan.folder}",
        )
    return found
