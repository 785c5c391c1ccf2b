"""The server's side of one connection to a hosted store: bytes in, answers out, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias

from multiworld.store.server_data import Limits, Refused, StoreData
from multiworld.store.wire import (
    COUNT,
    MAGIC,
    NONCE,
    NOT_READY,
    NUMBER,
    READY,
    STOP_WAITING,
    WAIT_CANCELED,
    Request,
    sized,
)
from multiworld.transport.greeting import GreetingError, Reason, Role, refusal
from multiworld.transport.handshake import Acceptor

#: yields how many bytes come next and is sent them
Reading: TypeAlias = "Generator[int, bytes, None]"
#: while so many bytes of answers have not been taken, no further request is served
MAX_UNTAKEN_BYTES: Final = 1 << 20


class ServerProtocol:
    """The requests of one connection, served in order; answers that are to be sent gather in ``out``.

    Args:
        secret: that the other side has to prove first; None accepts torch's own clients as well.
        answered: called when a wait ends and ``out`` has its answer, while a request is served; it has to be brief.
    """

    def __init__(self, data: StoreData, limits: Limits, secret: bytes | None, answered: Callable[[], None]) -> None:
        self.out = bytearray()
        self.valid = False
        self._data = data
        self._limits = limits
        self._secret = secret
        self._answered = answered
        self._unread = bytearray()
        self._left = 0
        readers = self._key, self._value, self._number, self._keys, self._pairs, self._nonce
        self._readers: dict[str, Callable[[], Generator[int, bytes, Any]]] = dict(zip("kvnlpb", readers, strict=True))
        self._requests = self._table()
        self._script = self._serve()
        self._need = next(self._script)

    @property
    def missing(self) -> int:
        """The number of bytes that have to come before anything can be done; 0 if there is something to do."""
        return max(0, self._need - len(self._unread))

    @property
    def stuck(self) -> bool:
        """True if answers have to be taken first."""
        return len(self.out) >= MAX_UNTAKEN_BYTES

    def feed(self, data: bytes) -> None:
        """Take ``data`` and serve each whole request; raises ``Refused`` if the connection has to be closed."""
        self._unread += data
        self.go_on()

    def go_on(self) -> None:
        """Serve what is whole, as far as answers are taken; raises as ``feed``."""
        while len(self._unread) >= self._need and not self.stuck:
            chunk = bytes(self._unread[: self._need])
            del self._unread[: self._need]
            self._need = self._script.send(chunk)

    def end(self) -> None:
        self._data.forget(self._released)
        self._script.close()
        self._unread.clear()

    def _serve(self) -> Reading:
        yield from self._first()
        while True:
            self._left = self._limits.request_bytes
            kind = (yield 1)[0]
            if kind not in self._requests:
                raise Refused(f"unknown request {kind}")
            letters, answer = self._requests[kind]
            arguments = []
            for letter in letters:
                arguments.append((yield from self._readers[letter]()))  # noqa: PERF401 - no comprehension can yield
            self.out += answer(*arguments) or b""

    def _first(self) -> Reading:
        first = yield 1
        if first == b"{":
            yield from self._greeting(first)
            first = yield 1
        elif self._secret is not None and first[0] == Request.VALIDATE:
            self.out += refusal(Reason.SECRET, "has a secret, this process has none")
            raise _refused(GreetingError(Reason.SECRET, "has no secret, this process has one"))
        if first[0] != Request.VALIDATE or NONCE.unpack((yield NONCE.size))[0] != MAGIC:
            raise Refused("this is not a client of a store")
        self.valid = True

    def _greeting(self, first: bytes) -> Reading:
        """The greeting of our own clients; what follows it stays unread."""
        acceptor, data = Acceptor(self._secret), first
        try:
            while (turn := acceptor.take(data)).hello is None:
                self.out += turn.send
                data = yield 1
        except GreetingError as error:
            self.out += error.answer
            raise _refused(error) from None
        if turn.hello.role is not Role.STORE:
            self.out += refusal(Reason.REFUSED, "this is a store")
            raise Refused("a greeting that was not for a store")
        self.out += acceptor.accept()

    def _bytes(self, limit: int) -> Generator[int, bytes, bytes]:
        size = COUNT.unpack((yield COUNT.size))[0]
        self._left -= size + COUNT.size
        if size > limit or self._left < 0:
            raise Refused("too large")
        return (yield size) if size else b""

    def _key(self) -> Generator[int, bytes, bytes]:
        return (yield from self._bytes(self._limits.key_bytes))

    def _value(self) -> Generator[int, bytes, bytes]:
        return (yield from self._bytes(self._limits.value_bytes))

    def _number(self) -> Generator[int, bytes, int]:
        return int(NUMBER.unpack((yield NUMBER.size))[0])

    def _length(self) -> Generator[int, bytes, int]:
        count = int(COUNT.unpack((yield COUNT.size))[0])
        if count > self._limits.list_keys:
            raise Refused("too many keys")
        return count

    def _keys(self) -> Generator[int, bytes, list[bytes]]:
        keys = []
        for _ in range((yield from self._length())):
            keys.append((yield from self._key()))  # noqa: PERF401 - no comprehension can yield
        return keys

    def _pairs(self) -> Generator[int, bytes, list[tuple[bytes, bytes]]]:
        pairs = []
        for _ in range((yield from self._length())):
            key = yield from self._key()
            pairs.append((key, (yield from self._value())))
        return pairs

    def _nonce(self) -> Generator[int, bytes, bytes]:
        return (yield NONCE.size)

    def _table(self) -> dict[int, tuple[str, Callable[..., bytes | None]]]:
        """Return the arguments of each request, see ``_readers``, and the function that answers it."""
        data, released = self._data, self._released
        return {
            Request.SET: ("kv", data.set),
            Request.COMPARE_SET: ("kvv", lambda *arguments: sized(data.compare_set(*arguments))),
            Request.GET: ("k", lambda key: sized(data.get(key))),
            Request.ADD: ("kn", lambda key, amount: NUMBER.pack(data.add(key, amount))),
            Request.CHECK: ("l", lambda keys: READY if data.has(keys) else NOT_READY),
            Request.WAIT: ("l", lambda keys: STOP_WAITING if data.wait(keys, released) else None),
            Request.GETNUMKEYS: ("", lambda: NUMBER.pack(len(data))),
            Request.DELETE_KEY: ("k", lambda key: NUMBER.pack(data.delete(key))),
            Request.APPEND: ("kv", data.append),
            Request.MULTI_GET: ("l", lambda keys: self._listed([data.get(key) for key in keys])),
            Request.MULTI_SET: ("p", self._multi_set),
            Request.CANCEL_WAIT: ("", self._cancel_wait),
            Request.PING: ("b", lambda nonce: nonce),
            Request.QUEUE_PUSH: ("kv", data.push),
            Request.QUEUE_POP: ("k", self._pop),
            Request.QUEUE_LEN: ("k", lambda key: NUMBER.pack(data.queued(key))),
            Request.LIST_KEYS: ("", lambda: NUMBER.pack(len(data)) + self._listed(list(data.keys()))),
            Request.BARRIER: ("kn", lambda key, size: STOP_WAITING if data.barrier(key, size, released) else None),
        }

    def _listed(self, values: list[bytes]) -> bytes:
        if sum(map(len, values)) > self._limits.request_bytes:
            raise Refused("the answer is too large")
        return b"".join(map(sized, values))

    def _multi_set(self, pairs: list[tuple[bytes, bytes]]) -> None:
        for key, value in pairs:
            self._data.set(key, value)

    def _cancel_wait(self) -> bytes:
        self._data.forget(self._released)
        return WAIT_CANCELED

    def _pop(self, key: bytes) -> bytes:
        length, value = self._data.pop(key)
        return NUMBER.pack(length) + (sized(value) if length else b"")

    def _released(self) -> None:
        self.out += STOP_WAITING
        self._answered()


def _refused(error: GreetingError) -> Refused:
    return Refused(f"a client that {error.what}", error if error.lasting else None)
