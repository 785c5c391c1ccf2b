"""Install both wheel forms, and stock beside them, and run the tests of the wheel and of multiworld on each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from build import official, paths, record, releases
from build.console import console, log_to_file, step
from build.errors import ProbeError, UsageError
from build.paths import REPO
from build.process import run_shown
from build.record import BuildRecord
from build.wheeltest.environments import Form, environment, install
from build.wheeltest.results import Run, TestRecord, probe_table, read_junit, run_table, write

#: folders of multiworld's own tests, in this order: the faults are judged by time, so nothing runs beside them
_MULTIWORLD = ("core", "faults")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to test.

    Attributes:
        made: the record of the build.
        folder: `dist/<release>`: the wheels, and where results go.
        multiworld: whether to run multiworld's own tests as well.
    """

    made: BuildRecord
    folder: Path
    multiworld: bool


def _pytest(python: Path, arguments: list[str], env: dict[str, str], junit: Path) -> int:
    """Run pytest with its output on the terminal, and return its exit status."""
    junit.unlink(missing_ok=True)
    command: list[str | Path] = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={junit}", *arguments]
    return run_shown(command, cwd=REPO, env=env, timeout=3600)


def _wheels(plan: Plan, form: Form) -> list[Path]:
    """Return what a form installs."""
    if form is Form.PATCHED:
        return [plan.folder / plan.made.patched.name]
    stock = official.fetch_wheel(releases.get(plan.made.provenance.release), plan.made.python)
    return [stock] if form is Form.STOCK else [stock, plan.folder / plan.made.overlay.name]


def _test_form(plan: Plan, form: Form) -> list[Run]:
    """Run the suites of one form."""
    runs = []
    with environment(form, plan.made.python, _wheels(plan, form)) as python:
        env = {
            "MULTIWORLD_TORCH_PYTHON": str(python),
            "MULTIWORLD_TORCH_FORM": form.value,
            "MULTIWORLD_BUILD_JSON": str(plan.folder / record.NAME),
            "PYTHONPATH": str(REPO),
        }
        junit = plan.folder / f"wheel-{form.value}.xml"
        step(f"tests/wheel on {form.value}")
        status = _pytest(Path(sys.executable), ["-q", "-n", "2", "tests/wheel"], env, junit)
        runs.append(Run(form.value, "wheel", status, read_junit(junit)))
        if plan.multiworld and form is Form.PATCHED:
            runs += _test_multiworld(plan, form, python)
    return runs


def _test_multiworld(plan: Plan, form: Form, python: Path) -> list[Run]:
    """Run multiworld's tests in the environment itself, since they use torch in their own process."""
    install(python, "--group", f"{REPO / 'pyproject.toml'}:test", "--editable", f"{REPO}[cli,metrics]")
    runs = []
    for name in _MULTIWORLD:
        step(f"tests/multiworld/{name} on {form.value}")
        junit = plan.folder / f"multiworld-{name}-{form.value}.xml"
        arguments = ["-q", "-n", "2", f"tests/multiworld/{name}"]
        status = _pytest(python, arguments, {"PYTHONPATH": str(REPO)}, junit)
        runs.append(Run(form.value, f"multiworld {name}", status, read_junit(junit)))
    return runs


def prove_release(release: str, dist: Path, *, multiworld: bool) -> TestRecord:
    """Test what `build RELEASE` made.

    Args:
        release: the PyTorch release.
        dist: folder with a folder per release.
        multiworld: whether to run multiworld's own tests on the patched wheel.

    Returns:
        What was found; also in `tests.json` and as JUnit XML beside the wheels.

    Raises:
        UsageError: nothing was built, or the wheels are not those of the record.
        BusyError: a build, or another test, of the release did not end in time.
        ProbeError: a test failed.
    """
    version = releases.get(release).version
    # The build's own lock: it would replace the wheels under the tests, which are minutes and more.
    with paths.locked(dist / version / "build", f"the build of {version}"):
        return _prove(release, dist / version, multiworld=multiworld)


def _prove(release: str, folder: Path, *, multiworld: bool) -> TestRecord:
    """Do `prove_release` on the folder of the release."""
    log_to_file(folder / "test.log")
    made = record.read(folder)
    if made is None or not all((folder / item.name).is_file() for item in (made.patched, made.overlay)):
        raise UsageError(f"{folder} holds no wheels to test", remedy=f"nox -s build-{release}")
    for item in (made.patched, made.overlay):
        if record.artifact(folder / item.name) != item:
            raise UsageError(
                f"{item.name} is not the wheel that {record.NAME} is about",
                cause="it was replaced after the build",
                remedy=f"nox -s build-{release}",
            )
    plan = Plan(made, folder, multiworld and (paths.TESTS / "multiworld").is_dir())
    runs = tuple(item for form in Form for item in _test_form(plan, form))
    proven = all(item.green for item in runs)
    found = TestRecord(
        release, made.provenance.version, made.python, made.patched.sha256, made.overlay.sha256, proven, runs
    )
    write(found, folder)
    console.print(probe_table(runs, f"{found.version}: probes"))
    console.print(run_table(runs))
    if not proven:
        raise ProbeError(
            "the wheels do not do what they must: " + ", ".join(f"{r.form}/{r.suite}" for r in runs if not r.green),
            cause="see the failures above and the JUnit XML files",
            remedy=f"files are in {folder}",
        )
    return found
