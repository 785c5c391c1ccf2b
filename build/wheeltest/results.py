"""What the tests of the wheels found: read from JUnit XML, kept as `tests.json`, shown as a table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import msgspec
from rich.table import Table

from build.paths import atomic_write

NAME = "tests.json"


class Case(msgspec.Struct, frozen=True):
    """One test case; for a probe also its id, patch, expected and actual outcome."""

    name: str
    result: str
    probe: str = ""
    patch: str = ""
    expected: str = ""
    got: str = ""


class Run(msgspec.Struct, frozen=True):
    """One run of one suite.

    Attributes:
        form: how torch was installed.
        suite: which tests: `probes`, `wheel`, `multiworld core` or `multiworld faults`.
        exit: its exit status.
        cases: its tests.
        recorded: whether these are the results of an earlier run, which still hold.
    """

    form: str
    suite: str
    exit: int
    cases: tuple[Case, ...]
    recorded: bool = False

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(case.result for case in self.cases))

    @property
    def green(self) -> bool:
        return self.exit == 0 and self.counts.get("passed", 0) > 0


class TestRecord(msgspec.Struct, frozen=True):
    """The whole of `tests.json`: which wheels were tested, and what came out."""

    release: str
    version: str
    python: str
    patched_sha256: str
    overlay_sha256: str
    proven: bool
    runs: tuple[Run, ...]


def _result(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def read_junit(path: Path) -> tuple[Case, ...]:
    if not path.is_file():
        return ()
    found = []
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314 - our own runs wrote it
        properties = {item.get("name", ""): item.get("value", "") for item in case.iter("property")}
        kept = {key: properties.get(key, "") for key in ("probe", "patch", "expected", "got")}
        found.append(Case(f"{case.get('classname')}::{case.get('name')}", _result(case), **kept))
    return tuple(found)


def write(record: TestRecord, folder: Path) -> None:
    """Write `tests.json`, and the same under a name with the Python version, which the next Python's tests leave."""
    for name in (NAME, f"tests-{record.python}.json"):
        with atomic_write(folder / name) as part:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def _cell(case: Case | None) -> str:
    if case is None or not case.got:
        return "-"
    colour = {"passed": "green" if case.got == "ok" else "yellow", "failed": "bold red"}.get(case.result, "dim")
    return f"[{colour}]{case.got}[/]"


def probe_table(runs: tuple[Run, ...], title: str) -> Table:
    """Return the table of probes: what each did on stock and in both patched forms."""
    forms = [run for run in runs if any(case.probe for case in run.cases)]
    table = Table(title=title, caption="probes run on the real ProcessGroupNCCL; backend: nccl (simulated)")
    for column in ("probe", "patch", *(f"{run.form} (recorded)" if run.recorded else run.form for run in forms)):
        table.add_column(column, overflow="fold")
    by_form = [{case.probe: case for case in run.cases if case.probe} for run in forms]
    patches = {probe: case.patch for cases in by_form for probe, case in cases.items()}
    for probe, patch in patches.items():
        table.add_row(probe, patch, *(_cell(cases.get(probe)) for cases in by_form))
    return table


def run_table(runs: tuple[Run, ...]) -> Table:
    table = Table(title="runs")
    for column in ("form", "suite", "passed", "failed", "skipped", "result"):
        table.add_column(column)
    for item in runs:
        counts = [str(item.counts.get(key, 0)) for key in ("passed", "failed", "skipped")]
        result = "[green]green[/]" if item.green else "[bold red]red[/]"
        table.add_row(item.form, item.suite, *counts, f"{result}, recorded" if item.recorded else result)
    return table
