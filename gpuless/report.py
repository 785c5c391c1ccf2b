"""Showing results: a table for people, JUnit XML for machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from rich.table import Table

from build.console import table as console_table
from gpuless.catalogue import PROBES
from gpuless.model import ProbeResult, Verdict

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
