"""After a port: build the release and run its probes, since a patch that applies need not work."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from build import paths
from build.console import step
from build.errors import ProbeError, ToolError
from build.pipeline import Request, build_release
from build.porting.report import PortReport, ProbeReport, not_needed, reports
from build.series.commits import write_series
from build.wheeltest.environments import Form
from build.wheeltest.results import Case, TestRecord, read
from build.wheeltest.suite import prove_release


def prove(report: PortReport, folder: Path, source: Path | None = None) -> tuple[PortReport, ToolError | None]:
    """Build the release a series was ported to, and run its probes on the stock and on the patched wheel.

    Returns the report with the probes' results, which is written to `folder` (`patches/<series>/<release>`) as well,
    and the error that ended the build or its tests, if any.
    """
    failure: ToolError | None = None
    record: TestRecord | None = None
    try:
        build_release(Request(report.new, source=source))
        record = prove_release(report.new, paths.DIST, multiworld=False)
    except ToolError as error:
        failure = error
        record = read(paths.DIST / report.new) if isinstance(error, ProbeError) else None
    found = structs.replace(report, probes=probes_of(record) if record else ())
    for patch in not_needed(found.probes):
        step(f"no probe of {patch} fails on the stock wheel: it may no longer be needed")
    write_series(folder, reports(found), keep=[path.name for path in folder.glob("*.patch")])
    return found, failure


def probes_of(record: TestRecord) -> tuple[ProbeReport, ...]:
    stock: dict[str, str] = {}
    patched: dict[str, list[Case]] = {}
    for run in record.runs:
        for case in run.cases:
            if case.probe and run.form == Form.STOCK.value:
                stock[case.probe] = case.got
            elif case.probe:
                patched.setdefault(case.probe, []).append(case)
    found = []
    for name, cases in patched.items():
        rows = [ProbeReport(name, case.patch, stock.get(name, ""), case.got) for case in cases]
        found.append(next((row for row in rows if not row.passes_on_patched), rows[0]))
    return tuple(found)
