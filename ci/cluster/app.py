"""The command line of `ci/install`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from build.cli import guarded, run
from build.console import console, err_console, note, step
from build.errors import HostsError, PendingError, UsageError
from ci.cluster import inventory, show
from ci.cluster.inventory import Host
from ci.cluster.release import Wanted
from ci.cluster.rollout import Action, Outcome, Plan, Result, Rollout
from ci.cluster.ssh import Way


def install(
    specs: Annotated[list[str] | None, typer.Argument(help="what to install, e.g. torch==2.6.0+cu124.mw5")] = None,
    hosts: Annotated[str, typer.Option(help="hosts as Slurm lists them, e.g. node[01-20]")] = "",
    inventory: Annotated[Path | None, typer.Option(help="file of hosts, plain lines or Ansible's INI form")] = None,
    limit: Annotated[str, typer.Option(help="groups, hosts or patterns of the inventory")] = "",
    requirements: Annotated[Path | None, typer.Option(help="hashed requirements instead of SPECS")] = None,
    index: Annotated[list[str] | None, typer.Option(help="URL of a package index; again for more")] = None,
    wheels: Annotated[Path | None, typer.Option(help="folder of wheels, which are sent to the hosts")] = None,
    prefix: Annotated[
        str, typer.Option(help="folder on the hosts; PREFIX/current is the release in use")
    ] = "~/multiworld",
    after: Annotated[str, typer.Option(help="shell command on each host after the switch")] = "",
    check: Annotated[bool, typer.Option("--check", help="change nothing, tell what would change")] = False,
    status: Annotated[bool, typer.Option("--status", help="change nothing, tell what the hosts run")] = False,
    roll_back: Annotated[bool, typer.Option("--roll-back", help="use the release from before again")] = False,
    again: Annotated[bool, typer.Option("--again", help="install although a host runs the release")] = False,
    parallel: Annotated[int, typer.Option(min=1, help="hosts at once")] = 64,
    timeout: Annotated[float, typer.Option(min=1, help="seconds for each command on a host")] = 1800.0,
    ssh_config: Annotated[Path | None, typer.Option(help="configuration for ssh, as ssh -F")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
) -> None:
    """Install a release on many hosts over ssh, each file checked against its hash.

    A host needs sshd, and Python with venv. Exit status: 0 all hosts are as wanted; 25 some are not; 26 --check found
    hosts that would change; 2 the command line is wrong.
    """
    action = _action(check=check, status=status, roll_back=roll_back)
    wanted = Wanted(tuple(specs or ()), requirements, tuple(index or ()), wheels)
    if action in (Action.INSTALL, Action.CHECK):
        wanted.check()
    chosen = _hosts(hosts, inventory, limit)
    way = Way(ssh_config, timeout + 60)  # the host itself says when a command takes too long
    plan = Plan(action, wanted, way, prefix, after, again, parallel, timeout)
    results = _run(plan, chosen, quiet=as_json)
    names = wanted.named if wanted.specs or requirements else ()
    if as_json:
        sys.stdout.write(json.dumps({"hosts": [result.as_json() for result in results]}, indent=2) + "\n")
    else:
        console.print(show.table(results, names))
    _judge(results)


def _action(*, check: bool, status: bool, roll_back: bool) -> Action:
    if check + status + roll_back > 1:
        raise UsageError("--check, --status and --roll-back exclude each other")
    return Action.CHECK if check else Action.LOOK if status else Action.ROLL_BACK if roll_back else Action.INSTALL


def _hosts(listed: str, path: Path | None, limit: str) -> list[Host]:
    if bool(listed) == bool(path):
        raise UsageError("name the hosts: either --hosts LIST or --inventory FILE")
    if limit and path is None:
        raise UsageError("--limit goes with --inventory")
    found = inventory.read(path, limit) if path else inventory.listed(listed)
    if not found:
        raise UsageError("there are no hosts", remedy="the inventory has none: write one host a line")
    return found


def _run(plan: Plan, hosts: list[Host], *, quiet: bool) -> list[Result]:
    step_of = (lambda host, text: err_console.print(f"{host}: {text}", markup=False)) if quiet else _seen
    if not quiet:
        step(f"{plan.action.value} on {len(hosts)} hosts")
    return asyncio.run(Rollout(plan, step_of).run(hosts))


def _seen(host: str, text: str) -> None:
    note(f"{host}: {text}")


def _judge(results: list[Result]) -> None:
    """Raise an error that names every host that is not as wanted."""
    bad = [result for result in results if not result.outcome.good]
    pending = [result for result in bad if result.outcome is Outcome.PENDING]
    if len(bad) > len(pending):
        raise HostsError(
            f"{len(bad)} of {len(results)} hosts are not as wanted",
            cause=show.problems(results),
            remedy="correct what is named and run the same command again: hosts that are as wanted stay as they are",
        )
    if bad:
        raise PendingError(
            f"{len(bad)} of {len(results)} hosts would change",
            cause=show.problems(results),
            remedy="run the same command without --check",
        )


def _app() -> typer.Typer:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(install)
    return app


def main() -> int:
    """Run the command line and return the exit status."""
    return run(lambda: guarded(_app))
