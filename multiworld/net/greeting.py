"""The greeting: how two processes learn, before anything else, who they are, which protocol they speak, and that both
know the secret. A state machine without sockets for each side, and ``greet`` for a dialler that may block.

Each message is one line of JSON, a flat object, of at most ``MAX_GREETING_BYTES``:

    dialler:  {"multiworld": 2, "role": "lane", "world": ..., "generation": 1, "from": 1, "to": 0, "incarnation": ...}
    acceptor: {"multiworld": 2, "ok": true}      or {"multiworld": 2, "ok": false, "reason": "refused", "why": "..."}

With a secret the dialler's line has a nonce too, and one more line goes each way:

    acceptor: {"multiworld": 2, "challenge": nonce}
    dialler:  {"proof": HMAC-SHA256(secret, dialler's label, both lines before)}
    acceptor: {"multiworld": 2, "ok": true, "proof": HMAC-SHA256(secret, acceptor's label, all lines before)}

Both nonces and every field are in the lines that the proofs cover. The dialler proves first: a stranger gets nothing
that it could try passwords on. Each side has its own label, so that no proof can be sent back to whoever made it.
Protocol 1 had no version in its lines, and no secret.
"""

from __future__ import annotations

import enum
import hmac
import json
import re
import secrets
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from multiworld.config import NetworkSettings

PROTOCOL: Final = 3
#: of one line, its end included
MAX_GREETING_BYTES: Final = 4096
#: what a ``why`` from the other side is cut to
MAX_WHY: Final = 500
_NONCE_BYTES: Final = 16
_DIALLER_LABEL: Final = b"multiworld greeting 2, dialler\n"
_ACCEPTOR_LABEL: Final = b"multiworld greeting 2, acceptor\n"

# What either side says of the other one.
_OTHER_HAS: Final = "has a secret, this process has none"
_OTHER_LACKS: Final = "has no secret, this process has one"
_OTHER_DIFFERS: Final = "has another secret than this process"

_STRING: Final = rb'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_VALUE: Final = rb"(?:" + _STRING + rb"|-?(?:0|[1-9][0-9]{0,17})|true|false)"
_FIELD: Final = rb" *" + _STRING + rb" *: *" + _VALUE + rb" *"
# No two ways to read anything: what does not match is refused in time linear in its length, without recursion.
_FLAT_OBJECT: Final = re.compile(rb" *\{(?:" + _FIELD + rb"(?:," + _FIELD + rb"){0,31})?\} *")


class Role(enum.Enum):
    """What a connection is for."""

    LANE = "lane"  #: data between two members
    CONTROL = "control"  #: why a member ends
    PROBE = "probe"  #: whether a member lives
    PULSE = "pulse"  #: heartbeats
    STORE = "store"  #: requests to a store


class Reason(enum.Enum):
    """Why a greeting failed."""

    GARBAGE = "garbage"  #: what came is no greeting
    VERSION = "version"  #: the other side speaks another protocol
    SECRET = "secret"  # noqa: S105 - a name. One side has no secret, or another one
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
    Reason.REFUSED: ("the member has left, or was replaced", "join again"),
    Reason.HUNG_UP: ("the process ended, or was flooded with connections", "join again"),
}


class GreetingError(ConnectionError):
    """A greeting that did not succeed; the one error of this module's state machines.

    Args:
        reason: of which kind.
        what: what happened, one sentence; never with the secret or a proof in it.
        answer: bytes to send before the connection is closed, if any.
        hello: what the other side said it wants, where it got that far; not proven.
    """

    def __init__(self, reason: Reason, what: str, answer: bytes = b"", hello: Hello | None = None) -> None:
        super().__init__(what)
        self.reason = reason
        self.what = what
        self.answer = answer
        self.hello = hello

    @property
    def cause(self) -> str:
        """The likely cause."""
        return _REMEDIES[self.reason][0]

    @property
    def remedy(self) -> str:
        """What to do."""
        return _REMEDIES[self.reason][1]

    @property
    def lasting(self) -> bool:
        """Whether the same two processes would fail again."""
        return self.reason in (Reason.VERSION, Reason.SECRET)


