"""The server's side of one connection to a hosted store: bytes in, answers out, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeAlias

from multiworld.net.greeting import GreetingError, Reason, Role, refusal
from multiworld.net.handshake import Acceptor
from multiworld.rendezvous.store_data import Limits, Refused, StoreData
from multiworld.rendezvous.store_wire import (
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

#: yields how many bytes come next and is sent them
Reading: TypeAlias = "Generator[int, bytes, None]"
#: while so many bytes of answers have not been taken, no further request is served
MAX_UNTAKEN_BYTES: Final = 1 << 20


class Talk:
    """The requests of one connection, served in order.

    Args:
        data: the store.
        limits: of a request.
        secret: that the other side has to prove first; None accepts torch's own clients as well.
        answered: called when a wait is over and ``out`` has its answer, while a request is served; it has to be brief.

    Attributes:
        out: answers that are to be sent.
        valid: whether the connection has said what a client says first.
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
        self._handlers: dict[int, Callable[[], Reading]] = {
            Request.SET: self._set, Request.COMPARE_SET: self._compare_set, Request.GET: self._get,
            Request.ADD: self._add, Request.CHECK: self._check, Request.WAIT: self._wait,
            Request.GETNUMKEYS: self._count_keys, Request.DELETE_KEY: self._delete, Request.APPEND: self._append,
            Request.MULTI_GET: self._multi_get, Request.MULTI_SET: self._multi_set,
            Request.CANCEL_WAIT: self._cancel_wait, Request.PING: self._ping, Request.QUEUE_PUSH: self._push,
            Request.QUEUE_POP: self._pop, Request.QUEUE_LEN: self._queued, Request.LIST_KEYS: self._list_keys,
            Request.BARRIER: self._barrier,
        }  # fmt: skip
        self._script = self._serve()
        self._need = next(self._script)

    @property
    def missing(self) -> int:
        """How many bytes have to come before anything more can be done; 0 if there is something to do."""
        return max(0, self._need - len(self._unread))

    @property
    def stuck(self) -> bool:
        """Whether answers have to be taken first."""
        return len(self.out) >= MAX_UNTAKEN_BYTES

    def feed(self, data: bytes) -> None:
        """Take what has come, and serve what is whole.

        Raises:
            Refused: the connection is to be closed.
        """
        self._unread += data
        self.go_on()

    def go_on(self) -> None:
        """Serve what is whole, as far as answers are taken; raises as ``feed``."""
        while len(self._unread) >= self._need and not self.stuck:
            chunk = bytes(self._unread[: self._need])
            del self._unread[: self._need]
            self._need = self._script.send(chunk)

    def end(self) -> None:
        """The connection is closed."""
        self._data.forget(self._released)
        self._script.close()
        self._unread.clear()

    def _serve(self) -> Reading:
        yield from self._first()
        while True:
            self._left = self._limits.request_bytes
            kind = (yield 1)[0]
            handler = self._handlers.get(kind)
            if handler is None:
                raise Refused(f"unknown request {kind}")
            yield from handler()

    def _first(self) -> Reading:
        first = yield 1
        if first == b"{":
            yield from self._greeting(first)
            first = yield 1
        elif self._secret is not None and first[0] == Request.VALIDATE:
            self.out += refusal(Reason.SECRET, "has a secret, this process has none")
            raise _refused(GreetingError(Reason.SECRET, "has no secret, this process has one"))
        if first[0] != Request.VALIDATE or NONCE.unpack((yield NONCE.size))[0] != MAGIC:
            raise Refused("this is no client of a store")
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
            self.out += acceptor.refuse("this is a store")
            raise Refused("a greeting that was not for a store")
        self.out += acceptor.accept()

    # What requests consist of.

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

    # The requests.

    def _set(self) -> Reading:
        key = yield from self._key()
        self._data.set(key, (yield from self._value()))

    def _compare_set(self) -> Reading:
        key = yield from self._key()
        expected = yield from self._value()
        self.out += sized(self._data.compare_set(key, expected, (yield from self._value())))

    def _get(self) -> Reading:
        self.out += sized(self._data.get((yield from self._key())))

    def _add(self) -> Reading:
        key = yield from self._key()
        self.out += NUMBER.pack(self._data.add(key, (yield from self._number())))

    def _check(self) -> Reading:
        self.out += READY if self._data.has((yield from self._keys())) else NOT_READY

    def _wait(self) -> Reading:
        if self._data.wait((yield from self._keys()), self._released):
            self.out += STOP_WAITING

    def _count_keys(self) -> Reading:
        self.out += NUMBER.pack(len(self._data))
        yield from ()

    def _delete(self) -> Reading:
        self.out += NUMBER.pack(self._data.delete((yield from self._key())))

    def _append(self) -> Reading:
        key = yield from self._key()
        self._data.append(key, (yield from self._value()))

    def _multi_get(self) -> Reading:
        values = [self._data.get(key) for key in (yield from self._keys())]
        if sum(map(len, values)) > self._limits.request_bytes:
            raise Refused("the answer is too large")
        self.out += b"".join(map(sized, values))

    def _multi_set(self) -> Reading:
        for _ in range((yield from self._length())):
            yield from self._set()

    def _cancel_wait(self) -> Reading:
        self._data.forget(self._released)
        self.out += WAIT_CANCELED
        yield from ()

    def _ping(self) -> Reading:
        self.out += yield NONCE.size

    def _push(self) -> Reading:
        key = yield from self._key()
        self._data.push(key, (yield from self._value()))

    def _pop(self) -> Reading:
        length, value = self._data.pop((yield from self._key()))
        self.out += NUMBER.pack(length) + (sized(value) if length else b"")

    def _queued(self) -> Reading:
        self.out += NUMBER.pack(self._data.queued((yield from self._key())))

    def _list_keys(self) -> Reading:
        keys = list(self._data.keys())
        if sum(map(len, keys)) > self._limits.request_bytes:
            raise Refused("the answer is too large")
        self.out += NUMBER.pack(len(keys)) + b"".join(map(sized, keys))
        yield from ()

    def _barrier(self) -> Reading:
        key = yield from self._key()
        if self._data.barrier(key, (yield from self._number()), self._released):
            self.out += STOP_WAITING

    def _released(self) -> None:
        self.out += STOP_WAITING
        self._answered()


def _refused(error: GreetingError) -> Refused:
    return Refused(f"a client that {error.what}", error if error.lasting else None)
