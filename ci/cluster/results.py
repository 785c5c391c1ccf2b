"""The results of the hosts, from the events that Ansible's plugin writes, and the table of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec
from rich.markup import escape
from rich.table import Table

#: Words of ssh and Ansible, in this order, with what they mean.
_MEANINGS = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": "its host key is not the one in known_hosts: another or a new machine",
    "host key is known for": "its host key is not in known_hosts: compare it, then add it, e.g. with ssh-keyscan",
    "Permission denied (": "ssh is not let in: a key of the agent or of --ssh-config must be in authorized_keys there",
    "requires a minimum of Python": "its Python is too old: name another, ansible_python_interpreter, in the inventory",
    "Timed out after": "it hangs: its login or its Python does not answer",
    "expected time frame": "it hangs: its login or its Python does not answer",
    "SyntaxError": "its Python is too old: name another, ansible_python_interpreter, in the inventory",
    "No start of json char found": "it does not answer as a module does: its login prints, or Python cannot run",
}
#: The project's own distributions, whose versions are shown.
_OWN = ("torch", "torch-multiworld", "multiworld-torch-overlay")


class Outcome(Enum):
    """What became of a host."""

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
        return self in (Outcome.INSTALLED, Outcome.ROLLED_BACK, Outcome.UNCHANGED, Outcome.LOOKED)


class Found(msgspec.Struct, frozen=True):
    """The release that a host uses, those that it can be rolled back to, the versions in use."""

    release: str = ""
    kept: list[str] = []
    versions: dict[str, str] = {}


class Event(msgspec.Struct, frozen=True):
    """The end of one task of a host; `release` is the one that it is to use."""

    name: str
    event: str
    host: Found | None = None
    doctor: dict[str, list[str]] = {}
    release: str | None = None
    msg: str = ""
    stderr: str = ""
    module_stderr: str = ""
    module_stdout: str = ""

    @property
    def why(self) -> str:
        said = "\n".join(filter(None, (self.msg, self.stderr, self.module_stderr, self.module_stdout)))
        meaning = [meaning for words, meaning in _MEANINGS.items() if words in said][:1]
        return clean("\n".join([*meaning, said])) or "it gives no reason"


class Result(msgspec.Struct):
    """One host's end: what it used before, what it is to use, and why that failed."""

    host: str
    outcome: Outcome = Outcome.STOPPED
    before: str | None = None
    wanted: str | None = None
    found: Found = Found()
    doctor: dict[str, list[str]] = {}
    what: str = ""

    def hear(self, event: Event) -> None:
        """Take over one event; the first failure stays."""
        if event.event in ("failed", "unreachable") and not self.what:
            lost = Outcome.UNREACHABLE if self.before is None else Outcome.LOST
            self.outcome, self.what = Outcome.FAILED if event.event == "failed" else lost, event.why
        if event.host is not None:
            self.found, self.doctor = event.host, event.doctor or self.doctor
            self.before = event.host.release if self.before is None else self.before
            self.wanted = self.wanted if event.release is None else event.release

    def end(self, done: Outcome, *, dry: bool) -> None:
        """Judge a host without a failure; `done` is the outcome of one that has changed."""
        if self.what or self.before is None:
            self.what = self.what or "the run ended before its turn"
        elif done is Outcome.LOOKED:
            self.outcome = done
        elif self.wanted == self.before:
            self.outcome = Outcome.UNCHANGED
        elif dry and self.wanted:
            self.outcome, self.what = Outcome.PENDING, f"it would use {self.wanted}"
        elif self.wanted and self.wanted == self.found.release:
            self.outcome = done
        else:
            self.what = "the run ended before the switch"


def clean(text: str) -> str:
    """Return the beginning of what a host says, without what a terminal would obey."""
    lines = text.strip()[:2000].splitlines()[:15]
    return "\n".join(
        "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line) for line in lines
    )


def results(lines: Iterable[bytes], done: Outcome, *, dry: bool) -> list[Result]:
    """Return one result for each host that Ansible knew."""
    found: dict[str, Result] = {}
    for line in lines:
        try:
            event = msgspec.json.decode(line, type=Event)
        except msgspec.ValidationError:
            event = Event(str(msgspec.json.decode(line)["name"]), "failed", msg="its answer is not that of the module")
        found.setdefault(event.name, Result(event.name)).hear(event)
    for result in found.values():
        result.end(done, dry=dry)
    return list(found.values())


def table(all_of: Sequence[Result]) -> Table:
    """Return one row for each host."""
    names = [name for name in _OWN if any(name in one.found.versions for one in all_of)]
    made = Table(title="hosts", title_justify="left")
    for column in ("host", "outcome", "release", *names, "doctor", "kept"):
        made.add_column(column, overflow="fold")
    for one in all_of:
        style, others = (
            "green" if one.outcome.good else "bold red",
            [name for name in one.found.kept if name != one.found.release],
        )
        cells = [
            one.found.release,
            *(one.found.versions.get(name, "") for name in names),
            _doctor(one),
            "\n".join(others),
        ]
        made.add_row(_cell(one.host), f"[{style}]{one.outcome.value}[/]", *map(_cell, cells))
    return made


def _cell(text: str) -> str:
    return escape(clean(text)) or "-"


def _doctor(result: Result) -> str:
    failing, notes = result.doctor.get("fail", []), result.doctor.get("note", [])
    return f"fails: {'; '.join(failing)}" if failing else f"ok, {len(notes)} notes" if result.doctor else ""


def problems(all_of: Sequence[Result]) -> str:
    """Return the causes of the hosts that are not as wanted."""
    bad = (f"{clean(one.host)}: {one.outcome.value}: {one.what}" for one in all_of if not one.outcome.good)
    return "\n".join(text.replace("\n", "\n    ") for text in bad)