@dataclass(frozen=True, slots=True)
class Hello:
    """What a dialler says of itself and wants; fields that a role does not need keep their defaults.

    Attributes:
        role: what the connection is for.
        world: name of the world.
        generation: of the world, from 1.
        sender: rank of the dialler, -1 if it is not a member.
        to: rank of the acceptor.
        incarnation: of the acceptor's claim.
    """

    role: Role
    world: str = ""
    generation: int = 0
    sender: int = -1
    to: int = -1
    incarnation: str = ""

    def fields(self) -> dict[str, str | int]:
        """As on the wire."""
        return {
            "role": self.role.value, "world": self.world, "generation": self.generation,
            "from": self.sender, "to": self.to, "incarnation": self.incarnation,
        }  # fmt: skip

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Hello:
        """From the wire.

        Raises:
            ValueError: a field is missing, of another type, or no role of ours.
        """
        made = cls(
            Role(_typed(fields, "role", str)), _typed(fields, "world", str), _typed(fields, "generation", int),
            _typed(fields, "from", int), _typed(fields, "to", int), _typed(fields, "incarnation", str),
        )  # fmt: skip
        if made.generation < 0 or made.sender < -1 or made.to < -1:
            raise ValueError("a number below 0")
        return made


def _typed(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name} is no {kind.__name__}")
    return value


def parsed(line: bytes) -> dict[str, str | int | bool]:
    """A flat JSON object of strings, whole numbers and booleans, at most 32 of them.

    The bytes are checked before a parser sees them: nothing is nested, and no number is long.

    Raises:
        GreetingError: it is anything else.
    """
    if len(line) > MAX_GREETING_BYTES or _FLAT_OBJECT.fullmatch(line) is None:
        raise GreetingError(Reason.GARBAGE, "what came is no greeting")
    try:
        pairs: list[tuple[str, str | int | bool]] = json.loads(line, object_pairs_hook=list)
    except ValueError:  # not UTF-8
        raise GreetingError(Reason.GARBAGE, "what came is no greeting") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise GreetingError(Reason.GARBAGE, "a greeting that says something twice")
    return fields


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def _proof(secret: bytes, label: bytes, *lines: bytes) -> str:
    """Proof that whoever made it knows the secret; no line holds the separator."""
    return hmac.new(secret, label + b"\n".join(lines), "sha256").hexdigest()


def _nonce_of(fields: dict[str, Any], name: str) -> bool:
    """Whether there is a nonce that is long enough."""
    value = fields.get(name)
    return isinstance(value, str) and len(value) >= 2 * _NONCE_BYTES


def refusal(reason: Reason, why: str) -> bytes:
    """The line that says no, in the words of any protocol: 1 reads ``ok`` and ``why`` only."""
    return _line({"multiworld": PROTOCOL, "ok": False, "reason": reason.value, "why": why}) + b"\n"


def versions(theirs: object, ours: object) -> str:
    """What a process with protocol ``ours`` says of one with ``theirs``; the subject is before it."""
    return f"speaks protocol {theirs}, this process {ours}: install the same multiworld on all members"


class _Lines:
    """Cuts what comes into lines, and keeps no more than one of them."""

    def __init__(self) -> None:
        self._said = bytearray()

    def take(self, data: bytes) -> tuple[bytes | None, bytes]:
        """The line that ``data`` completes, without its end, and what follows it; None if it is not whole yet.

        Raises:
            GreetingError: a line is too long.
        """
        head, end, rest = data.partition(b"\n")
        if len(self._said) + len(head) + 1 > MAX_GREETING_BYTES:
            raise GreetingError(Reason.GARBAGE, f"a greeting of more than {MAX_GREETING_BYTES} bytes")
        self._said += head
        if not end:
            return None, b""
        line = bytes(self._said)
        self._said.clear()
        return line, rest


@dataclass(frozen=True, slots=True)
class Turn:
    """What to do after the other side has said something.

    Attributes:
        send: bytes to send now.
        hello: what the dialler wants, once it is proven where a secret is set: accept or refuse it.
    """

    send: bytes = b""
    hello: Hello | None = None


