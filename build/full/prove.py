"""Install the wheel of a full build into a fresh environment and run the project's probes on it, and on stock."""

from __future__ import annotations

from pathlib import Path

from build.console import log, note, step
from build.errors import ProbeError
from build.full.project import Probe, Project
from build.full.record import NOT_RUN, Shown
from build.process import Completed, run
from build.wheeltest.environments import Form, environment


def _run(command: tuple[str, ...], python: Path) -> Completed:
    done = run([part.replace("{python}", str(python)) for part in command], cwd=python.parent, timeout=3600)
    log.debug("%s", done.stdout.decode("utf-8", "replace"))
    return done


def _shown(probe: Probe, built: Path, stock: Path | None) -> Shown:
    ours = _run(probe.command, built)
    theirs = _run(probe.stock or probe.command, stock).returncode if stock else NOT_RUN
    right = ours.returncode == 0 and (not stock or (theirs != 0) is probe.stock_fails)
    note(
        f"{probe.name}: {'as expected' if right else 'NOT as expected'}" + (f"\n{ours.tail}" if ours.returncode else "")
    )
    return Shown(probe.name, theirs, ours.returncode, right)


def prove(project: Project, wheel: Path) -> tuple[Shown, ...]:
    """Run the probes of a project on its wheel and on the stock wheel.

    Raises:
        ProbeError: one passes on stock, or fails on the wheel; then the patches do not do what they are for.
    """
    if not project.probes:
        return ()
    step(f"probes on {wheel.name}")
    with environment(Form.PATCHED, project.python, [wheel]) as built:
        if project.stock is None:
            shown = tuple(_shown(probe, built, None) for probe in project.probes)
        else:
            with environment(Form.STOCK, project.python, [project.stock()]) as stock:
                shown = tuple(_shown(probe, built, stock) for probe in project.probes)
    wrong = [item for item in shown if not item.as_expected]
    if wrong:
        raise ProbeError(
            f"{wheel.name} does not show what it must: {', '.join(item.name for item in wrong)}",
            cause="\n".join(
                f"{item.name}: exit status {item.stock} on stock, {item.built} on this wheel" for item in wrong
            ),
            remedy="read the log; the wheel is kept, and counts as not proven",
        )
    return shown
