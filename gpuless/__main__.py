"""`python -m gpuless --python PATH`: probe the torch of another interpreter, and print expected against got.

The exit status is 1 on any mismatch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from build.cli import guarded, only, run
from build.console import console, note, progress
from gpuless import measured
from gpuless.catalogue import PROBES
from gpuless.model import Form, ProbeResult, Verdict
from gpuless.report import table, write_junit
from gpuless.runner import chosen, run_probes, runner


def probe(
    python: Annotated[Path, typer.Option(help="the probed interpreter")] = Path(sys.executable),
    expect: Annotated[Form, typer.Option(help="what the wheel is judged as")] = Form.STOCK,
    ids: Annotated[list[str] | None, typer.Option("--only", metavar="ID", help="only this probe; repeatable")] = None,
    junit: Annotated[Path | None, typer.Option(help="write the results to this file as JUnit XML")] = None,
    jobs: Annotated[int, typer.Option(help="probes at once; default: eight per core")] = 0,
    record: Annotated[
        bool, typer.Option("--record", help="write the outcomes of a stock wheel to measured.json")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="list the probes and exit")] = False,
) -> None:
    """Probe the torch of an interpreter without a GPU; exit with 1 on any mismatch."""
    if listed:
        for item in PROBES:
            console.print(f"{item.id:36} {item.patch.value:13} {item.title}")
        return
    with runner(python) as ready:
        release, wanted = ready.subject.release, chosen(ready.subject.release, ids)
        console.print(f"{len(wanted)} probes on torch {ready.subject.version}, judged as {expect.value}")
        with progress() as bar:
            task = bar.add_task("probes", total=len(wanted), unit="probes")

            def show(result: ProbeResult) -> None:
                console.print(f"{result.probe.id}: {result.got.value} ({result.verdict.value})")
                bar.advance(task)

            results = run_probes(ready, expect, wanted, show, jobs)
    if junit:
        write_junit(results, release, junit)
    console.print(table(results, f"torch {release}, judged as {expect.value}"))
    for name in measured.record(results) if record else ():
        note(f"not recorded: {name}: the harness failed, not torch")
    if not results or any(result.verdict is Verdict.MISMATCH for result in results):
        raise typer.Exit(1)


def main(argv: list[str] | None = None) -> int:
    """Run the probes; return the exit status."""
    return guarded(only(probe), argv)


if __name__ == "__main__":
    sys.exit(run(main))
