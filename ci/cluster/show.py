"""The table of hosts: what became of each, and what it runs now."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from ci.cluster.rollout import Outcome, Result

_STYLES = {
    Outcome.INSTALLED: "green",
    Outcome.UNCHANGED: "dim green",
    Outcome.LOOKED: "dim",
    Outcome.ROLLED_BACK: "green",
    Outcome.PENDING: "yellow",
}


def table(results: Sequence[Result], distributions: Sequence[str]) -> Table:
    """Return one row for each host, with the versions of `distributions`."""
    names = list(distributions) or _told(results)
    made = Table(title="hosts", title_justify="left")
    for column in ("host", "outcome", "release", *names, "doctor", "s"):
        made.add_column(column, overflow="fold", justify="right" if column == "s" else "left")
    for result in results:
        style = _STYLES.get(result.outcome, "bold red")
        versions = [escape(result.versions.get(name, "-")) for name in names]
        state = (escape(result.release or "-"), *versions, doctor(result), f"{result.seconds:.1f}")
        made.add_row(escape(result.host), f"[{style}]{result.outcome.value}[/]", *state)
    return made


def _told(results: Sequence[Result]) -> list[str]:
    """Return of the project's own distributions those that any host has."""
    own = ("torch", "torch-multiworld", "multiworld-torch-overlay")
    return [name for name in own if any(name in result.versions for result in results)]


def doctor(result: Result) -> str:
    """Return in words what the doctor finds on a host."""
    if not result.doctor:
        return "-"
    failing, notes = result.doctor.get("fail", []), result.doctor.get("note", [])
    if failing:
        return "[bold red]fails: " + escape("; ".join(failing)) + "[/]"
    return f"ok, {len(notes)} notes" if notes else "ok"


def problems(results: Sequence[Result]) -> str:
    """Return a line for each host that is not as wanted, with its cause indented."""
    lines = []
    for result in results:
        if not result.outcome.good:
            lines.append(f"{result.host}: {result.outcome.value}: {result.what}")
            lines += [f"    {line}" for line in result.cause.splitlines()]
    return "\n".join(lines)
