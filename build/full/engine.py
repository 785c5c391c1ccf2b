"""A full build, from an accepted plan to a proven wheel: one public function, for any project."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from build import leases, paths
from build.console import log, log_to_file, note, step
from build.errors import ProbeError
from build.full import caching, record, toolchains, workspace
from build.full.compile import compile_wheel, libraries, prepare, site_packages, steps
from build.full.plan import Plan, hours, require
from build.full.project import Probe, Project
from build.full.record import NOT_RUN, FullRecord, Provenance, Shown
from build.full.repair import repair
from build.full.toolchains import Toolchain
from build.full.workspace import Workspace
from build.process import Completed, run
from build.record import artifact, encode, read_json, write_json
from build.series.apply import AppliedTree
from build.wheeltest import environments
from build.wheeltest.environments import Form, environment


def build(plan: Plan, folder: Path) -> FullRecord:
    """Make the full build of a plan; what an earlier run has compiled is kept.

    Args:
        folder: gets the wheel, `full-PYTHON.json` and `full.log`.

    Returns:
        The record. Without a change since the last build, the last one's, and nothing is compiled.

    Raises:
        EnvironmentUnfitError: this machine lacks something; everything that is missing is listed.
        PatchError: a patch does not apply.
        CompileError: the build failed; running again goes on where it ended.
        WheelError: the wheel cannot be repaired, or fails a check.
        ProbeError: the wheel does not show what it must; it is kept, without a record.
    """
    require(plan)
    project, place = plan.project, workspace.of(plan.project)
    folder.mkdir(parents=True, exist_ok=True)
    with paths.locked(place.folder, f"the full build of {project.name} {project.version}"):
        log_to_file(folder / "full.log")
        leases.take(place.folder).mkdir(parents=True, exist_ok=True)
        tools = toolchains.find(plan.kind, project.cuda, project.min_gcc, project.pins)
        sources = project.sources()
        patched = workspace.applied(project, sources)
        proven = record.provenance(plan, sources.identity, patched, tools)
        if last := unchanged(proven, folder):
            note(f"nothing has changed since {last.wheel.name} was built")
            return last
        workspace.update(place, sources, patched)
        return _made(plan, place, tools, patched, proven, folder)


def unchanged(proven: Provenance, folder: Path) -> FullRecord | None:
    """Return the last build's record if it is of the same inputs and its wheel is still what the record says."""
    last = read_json(record.place(folder, proven.python), FullRecord)
    if last is None or last.provenance != proven:
        return None
    wheel = folder / last.wheel.name
    return last if wheel.is_file() and artifact(wheel) == last.wheel else None


def _made(
    plan: Plan, place: Workspace, tools: Toolchain, patched: AppliedTree, proven: Provenance, folder: Path
) -> FullRecord:
    """Compile, repair and prove."""
    python = prepare(plan.project, place)
    with caching.running(plan.caching) as launchers:
        built = compile_wheel(plan, place, tools, launchers, python)
    made = steps(place.tree)
    seconds = sum(made.values())
    note(f"{len(made)} steps of ninja, {hours(seconds)} on one core")
    step("repairing the wheel")
    external, more = libraries(plan.project, python), [tools.cuda_home / "lib64"] if tools.cuda_home else []
    search = [*dict.fromkeys(site_packages(python) / file.parent for file in external), *more]
    repaired = repair(plan.project, built, external, search, encode(proven), folder)
    for check in repaired.checks:
        note(f"{check.name}: {check.detail}")
    shown = prove(plan.project, repaired.path)
    found = FullRecord(
        provenance=proven,
        wheel=artifact(repaired.path),
        platform=repaired.tag,
        copied=repaired.copied,
        installed=environments.installed(python),
        checks=repaired.checks,
        probes=shown,
        verdicts=patched.verdicts,
        steps=len(made),
        seconds=round(seconds, 1),
    )
    write_json(record.place(folder, proven.python), found)
    return found


def _run(command: tuple[str, ...], python: Path) -> Completed:
    done = run([part.replace("{python}", str(python)) for part in command], cwd=python.parent, timeout=3600)
    log.debug("%s", done.stdout.decode("utf-8", "replace"))
    return done


def _shown(probe: Probe, built: Path, stock: Path | None) -> Shown:
    ours = _run(probe.command, built)
    theirs = _run(probe.stock or probe.command, stock).returncode if stock else NOT_RUN
    right = ours.returncode == 0 and (not stock or (theirs != 0) is probe.stock_fails)
    said = f"\n{ours.tail}" if ours.returncode else ""
    note(f"{probe.name}: {'as expected' if right else 'NOT as expected'}{said}")
    return Shown(probe.name, theirs, ours.returncode, right)


def prove(project: Project, wheel: Path) -> tuple[Shown, ...]:
    """Run the probes of a project on its wheel and on the stock wheel.

    Raises:
        ProbeError: one passes on stock, or fails on the wheel; then the patches do not do what they are for.
    """
    if not project.probes:
        return ()
    step(f"probes on {wheel.name}")
    with ExitStack() as stack:
        built = stack.enter_context(environment(Form.PATCHED, project.python, [wheel]))
        stock = project.stock and stack.enter_context(environment(Form.STOCK, project.python, [project.stock()]))
        shown = tuple(_shown(probe, built, stock) for probe in project.probes)
    if wrong := [item for item in shown if not item.as_expected]:
        what = f"{wheel.name} does not show what it must: {', '.join(item.name for item in wrong)}"
        lines = (f"{item.name}: exit status {item.stock} on stock, {item.built} on this wheel" for item in wrong)
        raise ProbeError(what, cause="\n".join(lines), remedy="read the log; the wheel is kept, but not proven")
    return shown
