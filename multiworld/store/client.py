"""A client of a TCP store in Python: torch's protocol, and no wait that cannot be ended.

torch's own client waits in C++ far beyond its timeouts when the store's host is frozen. It aborts the process when it
returns to an interpreter that has ended. This one waits in short steps, for as long as its ``Deadline`` lasts, and
leaves neither thread nor descriptor behind. It has those methods of ``torch.distributed.Store`` that a ledger needs.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from multiworld.config import TcpStoreAddress
from multiworld.store.addresses import Resolved, resolved
from multiworld.store.wire import COUNT, HELLO, KEY_PREFIX, NUMBER, STOP_WAITING, WAIT_CANCELED, Request, request, sized
from multiworld.transport.descriptors import cause_of, descriptor_shortage, system_message
from multiworld.transport.greeting import GreetingError, Hello, Reason, Role
from multiworld.transport.handshake import Dialler
from multiworld.transport.sockets import made

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

#: how often a wait looks at whether it is still wanted, in seconds
STEP_SECONDS: Final = 0.02
#: how long one connection may take until it has answered; then another one is tried
ATTEMPT_SECONDS: Final = 5.0
#: the same for a greeting, where it is not known yet whether the store takes one: one of torch's stays silent
TRIAL_SECONDS: Final = 1.0
#: requests that are sent before their answers are read: both sides' buffers take so many
AT_ONCE: Final = 64
READ_BYTES: Final = 1 << 16
FIRST_PAUSE_SECONDS: Final = 0.01
LONGEST_PAUSE_SECONDS: Final = 0.25
#: a larger answer is not that of a store
MAX_ANSWER_BYTES: Final = 64 << 20
#: no store has so many keys; the first bytes of a refusal, which is text, read as a number, are more
MAX_KEYS: Final = 1 << 48
#: why a store does not answer
SILENT: Final = "its host is stopped, overloaded or cut off, or another program listens at its port"


class StoreFailed(Exception):
    """The store cannot be used, for ``what`` without the store's name. ``remedy`` is None where only the caller can
    say; ``lasting`` if trying again is of no use.
    """

    def __init__(self, what: str, cause: str, remedy: str | None = None, lasting: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.remedy = remedy
        self.lasting = lasting


class Cancelled(Exception):
    """The caller has stopped waiting for the store."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a wait for a store: a monotonic time, or ``STEP_SECONDS`` after ``cancelled`` returns True."""

    until: float
    cancelled: Callable[[], bool] = lambda: False

    def left(self) -> float:
        """The seconds that are left; raises ``Cancelled`` once the caller has given up."""
        if self.cancelled():
            raise Cancelled
        return self.until - time.monotonic()

    def at_most(self, seconds: float) -> Deadline:
        """The same for ``seconds`` from now on, or less."""
        return Deadline(min(self.until, time.monotonic() + seconds), self.cancelled)

    def sleep(self, seconds: float) -> None:
        """Wait ``seconds``; raises ``Cancelled`` once the caller has given up."""
        until = time.monotonic() + seconds
        while (rest := min(until - time.monotonic(), self.left())) > 0:
            time.sleep(min(STEP_SECONDS, rest))


