"""The results of the hosts, from what Ansible's plugin writes, and the table of them."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Literal

import msgspec
from rich.markup import escape
from rich.table import Table

from build import console

#: Words of ssh, Ansible and uv, in this order, with what they mean.
_MEANINGS = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": "its host key is not the one in known_hosts: another or a new machine",
    "host key is known for": "its host key is not in known_hosts: compare it, then add it, e.g. with ssh-keyscan",
    r"Permission denied \(": "ssh is not let in: a key of the agent or of its configuration must be in authorized_keys",
    "(minimum of|requires) Python|SyntaxError": "its Python is too old: set ansible_python_interpreter to another one",
    "Timed out after|expected time frame": "it hangs: its login or its Python does not answer",
    "Exec format error": "uv is for another architecture: -- -e multiworld_torch_uv=PATH names one for this host's",
    "No space left on device|quota exceeded": "its disk is full: free space there, or name another --prefix",
    "No start of json|MODULE FAILURE": "it does not answer as a module does: its login prints, or Python cannot run",
}
#: The project's own distributions, whose versions are shown.
_OWN = ("torch", "torch-multiworld", "multiworld-torch-overlay")


class Facts(msgspec.Struct, frozen=True):
    """What the module tells of a host; `wanted` is the release that it is to use, once that is made."""

    outcome: Literal["installed", "rolled back", "unchanged", "looked", "would change", "not finished"] = "not finished"
    release: str = ""
    kept: list[str] = []
    versions: dict[str, str] = {}
    doctor: list[dict[str, str]] = []
    wanted: str = ""


class Result(msgspec.Struct):
    """A host: what its tasks told, one after the other, and why it is not as wanted, empty where it is."""

    host: str
    outcome: str = "not finished"
    what: str = "the run ended before its turn"
    facts: Facts = Facts()

    def hear(self, facts: object, outcome: str, why: str) -> None:
        """Take over what one task told; after a failure, nothing."""
        if self.outcome in ("failed", "unreachable"):
            return
        try:
            self.facts = msgspec.convert(msgspec.to_builtins(self.facts) | (facts or {}), Facts)
        except (msgspec.ValidationError, TypeError):
            outcome, why = "failed", "its answer is not that of the module"
        self.outcome = outcome or self.facts.outcome
        if outcome:
            meaning = [meaning for words, meaning in _MEANINGS.items() if re.search(words, why)][:1]
            self.what = clean("\n".join([*meaning, why])) or "it gives no reason"
        elif self.outcome != "not finished":
            self.what = f"it would use {self.facts.wanted}" if self.outcome == "would change" else ""


def read(file: Path) -> list[Result]:
    """Return what became of each host."""
    found: dict[str, Result] = {}
    for line in file.read_bytes().splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):  # a line that a full disk has cut off
            told = json.loads(line)
            found.setdefault(told["host"], Result(told.pop("host"))).hear(**told)
    return list(found.values())


def clean(text: str) -> str:
    """Return the beginning of what a host says, without what a terminal would obey and without frames of Python."""
    said = re.sub(r"Traceback \(most recent.*\n(?:[ \t].*\n)*", "", text.replace("\r", "").strip()[:2000])
    lines = said.splitlines()[:15]
    return "\n".join("".join(char if char.isprintable() else "\ufffd" for char in line) for line in lines)


def table(all_of: list[Result]) -> Table:
    """Return one row for each host."""
    names = [name for name in _OWN if any(name in one.facts.versions for one in all_of)]
    made = console.table("hosts", "host", "outcome", "release", *names, "doctor", "kept")
    for one in all_of:
        checks = [(check.get("verdict"), f"{check.get('name')}: {check.get('found')}") for check in one.facts.doctor]
        fails = "; ".join(words for verdict, words in checks if verdict == "fail")
        notes = sum(verdict == "note" for verdict, _ in checks)
        doctor = f"fails: {fails}" if fails else f"ok, {notes} notes" if one.facts.doctor else ""
        others = "\n".join(name for name in one.facts.kept if name != one.facts.release)
        cells = [one.host, one.facts.release, *(one.facts.versions.get(name, "") for name in names), doctor, others]
        host, *rest = (escape(clean(cell)) or "-" for cell in cells)
        made.add_row(host, f"[{'bold red' if one.what else 'green'}]{one.outcome}[/]", *rest)
    return made


def problems(all_of: list[Result]) -> str:
    """Return the causes of the hosts that are not as wanted."""
    bad = (f"{clean(one.host)}: {one.outcome}: {one.what}" for one in all_of if one.what)
    return "\n".join(text.replace("\n", "\n    ") for text in bad)
