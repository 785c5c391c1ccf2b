"""`python -m gpuless --python PATH`: probe the torch of another interpreter, and print expected against got.

The exit status is 1 on any mismatch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer
from rich.table import Table

from build.cli import guarded, only, run
from build.console import console, note, progress
from build.console import table as console_table
from gpuless import measured
from gpuless.catalogue import PROBES
from gpuless.model import Form, ProbeResult, Verdict
from gpuless.runner import chosen, run_probes, runner

_STYLE: Mapping[Verdict, str] = {
    Verdict.AS_EXPECTED: "green",
    Verdict.MISMATCH: "bold red",
    Verdict.NOT_MEASURED: "yellow",
}


def table(results: Iterable[ProbeResult], title: str) -> Table:
    caption = "backend: nccl (simulated); no GPU, no data between processes"
    shown = console_table(title, "probe", "patch", "expected", "got", "verdict", "seconds", caption=caption)
    for result in results:
        style = _STYLE[result.verdict]
        shown.add_row(
            result.probe.id,
            result.probe.patch.value,
            _expected(result) or "-",
            result.got.value,
            f"[{style}]{result.verdict.value}[/]",
            f"{result.seconds:.1f}",
            style=style if result.verdict is Verdict.MISMATCH else "",
        )
    return shown


def _expected(result: ProbeResult) -> str | None:
    expected = result.probe.expected(result.form, result.release)
    return expected.value if expected else None


def write_junit(results: Iterable[ProbeResult], release: str, path: Path) -> None:
    """Write the results as JUnit XML, in the form of pytest; probes for other releases are in it as skipped."""
    suite = ElementTree.Element("testsuite", name="gpuless")
    for result in results:
        case = _case(suite, result.probe.id, result.seconds)
        properties = ElementTree.SubElement(case, "properties")
        expected, got = _expected(result) or "not measured", result.got.value
        known = {"probe": result.probe.id, "patch": result.probe.patch.value, "expected": expected, "got": got}
        for name, value in known.items():
            ElementTree.SubElement(properties, "property", name=name, value=value)
        if result.verdict is Verdict.MISMATCH:
            failure = ElementTree.SubElement(case, "failure", message=f"expected {expected}, got {got}")
            # XML cannot contain control characters, which a crash may print.
            failure.text = "".join(c for c in f"{result.detail}\n{result.output}" if c.isprintable() or c in "\n\t")
        elif result.verdict is Verdict.NOT_MEASURED:
            ElementTree.SubElement(case, "skipped", message=f"the outcome of stock {release} was not measured")
    for probe in PROBES:
        if not probe.covers(release):
            ElementTree.SubElement(_case(suite, probe.id, 0), "skipped", message=f"not for {release}")
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _case(suite: ElementTree.Element, name: str, seconds: float) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname="gpuless", name=name, time=f"{seconds:.2f}")


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
            task = bar.add_task("probes", total=len(wanted))

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
