"""Arguments of the command line; each command is one call into the module that does the work."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from multiworld.errors import MultiWorldError

if TYPE_CHECKING:
    from rich.table import Table

    from multiworld.lab.bench.report import BenchReport
    from multiworld.lab.chaos.report import ChaosReport

app = typer.Typer(
    name="multiworld",
    help="Many fault domains in one process: look, measure, break on purpose.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
# Tables are for wide terminals; what is piped into a file has no width of its own.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
errors = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def _guarded(work: Callable[[], Any]) -> Any:
    """Run ``work``; a mistake of the user's gives a message and exit code 2, not a traceback."""
    try:
        return work()
    except (MultiWorldError, ValueError, OSError) as error:
        errors.print(f"[bold red]multiworld:[/] {escape(str(error))}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print("multiworld: interrupted")
        raise typer.Exit(130) from None


def _progress(text: str) -> None:
    errors.print(f"[cyan]::[/] {text}")


def _print_json(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def _finish(report: BenchReport | ChaosReport, tables: Iterable[Table], as_json: bool) -> NoReturn:
    """Print a report, and exit with 1 if it is not good."""
    if as_json:
        _print_json(asdict(report))
    else:
        for table in tables:
            console.print(table)
    raise typer.Exit(0 if report.good else 1)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check this installation: torch, backends, sockets, limits, and a world of two that breaks and comes back."""
    from multiworld.cli.doctor import examine
    from multiworld.cli.nccl_checks import Verdict
    from multiworld.cli.tables import doctor_table

    checks = _guarded(examine)
    if as_json:
        _print_json({"checks": list(map(asdict, checks))})
    else:
        console.print(doctor_table(checks))
    raise typer.Exit(1 if any(check.verdict is Verdict.FAIL for check in checks) else 0)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and repetitions: about a minute.")] = False,
    only: Annotated[
        str, typer.Option(help="Comma-separated parts: ratios, detection, idle, isolation, rejoin, joins, large.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=3, help="Interleaved rounds per size and operation.")] = 15,
    as_json: Json = False,
) -> None:
    """Measure worlds against plain torch.distributed, interleaved, and judge by the figures that are promised."""
    from multiworld.cli.tables import bench_tables
    from multiworld.lab.bench.run import run

    report = _guarded(lambda: run(quick, list(filter(None, only.split(","))), rounds, _progress))
    _finish(report, bench_tables(report), as_json)


@app.command()
def chaos(
    seed: Annotated[int, typer.Option(help="The same seed gives the same faults.")] = 1,
    minutes: Annotated[float, typer.Option(min=0.05, help="How long faults go on.")] = 2.0,
    workers: Annotated[int, typer.Option(min=3, max=64, help="Worker processes.")] = 5,
    worlds: Annotated[int, typer.Option(min=2, max=256, help="Worlds among them.")] = 6,
    show_plan: Annotated[bool, typer.Option("--plan", help="Print the plan and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Break workers by a seeded plan and report what was noticed, when, by whom, and what it cost the others."""
    from multiworld.cli.tables import chaos_tables, plan_table
    from multiworld.lab.chaos.plan import draw_plan
    from multiworld.lab.chaos.run import play

    plan = _guarded(lambda: draw_plan(seed, minutes * 60, workers, worlds))
    if show_plan:
        _print_json(asdict(plan)) if as_json else console.print(plan_table(plan))
        raise typer.Exit(0)
    report = _guarded(lambda: play(plan, _progress))
    _finish(report, chaos_tables(report), as_json)


@app.command()
def top(
    folder: Annotated[Path, typer.Argument(help="Folder that processes write their status into (StatusFile).")],
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Show the worlds of running processes, live; a pipe or a file gets the view anew after each interval.

    Each process has to write its status into FOLDER. Add to its program:
    with StatusFile(mw, FOLDER): ...  (it is in multiworld.observe.status_file)
    """
    from rich.live import Live

    from multiworld.cli.tables import how_to_write, top_view
    from multiworld.observe.status_file import read_all

    if not folder.is_dir():
        errors.print(f"[bold red]multiworld:[/] {escape(str(folder))} is not a folder\n{how_to_write(folder)}")
        raise typer.Exit(2)
    if once:
        console.print(top_view(folder, read_all(folder)))
        return
    try:
        if console.is_terminal:
            with Live(top_view(folder, read_all(folder)), console=console, screen=True) as live:
                while True:
                    time.sleep(interval)
                    live.update(top_view(folder, read_all(folder)))
        while True:
            console.print(top_view(folder, read_all(folder)))
            time.sleep(interval)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
