"""The greeting's messages: how two processes say who they are, which protocol they speak, and why they refuse.

Each message is one line of JSON, a flat object, of at most ``MAX_GREETING_BYTES``:

    dialler:  {"multiworld": 2, "role": "lane", "world": ..., "generation": 1, "from": 1, "to": 0, "incarnation": ...}
    acceptor: {"multiworld": 2, "ok": true}      or {"multiworld": 2, "ok": false, "reason": "refused", "why": "..."}

Protocol 1 had no version in its lines, and no secret. ``handshake`` has the order of the lines and the proofs.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from typing import Any, Final

PROTOCOL: Final = 6
#: of one line, its end included
MAX_GREETING_BYTES: Final = 4096
#: what a ``why`` from the other side is cut to
MAX_WHY: Final = 500
_STRING: Final = rb'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_VALUE: Final = rb"(?:" + _STRING + rb"|-?(?:0|[1-9][0-9]{0,17})|true|false)"
_FIELD: Final = rb" *" + _STRING + rb" *: *" + _VALUE + rb" *"
# Unambiguous: input that does not match is refused in time linear in its length, without recursion.
_FLAT_OBJECT: Final = re.compile(rb" *\{(?:" + _FIELD + rb"(?:," + _FIELD + rb"){0,31})?\} *")


#: of a hello, in the order of its attributes
_FIELDS: Final = {"role": str, "world": str, "generation": int, "from": int, "to": int, "incarnation": str}


class Role(enum.Enum):
    """The purpose of a connection."""

    LANE = "lane"  #: data between two members
    CONTROL = "control"  #: why a member ends
    PROBE = "probe"  #: whether a member lives
    PULSE = "pulse"  #: heartbeats
    STORE = "store"  #: requests to a store
    DOOR = "door"  #: a newcomer waits to be taken in
    SIZE = "size"  #: a process was refused that joins with another size


class Reason(enum.Enum):
    """Why a greeting failed."""

    GARBAGE = "garbage"  #: sent something other than a greeting
    VERSION = "version"  #: the other side speaks another protocol
    SECRET = "secret"  # noqa: S105 - a name. One side has no secret, or another one
    SIZE = "size"  #: the other side joins with another size
    REFUSED = "refused"  #: the other side understood, and does not want this connection
    HUNG_UP = "hung-up"  #: the other side closed the connection without an answer


_REMEDIES: Final = {
    Reason.GARBAGE: ("another program listens or connects there", "look at what uses this port"),
    Reason.VERSION: (
        "different versions of multiworld are installed on the members",
        "install the same multiworld on all members",
    ),
    Reason.SECRET: (
        "secret= or MULTIWORLD_SECRET differs between the members, or only one of them has it",
        "give all members the same secret, or none",
    ),
    Reason.SIZE: ("size= differs between the members", "give all members the same size"),
    Reason.REFUSED: ("the member has left, or was replaced", "join again"),
    Reason.HUNG_UP: ("the process ended, or was flooded with connections", "join again"),
}


class GreetingError(ConnectionError):
    """A greeting that did not succeed; the one error of this module's state machines.

    Args:
        reason: its kind.
        what: what happened, one sentence; never with the secret or a proof in it.
        answer: bytes to send before the connection is closed, if any.
        hello: what the other side said it wants, where it got that far; not proven.
    """

    def __init__(self, reason: Reason, what: str, answer: bytes = b"", hello: Hello | None = None) -> None:
        super().__init__(what)
        self.reason = reason
        self.cause, self.remedy = _REMEDIES[reason]
        #: whether the same two processes would fail again
        self.lasting = reason in (Reason.VERSION, Reason.SECRET, Reason.SIZE)
        self.what = what
        self.answer = answer
        self.hello = hello


@dataclass(frozen=True, slots=True)
class Hello:
    """A dialler's description of itself and of its wish; fields that a role does not need keep their defaults.

    Attributes:
        generation: of the world, from 1.
        sender: rank of the dialler, -1 if it is not a member.
        to: rank of the acceptor; of ``Role.SIZE`` the dialler's size.
        incarnation: of the acceptor's claim.
    """

    role: Role
    world: str = ""
    generation: int = 0
    sender: int = -1
    to: int = -1
    incarnation: str = ""

    def fields(self) -> dict[str, str | int]:
        values = self.role.value, self.world, self.generation, self.sender, self.to, self.incarnation
        return dict(zip(_FIELDS, values, strict=True))

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Hello:
        """From the wire; raises ``ValueError`` for a field that is missing or of another type, and for an unknown
        role."""
        role, *rest = (_typed(fields, name, kind) for name, kind in _FIELDS.items())
        made = cls(Role(role), *rest)
        if made.generation < 0 or made.sender < -1 or made.to < -1:
            raise ValueError("a number below 0")
        return made


def _typed(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name} is not of type {kind.__name__}")
    return value


def parsed(line: bytes) -> dict[str, str | int | bool]:
    """A flat JSON object of strings, whole numbers and booleans, at most 32 of them.

    The bytes are checked before a parser sees them: nothing is nested, and numbers are short.

    Raises:
        GreetingError: it is anything else.
    """
    if len(line) > MAX_GREETING_BYTES or _FLAT_OBJECT.fullmatch(line) is None:
        raise GreetingError(Reason.GARBAGE, "sent something other than a greeting")
    try:
        pairs: list[tuple[str, str | int | bool]] = json.loads(line, object_pairs_hook=list)
    except ValueError:  # not UTF-8
        raise GreetingError(Reason.GARBAGE, "sent something other than a greeting") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise GreetingError(Reason.GARBAGE, "sent a greeting with a field twice")
    return fields


def line_of(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def refusal(reason: Reason, why: str) -> bytes:
    """The line that says no, in the words of any protocol: 1 reads ``ok`` and ``why`` only."""
    return line_of({"multiworld": PROTOCOL, "ok": False, "reason": reason.value, "why": why}) + b"\n"


def versions(theirs: object, ours: object) -> str:
    """Return the words of a process with protocol ``ours`` about one with ``theirs``; the subject is before them."""
    return f"speaks protocol {theirs}, this process {ours}: install the same multiworld on all members"