class GreetingMode:
    """The way to speak to the store at one address, found out once: ``greets`` is None until it is known.

    A store of ours asks for the greeting where there is a ``secret``. One of torch's, such as torchrun's, has none: its
    host has to protect it. Its answers show which one it is. Pass None for a store that is known to be torch's.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret = secret
        self.greets: bool | None = None if secret is not None else False


class StoreClient:
    """A connection to a store. For one thread; after any error it is closed. Each call waits until ``deadline``, which
    the caller may replace."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self.deadline = deadline
        self._sock = sock
        self._unread = b""
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        sock.settimeout(STEP_SECONDS)

    @classmethod
    def connect(cls, where: TcpStoreAddress, deadline: Deadline, mode: GreetingMode | None = None) -> Self:
        """A client of the store at ``where``, spoken to as ``mode`` says, tried again and again until it answers.

        Raises:
            StoreFailed: it does not answer in time, it refuses us, or this process cannot connect.
            Cancelled: the caller has stopped waiting.
        """
        mode = mode or GreetingMode()
        pause = FIRST_PAUSE_SECONDS
        for turn in itertools.count():
            greets = turn % 2 == 0 if mode.greets is None else mode.greets
            try:
                client = cls._attempt(where, deadline, mode, greets)
            except (StoreFailed, OSError) as error:
                failed = error if isinstance(error, StoreFailed) else _unreachable(error)
            else:
                mode.greets = greets
                return client
            if failed.lasting or deadline.left() <= pause:
                raise failed
            deadline.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
        raise AssertionError  # for the type checker: the turns do not end

    @classmethod
    def _attempt(cls, where: TcpStoreAddress, deadline: Deadline, mode: GreetingMode, greets: bool) -> Self:
        trial = greets and mode.greets is None
        attempt = deadline.at_most(TRIAL_SECONDS if trial else ATTEMPT_SECONDS)
        client = cls(_connected(resolved(where.host, where.port, attempt.left), attempt), attempt)
        try:
            if greets:
                client._greet(mode.secret)
            client._check_answer(lasting=mode.secret is None)
        except BaseException:
            client.close()
            raise
        client.deadline = deadline
        return client

    def _greet(self, secret: bytes | None) -> None:
        dialler = Dialler(Hello(Role.STORE), secret)
        reply = dialler.begin()
        while not dialler.done:
            if reply:
                self._call(reply)
            reply = dialler.take(self._some())
        if dialler.rest:
            raise GreetingError(Reason.GARBAGE, "said more than a greeting")

    def _check_answer(self, lasting: bool) -> None:
        """Read the first answer: a number of keys, or the refusal of a store that wants to be greeted.

        The first byte does not tell them apart: a number that ends in 123 of 256 begins as a refusal does.
        """
        self._call(HELLO + request(Request.GETNUMKEYS))
        answer = self._take(NUMBER.size)
        if 0 <= NUMBER.unpack(answer)[0] < MAX_KEYS:
            return
        answer += self._unread
        dialler = Dialler(Hello(Role.STORE), None)
        try:
            while not dialler.done:
                dialler.take(answer)
                answer = self._some()
        except GreetingError as error:
            failed = _unreachable(error)
            failed.lasting = failed.lasting and lasting
            raise failed from None
        raise StoreFailed("answers a question that was not asked", "another program listens at its port")

    @property
    def ended(self) -> bool:
        """True if it is closed, here or by the host: between two questions that one says nothing else."""
        return self._sock.fileno() < 0 or bool(self._poll.poll(0))

    def close(self) -> None:
        self._sock.close()

    def __del__(self) -> None:
        self.close()

    def compare_sets(self, swaps: Iterable[tuple[str, str, str]]) -> list[bytes]:
        """Write each desired value if the value is the expected one (empty: if there is none), in order; the values
        that they are now. A swap is a key, the expected and the desired value.

        Where there is no value and one was expected, that one is returned. All calls raise ``StoreFailed`` and
        ``Cancelled``.
        """
        return self._asked(
            (
                request(Request.COMPARE_SET, _key(key), sized(expected.encode()), sized(desired.encode()))
                for key, expected, desired in swaps
            ),
            self._sized,
        )

    def delete_keys(self, keys: Iterable[str]) -> list[bool]:
        """Delete each; whether it was there."""
        requests = (request(Request.DELETE_KEY, _key(key)) for key in keys)
        return [number > 0 for number in self._asked(requests, self._number)]

    def wait(self, keys: Iterable[str], seconds: float) -> bool:
        """Wait until all keys have a value, for ``seconds`` at most; whether they have."""
        asked, until = [*map(_key, keys)], time.monotonic() + seconds
        with self._failing():
            self._call(request(Request.WAIT, COUNT.pack(len(asked)), *asked))
            while not self._poll.poll(max(0.0, min(STEP_SECONDS, until - time.monotonic())) * 1000):
                if self.deadline.left() <= 0 or time.monotonic() >= until:
                    self._call(request(Request.CANCEL_WAIT))
                    break
            else:
                return self._take(1) == STOP_WAITING
            there = self._take(1) == STOP_WAITING  # the two have crossed
            return there and self._take(1) == WAIT_CANCELED

    def _asked(self, requests: Iterable[bytes], answer: Callable[[], T]) -> list[T]:
        """Send some requests at a time, and read their answers."""
        rest, answers = iter(requests), []
        with self._failing():
            while some := list(itertools.islice(rest, AT_ONCE)):
                self._call(b"".join(some))
                answers += [answer() for _ in some]
        return answers

    def num_keys(self) -> int:
        return self._asked([request(Request.GETNUMKEYS)], self._number)[0]

    def _number(self) -> int:
        return int(NUMBER.unpack(self._take(NUMBER.size))[0])

    def _sized(self) -> bytes:
        size = COUNT.unpack(self._take(COUNT.size))[0]
        if size > MAX_ANSWER_BYTES:
            raise StoreFailed("answers, but not as a store does", "another program listens at its port")
        return self._take(size)

    def _call(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except TimeoutError:  # noqa: PERF203 - the socket is full
                self._check_deadline()

    def _take(self, size: int) -> bytes:
        taken = self._unread
        while len(taken) < size:
            taken += self._some()
        self._unread = taken[size:]
        return taken[:size]

    def _some(self) -> bytes:
        while True:
            try:
                data = self._sock.recv(READ_BYTES)
            except TimeoutError:  # noqa: PERF203 - nothing came within STEP_SECONDS
                self._check_deadline()
            else:
                if not data:
                    raise ConnectionResetError("it hung up")
                return data

    def _check_deadline(self) -> None:
        """Go on waiting, or raise ``TimeoutError`` at the deadline, ``Cancelled`` after a cancellation."""
        if self.deadline.left() <= 0:
            raise TimeoutError

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise _unreachable(error) from None
        except BaseException:
            self.close()
            raise


def _key(key: str) -> bytes:
    return sized(KEY_PREFIX + key.encode())


def _await_connection(sock: socket.socket, deadline: Deadline) -> None:
    """Wait until ``sock`` is connected, or cannot be; raises as ``Deadline.left``, or ``TimeoutError`` at its end."""
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    while True:
        left = deadline.left()
        if poll.poll(max(0.0, min(STEP_SECONDS, left)) * 1000):
            return
        if left <= 0:
            raise TimeoutError


def _connected(places: list[Resolved], deadline: Deadline) -> socket.socket:
    if not places:
        raise OSError("the name has no address")
    *others, last = places
    for place in others:
        with contextlib.suppress(OSError):
            return _connected_to(place, deadline)
    return _connected_to(last, deadline)


def _connected_to(place: Resolved, deadline: Deadline) -> socket.socket:
    family, address = place
    sock = made(socket.socket, family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = sock.connect_ex(address)
        if number == errno.EINPROGRESS:
            _await_connection(sock, deadline)
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))  # noqa: TRY301 - the socket is closed for it, too
    except BaseException:
        sock.close()
        raise
    return sock


def _unreachable(error: OSError) -> StoreFailed:
    if isinstance(error, GreetingError):
        return StoreFailed(f"refuses this process: it {error.what}", error.cause, error.remedy, error.lasting)
    if isinstance(error, TimeoutError):
        return StoreFailed("does not answer", SILENT)
    if isinstance(error, (ConnectionResetError, BrokenPipeError, ConnectionAbortedError)):
        return StoreFailed("hung up", "its host ended, another program listens at its port, or it refuses this request")
    what, why = (
        f"cannot be reached: {system_message(error)}",
        cause_of(error, "the way there is cut, or its host is down"),
    )
    return StoreFailed(what, *why, lasting=descriptor_shortage(error) is not None)
