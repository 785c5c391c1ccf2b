"""Results of the tests of the wheels: read from JUnit XML, kept as `tests.json` and in the cache, shown as tables."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import msgspec
from rich.markup import escape
from rich.table import Table

from build import paths, record, seals
from build.console import table
from build.record import BuildRecord
from build.wheeltest.environments import Form

NAME = "tests.json"
#: The suite of faults on simulated NCCL.
SIMULATED = "faults (simulated)"
#: The suite of the harness's own tests.
HARNESS = "harness"
#: Decide the results on the stock wheel: the harness with its catalogue, multiworld, and the tests.
_DECIDING = (
    paths.TESTS / "conftest.py",
    paths.REPO / "gpuless",
    paths.REPO / "multiworld",
    paths.TESTS / "gpuless",
    paths.TESTS / "wheel",
    paths.TESTS / "multiworld",
)
#: What JUnit's results of pytest say of a test that fails as expected.
_XFAIL = "pytest.xfail"


class Case(msgspec.Struct, frozen=True):
    """One test case; for a probe also its id, patch, expected and actual outcome; why it was skipped or had to fail."""

    name: str
    result: str
    probe: str = ""
    patch: str = ""
    expected: str = ""
    got: str = ""
    why: str = ""


class Run(msgspec.Struct, frozen=True):
    """One run of one suite on one form of torch; `recorded`: an earlier run's results, which are still valid."""

    form: str
    suite: str
    exit: int
    cases: tuple[Case, ...]
    recorded: bool = False

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(case.result for case in self.cases))

    @property
    def heading(self) -> str:
        return f"{self.form} (recorded)" if self.recorded else self.form

    @property
    def green(self) -> bool:
        return self.exit == 0 and self.counts.get("passed", 0) > 0


class TestRecord(msgspec.Struct, frozen=True):
    """The whole of `tests.json`: the tested wheels and the results."""

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
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "failed as expected" if skipped.get("type") == _XFAIL else "skipped"


def read_junit(path: Path) -> tuple[Case, ...]:
    if not path.is_file():
        return ()
    found = []
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314 - our own runs wrote it
        properties = {item.get("name", ""): item.get("value", "") for item in case.iter("property")}
        kept = {key: properties.get(key, "") for key in ("probe", "patch", "expected", "got")}
        skipped = case.find("skipped")
        why = "" if skipped is None else skipped.get("message", "")
        found.append(Case(f"{case.get('classname')}::{case.get('name')}", _result(case), why=why, **kept))
    return tuple(found)


def write(found: TestRecord, folder: Path) -> None:
    """Write `tests.json`, and a copy with the Python version in its name, which tests of other Pythons keep."""
    for name in (NAME, f"tests-{found.python}.json"):
        record.write_json(folder / name, found)


def read(folder: Path) -> TestRecord | None:
    """Return the record of the last test in `folder`; None if there is none that can be read."""
    return record.read_json(folder / NAME, TestRecord)


def _cell(case: Case | None) -> str:
    if case is None or not case.got:
        return "-"
    colour = {"passed": "green" if case.got == "ok" else "yellow", "failed": "bold red"}.get(case.result, "dim")
    return f"[{colour}]{case.got}[/]"


def probe_table(runs: tuple[Run, ...], title: str) -> Table:
    """Return the table of probes: the outcome of each on stock and in both patched forms."""
    forms = [run for run in runs if any(case.probe for case in run.cases)]
    caption = "probes run on the real ProcessGroupNCCL; backend: nccl (simulated)"
    shown = table(title, "probe", "patch", *(run.heading for run in forms), caption=caption)
    by_form = [{case.probe: case for case in run.cases if case.probe} for run in forms]
    patches = {probe: case.patch for cases in by_form for probe, case in cases.items()}
    for probe, patch in patches.items():
        shown.add_row(probe, patch, *(_cell(cases.get(probe)) for cases in by_form))
    return shown


def fault_table(runs: tuple[Run, ...], title: str) -> Table:
    """Return the table of faults: each row that is not clean on every wheel, and how many are."""
    forms = [run for run in runs if run.suite == SIMULATED]
    by_form = [{case.name: case for case in run.cases if case.result != "skipped"} for run in forms]
    rows = list(dict.fromkeys(name for cases in by_form for name in cases))
    unclean = [name for name in rows if any(name in cases and cases[name].result != "passed" for cases in by_form)]
    clean = f"{len(rows) - len(unclean)} of {len(rows)} rows are clean on every wheel that ran them"
    caption = f"{clean}; backend: nccl (simulated), which is no GPU"
    shown = table(title, "fault", *(run.heading for run in forms), "why", caption=caption)
    for name in unclean:
        found = [cases.get(name) for cases in by_form]
        why = next((case.why for case in found if case is not None and case.why), "")
        shown.add_row(escape(name.rpartition(".")[2]), *map(_outcome, found), escape(why))
    return shown


def _outcome(case: Case | None) -> str:
    if case is None:
        return "-"
    return {"passed": "[green]ok[/]", "failed as expected": "[yellow]fails[/]"}.get(case.result, "[bold red]FAILS[/]")


def run_table(runs: tuple[Run, ...]) -> Table:
    outcomes = ("passed", "failed", "failed as expected", "skipped")
    shown = table("runs", "form", "suite", *outcomes, "result")
    for item in runs:
        counts = [str(item.counts.get(key, 0)) for key in outcomes]
        result = "[green]green[/]" if item.green else "[bold red]red[/]"
        shown.add_row(item.form, item.suite, *counts, f"{result}, recorded" if item.recorded else result)
    return shown


def _stock_path(made: BuildRecord) -> Path:
    """Return the path of the record of the stock wheel, named by all that decides its results."""
    every = (path for place in _DECIDING for path in (place, *place.rglob("*")))
    deciding = seals.digest_of(paths.REPO, (path for path in every if path.suffix in (".py", ".c", ".h", ".json")))
    parts = repr((made.official.sha256, made.python, made.replaced, deciding))
    return paths.cache("stock") / f"{hashlib.sha256(parts.encode()).hexdigest()[:32]}.json"


def read_stock(made: BuildRecord) -> list[Run]:
    """Return the recorded runs on the stock wheel of a build, empty without a record."""
    runs = seals.read_record(_stock_path(made), list[Run])
    return [msgspec.structs.replace(run, recorded=True) for run in runs or ()]


def write_stock(made: BuildRecord, runs: Sequence[Run]) -> None:
    """Record those of `runs` that are on stock, if all are green: they stay valid until a deciding file changes."""
    stock = [run for run in runs if run.form == Form.STOCK.value]
    if stock and all(run.green for run in stock):
        seals.write_record(_stock_path(made), stock)