class Acceptor:
    """The side that is dialled: feed it what comes, send what it returns, then ``accept`` or ``refuse``.

    Args:
        secret: that the dialler has to know; None if there is none.
    """

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._lines = _Lines()
        self._hello: Hello | None = None
        self._introduction_over = False
        self._transcript: list[bytes] = []

    def take(self, data: bytes) -> Turn:
        """Go on with bytes of the dialler, however they are cut.

        Raises:
            GreetingError: it failed; send its ``answer`` and close the connection.
        """
        line, rest = self._lines.take(data)
        if line is None:
            return Turn()
        if rest or self._introduction_over:
            raise GreetingError(Reason.GARBAGE, "said more before it was answered", hello=self._hello)
        fields = parsed(line)
        self._transcript.append(line)
        return self._take_hello(fields) if self._hello is None else self._take_proof(fields)

    def accept(self) -> bytes:
        """Say yes; the last line of the greeting."""
        fields: dict[str, Any] = {"multiworld": PROTOCOL, "ok": True}
        if self._secret is not None:
            fields["proof"] = _proof(self._secret, _ACCEPTOR_LABEL, *self._transcript)
        return _line(fields) + b"\n"

    def refuse(self, why: str) -> bytes:
        """Say no; ``why`` is for people. The connection is to be closed after it."""
        return refusal(Reason.REFUSED, why)

    def _take_hello(self, fields: dict[str, Any]) -> Turn:
        self._check_version(fields)
        try:
            self._hello = hello = Hello.of(fields)
        except ValueError as error:
            raise GreetingError(Reason.GARBAGE, f"a hello that cannot be right: {error}") from None
        if self._secret is None:
            if "nonce" in fields:
                raise self._refused(_OTHER_HAS, _OTHER_LACKS)
            return self._introduced(hello)
        if not _nonce_of(fields, "nonce"):
            raise self._refused(_OTHER_LACKS, _OTHER_HAS)
        challenge = _line({"multiworld": PROTOCOL, "challenge": secrets.token_hex(_NONCE_BYTES)})
        self._transcript.append(challenge)
        return Turn(challenge + b"\n")

    def _take_proof(self, fields: dict[str, Any]) -> Turn:
        assert self._secret is not None  # noqa: S101 - for the type checker: without one there is one line only
        wanted = _proof(self._secret, _DIALLER_LABEL, *self._transcript[:-1])
        given = fields.get("proof") if len(fields) == 1 else None
        if not isinstance(given, str) or not hmac.compare_digest(wanted.encode(), given.encode(errors="replace")):
            raise self._refused(_OTHER_DIFFERS, _OTHER_DIFFERS)
        return self._introduced(self._hello)

    def _introduced(self, hello: Hello | None) -> Turn:
        self._introduction_over = True
        return Turn(hello=hello)

    def _check_version(self, fields: dict[str, Any]) -> None:
        theirs = fields.get("multiworld", 1 if "role" in fields else None)
        if type(theirs) is not int:
            raise GreetingError(Reason.GARBAGE, "what came is no greeting")
        if theirs != PROTOCOL:
            answer = refusal(Reason.VERSION, versions(PROTOCOL, theirs))
            raise GreetingError(Reason.VERSION, versions(theirs, PROTOCOL), answer, _hello_or_none(fields))

    def _refused(self, what: str, why: str) -> GreetingError:
        """The error for secrets that do not fit; ``why`` is what the other side says of us then."""
        return GreetingError(Reason.SECRET, what, refusal(Reason.SECRET, why), self._hello)


def _hello_or_none(fields: dict[str, Any]) -> Hello | None:
    try:
        return Hello.of({"from": -1, **fields})  # protocol 1's probes do not say who asks
    except ValueError:
        return None


