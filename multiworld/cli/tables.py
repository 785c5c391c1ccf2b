"""Reports as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from multiworld.cli.nccl_checks import Check
    from multiworld.lab.bench.report import BenchReport
    from multiworld.lab.chaos.plan import Plan
    from multiworld.lab.chaos.report import ChaosReport
    from multiworld.worlds.status import ProcessStatus

_STATES = {"active": "green", "broken": "bold red", "closed": "dim"}
_COLOURS = {"ok": "green", "note": "yellow", "fail": "bold red", "missed": "bold red"}


def verdict_text(verdict: str) -> Text:
    return Text(verdict, style=_COLOURS.get(verdict, ""))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def doctor_table(checks: Sequence[Check]) -> Table:
    table = _table("multiworld doctor", "check", "verdict", "found", "what to do")
    for check in checks:
        table.add_row(check.name, verdict_text(check.verdict.value), Text(check.found), Text(check.remedy))
    return table


def bench_tables(report: BenchReport) -> Iterator[Table]:
    """Measurements, then the figures promised with their verdicts."""
    if report.comparisons:
        columns = "operation", "bytes", "plain p50", "world p50", "plain p99", "world p99", "time ratio [95 % interval]"
        table = _table("worlds against plain torch.distributed, interleaved", *columns)
        for row in report.comparisons:
            plain, world = row.plain_seconds, row.world_seconds
            times = [f"{value * 1e6:,.0f} us" for value in (plain.p50, world.p50, plain.p99, world.p99)]
            table.add_row(row.operation, f"{row.bytes:,}", *times, row.time_ratio.text)
        yield table
    table = _table("figures", "figure", "wanted", "measured", "verdict")
    for figure in report.figures:
        table.add_row(figure.name, figure.wanted, Text(figure.measured), verdict_text(figure.verdict.value))
    yield table
    table = _table("measured on", "what", "value")
    for name, value in report.facts.items():
        table.add_row(name, Text(value))
    yield table


def plan_table(plan: Plan) -> Table:
    table = _table(f"plan of seed {plan.seed}", "at", "fault", "worker", "world", "detail")
    for fault in plan.faults:
        table.add_row(f"{fault.at:6.1f} s", fault.kind.value, str(fault.worker), fault.world or "", fault.detail)
    return table


def chaos_tables(report: ChaosReport) -> Iterator[Table]:
    """Yield what happened, what it cost, and the promises."""
    columns = "at", "fault", "worker", "proof", "noticed by", "first", "last", "all back"
    table = _table(f"faults of seed {report.plan.seed}", *columns)
    for story in report.stories:
        table.add_row(*story.cells())
    yield table
    table = _table("promises of the fault model", "promise", "verdict", "what was seen")
    for promise in report.promises:
        table.add_row(promise.name, verdict_text("ok" if promise.kept else "fail"), Text(promise.seen))
    yield table


def how_to_write(folder: Path) -> Text:
    """Say what a program has to do for its worlds to be shown."""
    return Text(
        "  likely cause: no program has been asked to write its status there\n"
        "  what to do: add to the program\n"
        "      from multiworld.observe.status_file import StatusFile\n"
        f'      with StatusFile(mw, "{folder}"): ...'
    )


def top_view(folder: Path, processes: Sequence[ProcessStatus]) -> Group:
    """The worlds of all processes, and their latest events; what is missing if there is no process."""
    if not processes:
        return Group(Text(f"no process writes its status into {folder}"), how_to_write(folder))
    table = _table("worlds", "pid", "program", "world", "rank", "size", "generation", "state", "lanes", "first cause")
    for process in processes:
        pid = Text(f"{process.pid}{' (silent)' if process.stale else ''}", style="dim" if process.stale else "")
        for world in process.worlds:
            state = Text(world.state, style=_STATES.get(world.state, ""))
            numbers = (str(world.rank), str(world.size), str(world.generation))
            table.add_row(pid, process.name, world.name, *numbers, state, world.lanes, Text(world.failure))
        if not process.worlds:
            table.add_row(pid, process.name, "none", "", "", "", "", "", "")
    events = _table("events", "pid", "event")
    listed = sorted((text, process.pid) for process in processes for text in process.events)
    for text, number in listed[-15:]:  # they begin with their time
        events.add_row(str(number), Text(text))
    return Group(table, events)
