"""`python -m ci.cluster`, which `ci/install` runs: it composes Ansible's command line, and shows the results."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from build.cli import guarded, only, run
from build.console import console, err_console
from build.errors import HostsError, PendingError, UsageError
from build.wheelhouse import signer
from ci.cluster import results
from ci.cluster.lock import REQUEST, Request
from ci.cluster.results import Result, problems

ANSIBLE = Path(__file__).resolve().parents[1] / "ansible"
#: Seconds that Ansible has to end after Ctrl-C.
_GRACE = 10.0


def install(
    specs: Annotated[list[str] | None, typer.Argument(help="what to install, e.g. torch==2.6.0+cu124.mw5")] = None,
    hosts: Annotated[str, typer.Option(help="hosts as Slurm lists them, e.g. node[01-20]")] = "",
    inventory: Annotated[list[Path] | None, typer.Option(help="an inventory of Ansible's; again for more")] = None,
    limit: Annotated[str, typer.Option(help="groups, hosts or patterns of these")] = "",
    lock: Annotated[Path | None, typer.Option(help="a pylock.toml instead of SPECS")] = None,
    index: Annotated[list[str] | None, typer.Option(help="URL of a package index, the wheelhouse first")] = None,
    wheels: Annotated[Path | None, typer.Option(help="folder of wheels, which are sent to the hosts")] = None,
    key: signer.Key = None,
    identity: signer.Identity = "",
    issuer: signer.Issuer = signer.ISSUER,
    trusted_root: signer.TrustedRoot = None,
    prefix: Annotated[str | None, typer.Option(help="folder on the hosts; ~/multiworld")] = None,
    drain: Annotated[str, typer.Option(help="shell command here before a host's switch, undone by --undrain")] = "",
    undrain: Annotated[str, typer.Option(help="shell command here after a host's switch, failed or not")] = "",
    after: Annotated[str, typer.Option(help="shell command on each host after the switch")] = "",
    check: Annotated[bool, typer.Option("--check", help="change nothing, tell what would change")] = False,
    status: Annotated[bool, typer.Option("--status", help="change nothing, tell what the hosts run")] = False,
    roll_back: Annotated[str, typer.Option(help="name of a kept release, which the hosts use again")] = "",
    again: Annotated[bool, typer.Option("--again", help="make the release anew although it is there")] = False,
    keep: Annotated[int, typer.Option(min=0, help="releases that stay beside the one in use")] = 2,
    serial: Annotated[str, typer.Option(help="hosts, or percent of them, that are finished before the next")] = "100%",
    max_fail: Annotated[int, typer.Option(min=0, max=100, help="percent of failed hosts that ends the rest")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a table")] = False,
) -> None:
    """Install a release on many hosts with Ansible, each file checked against its hash.

    More options of ansible-playbook follow --, e.g. -- --become --forks 8. A host needs sshd and Python.
    Exit status: 0 all hosts are as wanted; 25 some are not; 26 --check found hosts that would change; 2 the command
    line is wrong.
    """
    words = specs or []
    names = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    if bool(names) + bool(lock) + bool(roll_back) + status != 1:
        raise UsageError("name one of these: what to install, --lock, --roll-back or --status")
    if not re.fullmatch("[1-9][0-9]*|([1-9][0-9]?|100)%", serial):
        raise UsageError(f"--serial {serial!r} is no number of hosts, nor a percent of them", remedy="e.g. 5, or 20%")
    believed = signer.named(key, identity, issuer, trusted_root)
    if not names and (believed.name or index or wheels):
        remedy = "name NAME==VERSION instead of --lock, --roll-back or --status, or leave them out"
        raise UsageError("--key, --identity, --index and --wheels are for what is named to install", remedy=remedy)
    asked = Request(tuple(names), tuple(index or ()), str(wheels.resolve()) if wheels else "", believed)
    wanted: dict[str, object] = {"name": lock.stem if lock else asked.named() if names else None, "after": after}
    wanted |= {"lock": lock and str(lock.resolve()), "prefix": prefix, "keep": keep, "again": again, "serial": serial}
    wanted |= {"max_fail": max_fail, "status": status, "roll_back": roll_back, "drain": drain, "undrain": undrain}
    if not (hosts or inventory):
        raise UsageError("name the hosts: --hosts LIST or --inventory FILE")
    with tempfile.TemporaryDirectory(prefix="install-") as folder:
        listed = Path(folder, "hosts.json")
        listed.write_bytes(msgspec.json.encode(from_slurm(hosts) if hosts else {}))
        Path(folder, REQUEST).write_bytes(msgspec.json.encode(asked))
        more = [f"--inventory={source}" for source in ([listed] * bool(hosts) + (inventory or []))]
        more += [f"--limit={limit}"] * bool(limit) + ["--check"] * check
        try:
            _ansible([*more, *words[len(names) :]], {**wanted, "locks": folder}, Path(folder))
        finally:
            found = results.read(Path(folder, "results"))
            if as_json:
                sys.stdout.write(msgspec.json.format(msgspec.json.encode({"hosts": found})).decode() + "\n")
            elif found:
                console.print(results.table(found))
    _judge(found)


def _ansible(words: list[str], variables: dict[str, object], folder: Path) -> None:
    """Run Ansible and tell what it says."""
    given = {f"multiworld_torch_{name}": value for name, value in variables.items() if value is not None}
    env = os.environ | {"ANSIBLE_CONFIG": f"{ANSIBLE}/ansible.cfg", "ANSIBLE_SSH_EXECUTABLE": f"{ANSIBLE}/ssh"}
    # No connection of another run, which ssh knows by the name of the host alone, whatever the configuration.
    env |= {"ANSIBLE_HOME": str(folder), "ANSIBLE_SSH_CONTROL_PATH_DIR": f"{folder}/cp"}
    command = [sys.executable, "-m", "ansible", "playbook", f"{ANSIBLE}/install.yml"]
    # Not on the command line, which others see: hooks may have secrets.
    (folder / "play.json").write_bytes(msgspec.json.encode(given))
    command += [f"--extra-vars=@{folder}/play.json", *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            for line in process.stdout or ():
                err_console.print(results.clean(line.decode("utf-8", "replace")), markup=False)
        except KeyboardInterrupt:
            for end in (process.terminate, process.kill):  # it writes into the folder that goes now
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE)  # the terminal has told Ansible, too
                end()
            raise


def _judge(found: list[Result]) -> None:
    """Raise an error that names every host that is not as wanted."""
    bad = [one for one in found if one.what]
    if not found:
        raise UsageError("there are no hosts", remedy="correct the list, inventory or --limit; Ansible says more above")
    if any(one.outcome != "would change" for one in bad):
        names = ",".join(one.host for one in bad)
        remedy = f"correct what is named, and run the same command again; for these hosts alone with --limit '{names}'"
        raise HostsError(f"{len(bad)} of {len(found)} hosts are not as wanted", cause=problems(found), remedy=remedy)
    if bad:
        remedy = "run the same command without --check"
        raise PendingError(f"{len(bad)} of {len(found)} hosts would change", cause=problems(found), remedy=remedy)


#: Hosts as Slurm lists them, each with or without `USER@`: `node[01-20],login1`.
_NUMBERS = r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]"
#: What begins with a dash would be an option of ssh.
_ITEM = re.compile(rf"(?!-)(?:[\w.:@-]|{_NUMBERS})+")
MOST = 100_000


def expand(text: str) -> list[str]:
    """Return the hosts of a list in its order, each once; a range keeps the leading zeros of its first number.

    Raises:
        UsageError: a part of it is no such list, or has too many hosts.
    """
    found: dict[str, None] = {}
    for item in re.split(r"[,\s]+(?![^\[]*\])", text.strip(", ")):
        parts = [_numbers(part) if part[:1] == "[" else [part] for part in re.split(r"(\[.*?\])", item)]
        if not _ITEM.fullmatch(item) or not 0 < prod(map(len, parts)) <= MOST:
            remedy = f"give a list of at most {MOST} hosts as Slurm writes them, e.g. node[01-20],login1"
            raise UsageError(f"--hosts: {item!r} is not a list of hosts", remedy=remedy)
        found.update(dict.fromkeys(map("".join, product(*parts))))
    return list(found)


def _numbers(brackets: str) -> list[str]:
    """Return the numbers of ranges: none if one of these is empty, one too many if one is too long."""
    ends = [(first, int(first), int(last or first)) for first, last in re.findall(r"(\d+)(?:-(\d+))?", brackets)]
    if any(last < first for _, first, last in ends):
        return []
    return [str(number).zfill(len(text)) for text, *of in ends for number in range(of[0], of[1] + 1)[: MOST + 1]]


def from_slurm(text: str) -> dict[str, object]:
    """Return Ansible's inventory of a list."""
    hosts: dict[str, dict[str, str]] = {}
    for name in expand(text):
        user, _, address = name.rpartition("@")
        hosts[name] = {"ansible_host": address} | ({"ansible_user": user} if user else {})
    return {"all": {"hosts": hosts}}


if __name__ == "__main__":
    sys.exit(run(lambda: guarded(only(install))))
