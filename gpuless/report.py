"""Showing results: a table for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from rich.table import Table

from gpuless.model import ProbeResult, Verdict

_STYLE: Mapping[Verdict, str] = {
    Verdict.AS_EXPECTED: "green",
    Verdict.MISMATCH: "bold red",
    Verdict.NOT_MEASURED: "yellow",
}


def table(results: Iterable[ProbeResult], title: str) -> Table:
    """Return a table: probe, patch, expected, got, verdict."""
    shown = Table(title=title, caption="backend: nccl (simulated); no GPU, no data between processes")
    for column in ("probe", "patch", "expected", "got", "verdict"):
        shown.add_column(column, no_wrap=column != "probe", overflow="fold")
    shown.add_column("seconds", justify="right")
    for result in results:
        shown.add_row(*row(result), style=_STYLE[result.verdict] if result.verdict is Verdict.MISMATCH else "")
    return shown


def row(result: ProbeResult) -> tuple[str, ...]:
    """Return the cells of one result."""
    expected = result.probe.expected(result.form, result.release)
    style = _STYLE[result.verdict]
    return (
        result.probe.id,
        result.probe.patch.value,
        expected.value if expected else "-",
        result.got.value,
        f"[{style}]{result.verdict.value}[/]",
        f"{result.seconds:.1f}",
    )


def as_json(results: Iterable[ProbeResult]) -> str:
    """Return the results as JSON text, with what each probe observed."""
    return json.dumps([_plain(r) for r in results], indent=1) + "\n"


def _plain(result: ProbeResult) -> dict[str, object]:
    expected = result.probe.expected(result.form, result.release)
    return {
        "probe": result.probe.id,
        "patch": result.probe.patch.value,
        "title": result.probe.title,
        "backend": "nccl (simulated)",
        "release": result.release,
        "form": result.form.value,
        "expected": expected.value if expected else None,
        "got": result.got.value,
        "verdict": result.verdict.value,
        "seconds": round(result.seconds, 2),
        "detail": dict(result.detail),
        "output": result.output if result.verdict is not Verdict.AS_EXPECTED else "",
    }
