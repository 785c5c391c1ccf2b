"""`python -m gpuless --python PATH [--expect stock|patched] [--only ID ...] [--json OUT] [--junit OUT]`.

Probes the torch of another interpreter, prints expected against got, and exits with 1 on any mismatch.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from build.errors import ToolError
from gpuless.catalogue import PROBES
from gpuless.measured import record
from gpuless.model import Form, ProbeResult, Verdict
from gpuless.report import as_json, table, write_junit
from gpuless.runner import chosen, run_probes, runner


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpuless", description=__doc__)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the probed interpreter")
    parser.add_argument("--expect", choices=[f.value for f in Form], default=Form.STOCK.value)
    parser.add_argument("--only", action="append", metavar="ID", choices=[p.id for p in PROBES], help="repeatable")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results to this file as JSON")
    parser.add_argument("--junit", type=Path, metavar="OUT", help="the same as JUnit XML")
    parser.add_argument("--jobs", type=int, default=0, help="probes at once; default: eight per core")
    parser.add_argument("--record", action="store_true", help="write the outcomes of a stock wheel to measured.json")
    parser.add_argument("--list", action="store_true", help="list the probes and exit")
    return parser.parse_args(argv)


@contextmanager
def _shown(console: Console, total: int) -> Iterator[Callable[[ProbeResult], None]]:
    """Yield a function that shows a result: one line each, and on a terminal a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not sys.stdout.isatty(), transient=True) as bar:
        task = bar.add_task("probes", total=total)

        def show(result: ProbeResult) -> None:
            console.print(f"{result.probe.id}: {result.got.value} ({result.verdict.value})", soft_wrap=True)
            bar.advance(task)

        yield show


def _run(options: argparse.Namespace, console: Console) -> tuple[ProbeResult, ...]:
    """Run the probes, and write the requested reports."""
    with runner(options.python) as ready:
        release = ready.subject.release
        probes = chosen(release, options.only)
        console.print(f"{len(probes)} probes on torch {ready.subject.version}, judged as {options.expect}")
        with _shown(console, len(probes)) as show:
            results = run_probes(ready, Form(options.expect), probes, show, options.jobs)
    if options.json:
        options.json.write_text(as_json(results), encoding="utf-8")
    if options.junit:
        write_junit(results, release, options.junit)
    console.print(table(results, f"torch {release}, judged as {options.expect}"))
    return results


def main(argv: list[str] | None = None) -> int:
    """Run the probes; return the exit status."""
    options, console = _arguments(argv), Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    if options.list:
        for probe in PROBES:
            console.print(f"{probe.id:36} {probe.patch.value:13} {probe.title}", soft_wrap=True)
        return 0
    try:
        results = _run(options, console)
    except ToolError as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        console.print("interrupted; all probes have ended")
        return 130
    for name in record(results) if options.record else ():
        console.print(f"not recorded: {name}: the harness failed, not torch", style="red", soft_wrap=True)
    return int(not results or any(r.verdict is Verdict.MISMATCH for r in results))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts `&` commands with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
