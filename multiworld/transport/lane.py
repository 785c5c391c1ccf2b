"""A lane: the one data connection to one peer of one world, read and written without blocking.

The world's event loop moves it when the socket is ready, or a thread that waits for an operation. All methods are
called under the owner's lock. Payloads go from and to the tensors' own memory, without a copy, for as long as their
callers wait; ``disown`` and ``redirect`` end that.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from multiworld.matching.protocol import HEADER_BYTES, WITH_PAYLOAD, Done, Placement, Sent, pack, unpack_from

STAGING_BYTES = 16 * 1024
# Frames that go out together save the peer a turn each; more than these keep it waiting.
TOGETHER_BYTES = 8 * HEADER_BYTES
# Many small reads in one go are fine; a large payload gives way to others in the event loop after this much.
TURN_BYTES = 8 << 20


class LaneOwner(Protocol):
    """The owner of a lane."""

    def on_frame(self, lane: Lane, kind: int, dtype: int, flags: int, seq: int, key: int, nbytes: int, /) -> Placement:
        """Handle a header; where its payload belongs and what to do when it is there."""

    def on_lane_end(self, lane: Lane, error: OSError | None) -> None:
        """The peer closed the connection, or it failed."""

    def on_torn(self, lane: Lane) -> None:
        """Break the world: an interrupt came between two steps, and the place in the stream is lost."""

    def on_backlog(self, lane: Lane) -> None:
        """Something could not be written at once: somebody must watch for the socket to be writable."""


class Lane:
    """The connection to ``peer``.

    Attributes:
        backlog: what is still to be written: memory, the operation it belongs to, and whether it is the last of that.
        ended: nothing can be read or written any more.
        sent: bytes given to this lane, written or not yet.
        received: bytes read.
    """

    def __init__(self, sock: socket.socket, peer: int, owner: LaneOwner) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.ended = False
        self.sent = self.received = 0
        self.backlog: deque[tuple[memoryview, Sent | None, bool]] = deque()
        self._owner = owner
        self._staging = bytearray(STAGING_BYTES)
        self._view = memoryview(self._staging)
        self._fill = 0  # bytes in the staging area that belong to an incomplete header
        self._body: memoryview | None = None  # what is missing of the payload under way
        self._on_body: Done | None = None
        self._skip = 0  # bytes of an unwanted payload still to come
        self._deaf = False  # what comes is dropped
        self._held = b""  # frames that go out with those that follow
        self._holding = False
        # A signal handler may raise between any two steps. What a call has moved is here with the call, in one step.
        self._got: list[int] = []
        self._sent: list[int] = []
        self._whole = True  # False between two steps of ours that belong together

    def put(
        self,
        kind: int,
        dtype: int = 0,
        flags: int = 0,
        seq: int = 0,
        key: int = 0,
        payload: tuple[Any, ...] = (),
        nbytes: int = 0,
        operation: Sent | None = None,
    ) -> None:
        """Write a frame, or what the socket takes of it, the rest later. ``operation`` is told when all is out."""
        if self.ended:
            return
        header = pack(kind, dtype, flags, seq, key, nbytes)
        self.sent += HEADER_BYTES + nbytes if payload else HEADER_BYTES
        if self._holding and not payload and operation is None:
            self._held += header
            if len(self._held) >= TOGETHER_BYTES:
                self._let_out()
            return
        if self._held:
            self._let_out()
        self._write((header, *payload) if payload else (header,), HEADER_BYTES + (nbytes if payload else 0), operation)

    def hold(self) -> None:
        """Let frames without a payload go out together, from now until ``release``."""
        self._holding = True

    def release(self) -> None:
        """Write what is held."""
        self._holding = False
        self._let_out()

    def _let_out(self) -> None:
        held, self._held = self._held, b""
        if held and not self.ended:
            self._write((held,), len(held), None)

    def _write(self, parts: tuple[Any, ...], nbytes: int, operation: Sent | None) -> None:
        sent = 0
        if not self.backlog:
            try:
                sent = self.sock.sendmsg(parts) if len(parts) > 1 else self.sock.send(parts[0])
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._end(error)
                return
            if sent == nbytes:
                if operation is not None:
                    operation.on_sent()
                return
        self._enqueue(parts, sent, operation)

    def _enqueue(self, parts: tuple[Any, ...], sent: int, operation: Sent | None) -> None:
        views = []
        for part in parts:
            view = memoryview(part).cast("B")
            if sent < len(view):
                # Without an operation, the memory is not kept: what is not out yet is copied.
                views.append(view[sent:] if operation is not None else memoryview(bytes(view[sent:])))
            sent = max(0, sent - len(view))
        self.backlog.extend((view, operation, view is views[-1]) for view in views)
        self._owner.on_backlog(self)

    def flush(self) -> None:
        """Write what the socket takes of the backlog."""
        try:
            self._flush()
        except BaseException as error:
            self._mend(error, self._flush if self._sent else None)
            raise

    def _flush(self) -> None:
        while self.backlog and not self.ended:
            view, operation, last = self.backlog[0]
            try:
                if not self._sent:
                    self._sent.extend(map(self.sock.send, (view,)))
            except BlockingIOError:
                return
            except OSError as error:
                self._end(error)
                return
            self._whole = False
            sent = self._sent.pop()
            if sent < len(view):
                self.backlog[0] = (view[sent:], operation, last)
                self._whole = True
                return
            self.backlog.popleft()
            if last and operation is not None:
                operation.on_sent()
            self._whole = True

    def _mend(self, error: BaseException, rest: Callable[[], None] | None) -> None:
        """Do the ``rest`` of what was under way after an interrupt, or report that it is lost."""
        if isinstance(error, Exception):
            self._whole = True  # ours, and the owner breaks the world for it
        elif not self._whole:
            self._owner.on_torn(self)
        elif rest is not None:
            rest()

    def disown(self, operation: Sent) -> None:
        """Copy what is not written yet of ``operation``: its memory is the caller's again."""
        for place, (view, of, last) in enumerate(self.backlog):
            if of is operation:
                self.backlog[place] = memoryview(bytes(view)), of, last

    @property
    def receiving(self) -> bool:
        """True while a payload is under way to us."""
        return self._body is not None

    def redirect(self, whole: memoryview, own: memoryview) -> None:
        """Let the payload under way go to ``own`` instead of ``whole``, what has come of it included."""
        if self._body is not None:
            come = len(whole) - len(self._body)
            own[:come] = whole[:come]
            self._body = own[come:]

    def stop_reading(self) -> None:
        """Drop what comes from now on; what is still to be written goes out."""
        self._deaf = True
        self._body = self._on_body = None

    def linger(self) -> bool:
        """Write the rest and say that nothing follows; whether the peer's machine has all of it.

        What comes is dropped: to close a socket with something unread resets the connection, and what is on its way is
        lost.
        """
        if self.backlog and not self.ended:
            self.flush()
        if self.backlog and not self.ended:
            return False
        self.ended = True  # nothing else reads from it any more
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        try:
            while self.sock.recv(1 << 16):
                pass
        except BlockingIOError:
            unacknowledged = struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, b"\0" * 4))[0]
            return bool(unacknowledged <= 1)  # the end itself counts as one
        except OSError:
            pass
        return True  # the peer has ended the connection

    def cut(self) -> None:
        """End it on our side: nothing is read or written any more."""
        self.ended = True
        self.backlog.clear()
        self._body = self._on_body = None

    def pump(self) -> None:
        """Read and handle what is there."""
        try:
            self._pump()
        except BaseException as error:
            self._mend(error, self._pump if self._got else None)
            raise

    def _pump(self) -> None:
        budget = TURN_BYTES
        while budget > 0 and not self.ended:
            target = self._body if self._body is not None else self._view[self._fill :]
            try:
                if not self._got:
                    self._got.extend(map(self.sock.recv_into, (target,)))
            except BlockingIOError:
                return
            except OSError as error:
                self._end(error)
                return
            self._whole = False
            got = self._got.pop()
            if got == 0:
                self._end(None)
                self._whole = True
                return
            full = got == len(target)
            budget -= got
            self.received += got
            if self._deaf:
                self._fill = 0
            elif self._body is not None:
                self._advance_body(got)
            elif self._fill + got < 2 * HEADER_BYTES:
                self._parse(self._fill + got)
            else:
                self._parse_together(self._fill + got)
            self._whole = True
            if not full:  # the socket was empty: a further read would only say so
                return

    def _advance_body(self, got: int) -> None:
        body = self._body
        assert body is not None  # noqa: S101 - for the type checker; the caller has looked
        if got < len(body):
            self._body = body[got:]
            return
        self._body = None
        on_body, self._on_body = self._on_body, None
        if on_body is not None:
            on_body()

    def _parse_together(self, end: int) -> None:
        """Parse; the answers to what came together go out together."""
        self.hold()
        try:
            self._parse(end)
        finally:
            self.release()

    def _parse(self, end: int) -> None:
        at = 0
        view = self._view
        while not self.ended:
            if self._skip:
                step = min(self._skip, end - at)
                self._skip -= step
                at += step
            if end - at < HEADER_BYTES:
                break
            kind, dtype, flags, seq, key, nbytes = unpack_from(view, at)
            at += HEADER_BYTES
            at += self._open(view[at:end], kind, dtype, flags, seq, key, nbytes)
            if self._body is not None:
                break
        if at < end and self._body is None:
            view[: end - at] = bytes(view[at:end])
            self._fill = end - at
        else:
            self._fill = 0

    def _open(self, rest: memoryview, kind: int, dtype: int, flags: int, seq: int, key: int, nbytes: int) -> int:
        """Handle a header and as much of its payload as lies in ``rest``; how much that was."""
        target, on_done = self._owner.on_frame(self, kind, dtype, flags, seq, key, nbytes)
        if target is None:
            self._skip = nbytes if kind in WITH_PAYLOAD else 0
            return 0
        here = min(nbytes, len(rest))
        target[:here] = rest[:here]
        if here < nbytes:
            self._body, self._on_body = target[here:], on_done
        elif on_done is not None:
            on_done()
        return here

    def _end(self, error: OSError | None) -> None:
        if not self.ended:
            self.ended = True
            self.backlog.clear()
            self._owner.on_lane_end(self, error)
