"""The handshake: a state machine without sockets for each side of a greeting, and ``greet`` for a dialler that blocks.

With a secret the dialler's line has a nonce too, and one more line goes each way:

    acceptor: {"multiworld": 2, "challenge": nonce}
    dialler:  {"proof": HMAC-SHA256(secret, dialler's label, both lines before)}
    acceptor: {"multiworld": 2, "ok": true, "proof": HMAC-SHA256(secret, acceptor's label, all lines before)}

Both nonces and every field are in the lines that the proofs cover. The dialler proves first: a stranger gets nothing
that it could try passwords on. Each side has its own label, so that a proof cannot be sent back to its maker.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from dataclasses import dataclass
from typing import Any, Final

from multiworld.config import NetworkSettings
from multiworld.transport.greeting import (
    MAX_GREETING_BYTES,
    MAX_WHY,
    PROTOCOL,
    GreetingError,
    Hello,
    Reason,
    line_of,
    parsed,
    refusal,
    versions,
)

_NONCE_BYTES: Final = 16
_DIALLER_LABEL: Final = b"multiworld greeting 2, dialler\n"
_ACCEPTOR_LABEL: Final = b"multiworld greeting 2, acceptor\n"

# The words of each side about the other.
_OTHER_HAS: Final = "has a secret, this process has none"
_OTHER_LACKS: Final = "has no secret, this process has one"
_OTHER_DIFFERS: Final = "has another secret than this process"


def _proof(secret: bytes, label: bytes, *lines: bytes) -> str:
    """Proof of knowing the secret; lines do not contain the separator."""
    return hmac.new(secret, label + b"\n".join(lines), "sha256").hexdigest()


def _nonce_of(fields: dict[str, Any], name: str) -> bool:
    """Return whether there is a nonce that is long enough."""
    value = fields.get(name)
    return isinstance(value, str) and len(value) >= 2 * _NONCE_BYTES


class _Lines:
    """Cuts the bytes that arrive into lines, and keeps at most one."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def take(self, data: bytes) -> tuple[bytes | None, bytes]:
        """The line that ``data`` completes, without its end, and what follows it; None if the line is not whole yet."""
        head, end, rest = data.partition(b"\n")
        if len(self._partial) + len(head) + 1 > MAX_GREETING_BYTES:
            raise GreetingError(Reason.GARBAGE, f"sent a greeting of more than {MAX_GREETING_BYTES} bytes")
        self._partial += head
        if not end:
            return None, b""
        line = bytes(self._partial)
        self._partial.clear()
        return line, rest


@dataclass(frozen=True, slots=True)
class Turn:
    """The bytes to ``send`` now. ``hello`` is set once the dialler's wish is known, and proven if there is a secret."""

    send: bytes = b""
    hello: Hello | None = None


class Acceptor:
    """The side that is dialled: feed it what comes, send what it returns, then ``accept`` it or send a ``refusal``."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._lines = _Lines()
        self._hello: Hello | None = None
        self._introduction_over = False
        self._transcript: list[bytes] = []

    def take(self, data: bytes) -> Turn:
        """Go on with bytes of the dialler, however they are cut. After a ``GreetingError`` send its ``answer`` and
        close."""
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
        return line_of(fields) + b"\n"

    def _take_hello(self, fields: dict[str, Any]) -> Turn:
        self._check_version(fields)
        try:
            self._hello = hello = Hello.of(fields)
        except ValueError as error:
            raise GreetingError(Reason.GARBAGE, f"sent an invalid hello: {error}") from None
        if self._secret is None:
            if "nonce" in fields:
                raise self._refused(_OTHER_HAS, _OTHER_LACKS)
            return self._introduced(hello)
        if not _nonce_of(fields, "nonce"):
            raise self._refused(_OTHER_LACKS, _OTHER_HAS)
        challenge = line_of({"multiworld": PROTOCOL, "challenge": secrets.token_hex(_NONCE_BYTES)})
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
            raise GreetingError(Reason.GARBAGE, "sent something other than a greeting")
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
    """The side that dials: send ``begin()``, feed it what comes, send what it returns, until it is ``done``. ``rest``
    is what came after the greeting."""

    def __init__(self, hello: Hello, secret: bytes | None) -> None:
        self.done = False
        self.rest = b""
        self._secret = secret
        self._lines = _Lines()
        fields: dict[str, Any] = {"multiworld": PROTOCOL, **hello.fields()}
        if secret is not None:
            fields["nonce"] = secrets.token_hex(_NONCE_BYTES)
        self._transcript = [line_of(fields)]

    def begin(self) -> bytes:
        return self._transcript[0] + b"\n"

    def take(self, data: bytes) -> bytes:
        """Go on with bytes of the acceptor, however they are cut; what to send now. After a ``GreetingError`` close."""
        line, rest = self._lines.take(data)
        if line is None:
            return b""
        fields = parsed(line)
        if fields.get("ok") is False:
            raise _refusal_from(fields)
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
            raise GreetingError(Reason.GARBAGE, "answered with something other than a greeting")
        self._transcript.append(line)
        proof = line_of({"proof": _proof(self._secret, _DIALLER_LABEL, *self._transcript)})
        self._transcript.append(proof)
        return proof + b"\n"

    def _finish(self, fields: dict[str, Any]) -> None:
        if fields.get("ok") is not True:
            raise GreetingError(Reason.GARBAGE, "answered with something other than a greeting")
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
            raise GreetingError(Reason.GARBAGE, "answered with something other than a greeting")
        if theirs != PROTOCOL:
            raise GreetingError(Reason.VERSION, versions(theirs, PROTOCOL))


def _refusal_from(fields: dict[str, Any]) -> GreetingError:
    """The error for a refusal. One by protocol 1 is an ordinary one, since protocol 1 has no versions."""
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
        reply = dialler.take(_receive(sock, until))
    sock.settimeout(before)


def _receive(sock: socket.socket, until: float) -> bytes:
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