class Dialler:
    """The side that dials: send ``begin()``, feed it what comes, send what it returns, until it is ``done``.

    Args:
        hello: who we are and what we want.
        secret: that the acceptor has to know; None if there is none.

    Attributes:
        done: True once the acceptor has said yes.
        rest: bytes that came after the greeting, for whoever uses the connection next.
    """

    def __init__(self, hello: Hello, secret: bytes | None) -> None:
        self.done = False
        self.rest = b""
        self._secret = secret
        self._lines = _Lines()
        fields: dict[str, Any] = {"multiworld": PROTOCOL, **hello.fields()}
        if secret is not None:
            fields["nonce"] = secrets.token_hex(_NONCE_BYTES)
        self._transcript = [_line(fields)]

    def begin(self) -> bytes:
        """The first line."""
        return self._transcript[0] + b"\n"

    def take(self, data: bytes) -> bytes:
        """Go on with bytes of the acceptor, however they are cut; what to send now.

        Raises:
            GreetingError: it failed; close the connection.
        """
        line, rest = self._lines.take(data)
        if line is None:
            return b""
        fields = parsed(line)
        if fields.get("ok") is False:
            raise _said_no(fields)
        self._check_version(fields)
        if "challenge" in fields and not rest:
            return self._answer(line, fields)
        self._finish(fields)
        self.rest = rest
        return b""

    def _answer(self, line: bytes, fields: dict[str, Any]) -> bytes:
        if self._secret is None:
            raise GreetingError(Reason.SECRET, _OTHER_HAS)
        if len(self._transcript) > 1 or not _nonce_of(fields, "challenge"):
            raise GreetingError(Reason.GARBAGE, "answered with something else than a greeting")
        self._transcript.append(line)
        proof = _line({"proof": _proof(self._secret, _DIALLER_LABEL, *self._transcript)})
        self._transcript.append(proof)
        return proof + b"\n"

    def _finish(self, fields: dict[str, Any]) -> None:
        if fields.get("ok") is not True:
            raise GreetingError(Reason.GARBAGE, "answered with something else than a greeting")
        if self._secret is not None:
            given = fields.get("proof")
            wanted = _proof(self._secret, _ACCEPTOR_LABEL, *self._transcript)
            asked = len(self._transcript) > 1  # else it has said yes without a challenge, and its proof covers nothing
            if not asked or not isinstance(given, str):
                raise GreetingError(Reason.SECRET, "did not ask for the secret that this process has")
            if not hmac.compare_digest(wanted.encode(), given.encode(errors="replace")):
                raise GreetingError(Reason.SECRET, _OTHER_DIFFERS)
        self.done = True

    def _check_version(self, fields: dict[str, Any]) -> None:
        theirs = fields.get("multiworld", 1 if "ok" in fields else None)
        if type(theirs) is not int:
            raise GreetingError(Reason.GARBAGE, "answered with something else than a greeting")
        if theirs != PROTOCOL:
            raise GreetingError(Reason.VERSION, versions(theirs, PROTOCOL))


def _said_no(fields: dict[str, Any]) -> GreetingError:
    """The error for a refusal. One of protocol 1 is an ordinary one: it does not look at versions."""
    try:
        reason = Reason(fields.get("reason"))
    except ValueError:
        reason = Reason.REFUSED
    theirs = fields.get("multiworld", 1)
    why = str(fields.get("why", "refused"))[:MAX_WHY]
    if reason is Reason.VERSION and type(theirs) is int:
        why = versions(theirs, PROTOCOL)
    return GreetingError(reason, why)


def greet(sock: socket.socket, hello: Hello, settings: NetworkSettings, timeout: float) -> None:
    """Greet as the dialler, and return once the other side has said yes; blocks. Nothing of what follows is read.

    Args:
        sock: connected; its own timeout is afterwards as before.
        hello: who we are and what we want.
        settings: with our secret, if there is one.
        timeout: seconds that the whole greeting may take, however slowly the other side speaks.

    Raises:
        GreetingError: refused, or it is no peer of ours.
        TimeoutError: not done in time.
        OSError: the connection failed.
    """
    until = time.monotonic() + timeout
    before = sock.gettimeout()
    dialler = Dialler(hello, settings.secret)
    reply = dialler.begin()
    while not dialler.done:
        if reply:
            sock.settimeout(_left(until))
            sock.sendall(reply)
        reply = dialler.take(_heard(sock, until))
    sock.settimeout(before)


def _heard(sock: socket.socket, until: float) -> bytes:
    """Some bytes, none of them after the end of a line."""
    sock.settimeout(_left(until))
    seen = sock.recv(MAX_GREETING_BYTES, socket.MSG_PEEK)
    if not seen:
        raise GreetingError(Reason.HUNG_UP, "hung up before it answered")
    return sock.recv(seen.find(b"\n") + 1 or len(seen))


def _left(until: float) -> float:
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds
