"""After a port: build it and let the probes decide, since porting text is not yet porting behaviour."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import structs

from build import paths
from build.console import step
from build.errors import ProbeError, ToolError
from build.pipeline import Request, build_release
from build.porting.between_trees import reports
from build.porting.report import PortReport, ProbeReport, not_needed
from build.series.commits import write_series
from build.wheeltest.environments import Form
from build.wheeltest.results import NAME, Case, TestRecord
from build.wheeltest.suite import prove_release


def prove(report: PortReport, folder: Path, source: Path | None = None) -> tuple[PortReport, ToolError | None]:
    """Build the release a series was ported to, and run its probes on the stock and on the patched wheel.

    Args:
        report: of the port; its `new` is the release.
        folder: `patches/<series>/<release>`, whose reports are written again with what the probes said.
        source: where the release's tree is, default found.

    Returns:
        The report with the probes, and the error that ended the build or its tests, if one did.
    """
    request = Request(report.new, source=source)
    failure: ToolError | None = None
    record: TestRecord | None = None
    try:
        build_release(request)
        record = prove_release(report.new, paths.DIST, multiworld=False)
    except ToolError as error:
        failure = error
        record = _kept(report.new) if isinstance(error, ProbeError) else None
    found = structs.replace(report, probes=probes_of(record) if record else ())
    for patch in not_needed(found.probes):
        step(f"no probe of {patch} fails on the stock wheel: it may no longer be needed")
    keep = [path.name for path in folder.glob("*.patch")]
    write_series(folder, reports(found), keep=keep)
    return found, failure


def _kept(release: str) -> TestRecord | None:
    try:
        return msgspec.json.decode((paths.DIST / release / NAME).read_bytes(), type=TestRecord)
    except (OSError, msgspec.DecodeError):
        return None


def probes_of(record: TestRecord) -> tuple[ProbeReport, ...]:
    stock: dict[str, str] = {}
    patched: dict[str, list[Case]] = {}
    for run in record.runs:
        for case in run.cases:
            if case.probe and run.form == Form.STOCK.value:
                stock[case.probe] = case.got
            elif case.probe:
                patched.setdefault(case.probe, []).append(case)
    return tuple(_probe(cases, stock.get(name, "")) for name, cases in patched.items())


def _probe(cases: list[Case], stock: str) -> ProbeReport:
    found = [ProbeReport(case.probe, case.patch, stock, case.got) for case in cases]
    return next((item for item in found if not item.passes_on_patched), found[0])
