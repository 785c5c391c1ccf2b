"""The results of the hosts, from the events that Ansible's plugin writes, and the table of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Literal

import msgspec
from msgspec.structs import replace
from rich.markup import escape
from rich.table import Table

from build import console

_OLD = "its Python is too old: name another, ansible_python_interpreter, in the inventory"
_NOISE = "it does not answer as a module does: its login prints, or Python cannot run"
_HANGS = "it hangs: its login or its Python does not answer"
#: Words of ssh and Ansible, in this order, with what they mean.
_MEANINGS = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": "its host key is not the one in known_hosts: another or a new machine",
    "host key is known for": "its host key is not in known_hosts: compare it, then add it, e.g. with ssh-keyscan",
    "Permission denied (": "ssh is not let in: a key of the agent or of --ssh-config must be in authorized_keys there",
    "requires a minimum of Python": _OLD,
    "SyntaxError": _OLD,
    "Timed out after": _HANGS,
    "expected time frame": _HANGS,
    "No start of json char found": _NOISE,
    "MODULE FAILURE": _NOISE,
}
#: The project's own distributions, whose versions are shown.
_OWN = ("torch", "torch-multiworld", "multiworld-torch-overlay")


_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


class Outcome(Enum):
    """What became of a host; the first four are as wanted."""

    INSTALLED = "installed"
    ROLLED_BACK = "rolled back"
    UNCHANGED = "unchanged"
    LOOKED = "looked"
    PENDING = "would change"
    STOPPED = "not finished"
    FAILED = "failed"
    LOST = "lost"
    UNREACHABLE = "unreachable"

    @property
    def good(self) -> bool:
        return self in list(Outcome)[:4]


class Host(msgspec.Struct, frozen=True):
    """What the module tells of a host; `wanted` is the release that it is to use, once that is made."""

    release: str
    kept: list[str]
    versions: dict[str, str]
    doctor: dict[str, list[str]] = {}
    wanted: str = ""


class Event(msgspec.Struct, frozen=True):
    """The end of one task of a host."""

    name: str
    event: Literal["begun", "ok", "failed", "unreachable"]
    why: str = ""
    host: Host | None = None


class Result(msgspec.Struct):
    """One host's end: what the module told first and last, and why it failed."""

    host: str
    outcome: Outcome = Outcome.STOPPED
    what: str = "the run ended before its turn"
    first: Host | None = None
    last: Host = Host("", [], {})

    def hear(self, event: Event) -> None:
        """Take over one event; after a failure, none."""
        if self.outcome is not Outcome.STOPPED:
            return
        if event.event in ("failed", "unreachable"):
            lost = Outcome.UNREACHABLE if self.first is None else Outcome.LOST
            self.outcome = Outcome.FAILED if event.event == "failed" else lost
            meaning = [meaning for words, meaning in _MEANINGS.items() if words in event.why][:1]
            self.what = clean("\n".join([*meaning, event.why])) or "it gives no reason"
        if event.host is not None:
            last, now = self.last, event.host
            self.last = replace(now, doctor=now.doctor or last.doctor, wanted=now.wanted or last.wanted)
            self.first = self.first or now

    def end(self, done: Outcome, *, dry: bool) -> None:
        """Judge a host without a failure; `done` is the outcome of one that has changed."""
        wanted = self.last.wanted
        if self.outcome is not Outcome.STOPPED or self.first is None or not (wanted or done is Outcome.LOOKED):
            return
        if dry and wanted != self.first.release:
            self.outcome, self.what = Outcome.PENDING, f"it would use {wanted}"
        elif done is Outcome.LOOKED or wanted == self.last.release:
            same = done is not Outcome.LOOKED and wanted == self.first.release
            self.outcome, self.what = Outcome.UNCHANGED if same else done, ""


def clean(text: str) -> str:
    """Return the beginning of what a host says, without what a terminal would obey and without frames of Python."""
    said = re.sub(r"Traceback \(most recent.*\n(?:[ \t].*\n)*", "", text.replace("\r", "").strip()[:2000])
    lines = said.splitlines()[:15]
    return "\n".join("".join(char if char.isprintable() else _UNPRINTABLE for char in line) for line in lines)


def results(lines: Iterable[bytes], done: Outcome, *, dry: bool) -> list[Result]:
    """Return one result for each host that Ansible knew."""
    found: dict[str, Result] = {}
    for line in lines:
        try:
            event = msgspec.json.decode(line, type=Event)
        except msgspec.ValidationError:
            event = Event(str(msgspec.json.decode(line)["name"]), "failed", "its answer is not that of the module")
        found.setdefault(event.name, Result(event.name)).hear(event)
    for result in found.values():
        result.end(done, dry=dry)
    return list(found.values())


def table(all_of: Sequence[Result]) -> Table:
    """Return one row for each host."""
    names = [name for name in _OWN if any(name in one.last.versions for one in all_of)]
    made = console.table("hosts", "host", "outcome", "release", *names, "doctor", "kept")
    for one in all_of:
        fails, notes = one.last.doctor.get("fail", []), one.last.doctor.get("note", [])
        doctor = f"fails: {'; '.join(fails)}" if fails else f"ok, {len(notes)} notes" if one.last.doctor else ""
        others = "\n".join(name for name in one.last.kept if name != one.last.release)
        cells = [one.host, one.last.release, *(one.last.versions.get(name, "") for name in names), doctor, others]
        host, *rest = (escape(clean(cell)) or "-" for cell in cells)
        made.add_row(host, f"[{'green' if one.outcome.good else 'bold red'}]{one.outcome.value}[/]", *rest)
    return made


def problems(all_of: Sequence[Result]) -> str:
    """Return the causes of the hosts that are not as wanted."""
    bad = (f"{clean(one.host)}: {one.outcome.value}: {one.what}" for one in all_of if not one.outcome.good)
    return "\n".join(text.replace("\n", "\n    ") for text in bad)
