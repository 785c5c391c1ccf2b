"""``WorldWork``: operations of a world that were begun, as what torch.distributed gives to its callers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import torch
import torch.distributed as dist

from multiworld.errors import MultiWorldError
from multiworld.operations.call import GroupBase, SyncCall
from multiworld.operations.giving_up import give_up
from multiworld.process.threads import blocking

if TYPE_CHECKING:
    from multiworld.matching.operation import Operation

NO_TIMEOUT: Final = timedelta(0)


class WorkCall(SyncCall):
    """A call that one thread begins and any thread waits for, one that runs an event loop, too."""

    __slots__ = ("operation",)
    operation: Operation

    def __init__(self, group: GroupBase, name: str, timeout: float | None) -> None:
        super(SyncCall, self).__init__(group, name, timeout)

    def begin(self, start: Callable[..., Operation], *arguments: Any) -> None:
        """Begin the operation that ``start`` makes of the engine and ``arguments``."""
        with self:
            self.operation = start(self.engine, *arguments)
            self._is_done(self.operation)

    def wait(self) -> Any:
        """Wait in this thread for the operation, and return its result."""
        return self.done(self.operation)

    def give_up(self) -> None:
        """Withdraw the operation, unless it is done or withdrawn: its tensors are the caller's again."""
        if not (self.operation.done or self.operation.withdrawn):
            give_up(self._session, self.operation)

    def set_deadline(self) -> None:
        """Start the clock."""
        self.operation.set_deadline(self._timeout)

    def ends_within(self, seconds: float) -> bool:
        """Move the world's data for at most ``seconds``; whether the operation is done."""
        return self._session.bridge.wait(self.operation, seconds)

    def limit(self, seconds: float) -> None:
        """Give it so many seconds from now on, whoever waits for it."""
        self._timeout = seconds
        self.set_deadline()


class WorldWork(dist.Work):  # type: ignore[misc]  # torch is not followed by the type checker
    """Operations of one generation of a world, on their way or over.

    ``wait`` and ``exception`` have the typed error of the world. A work of a generation that broke has failed; it never
    goes on in the next one. Who waits moves the data. Where nobody waits, the completer of the world does.

    Args:
        calls: what was begun.
        tensors: the result, as ``result`` and the future have it.
        completer: the ``Completer`` of the world.
        after: called once all is done, in the thread that sees it.
        note: told of the error, if there is one.
    """

    def __init__(
        self,
        calls: Sequence[WorkCall],
        tensors: list[torch.Tensor],
        completer: Any,
        after: Callable[[], None] | None,
        note: Callable[[BaseException], None],
    ) -> None:
        super().__init__()
        self.calls = calls
        self.over = False
        self.driving = threading.Lock()  # held by who waits for the operations, until they are over
        self._tensors, self._completer, self._after, self._note = tensors, completer, after, note
        self._error: BaseException | None = None
        self._source = -1
        self._base: list[torch.futures.Future[None]] = []
        self._future: torch.futures.Future[Any] | None = None

    @blocking
    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return when it is done, or raise its error; one that passes ``timeout`` breaks the world."""
        if not self.over:
            if timeout > NO_TIMEOUT:
                for call in self.calls:
                    call.limit(timeout.total_seconds())
            if not self._completer.drives(self):
                self.driving.acquire()
                self.drive()
        if self._error is not None:
            raise self._raised()
        return True

    def drive(self) -> None:
        """Wait in this thread until all is over, and let go of ``driving``, which the caller has acquired."""
        try:
            for call in self.calls:
                try:
                    self._source = call.wait()
                except Exception as error:  # noqa: BLE001, PERF203 - raised where it is waited for
                    self._fail(error)
            if self._error is None and self._after is not None:
                try:
                    self._after()
                except Exception as error:  # noqa: BLE001 - raised where it is waited for
                    self._fail(error)
        except BaseException as interrupt:  # it has withdrawn the operation that was waited for
            for call in self.calls:
                call.give_up()
            self._fail(interrupt)
            raise
        finally:
            self._after, self.calls = None, ()
            self.over = True
            self.driving.release()
            self.complete()

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error.with_traceback(None)
            self._note(error)

    def _raised(self) -> BaseException:
        """Make the error for one who asks: a copy, since several threads may raise it."""
        return (
            self._error.with_context() if isinstance(self._error, MultiWorldError) else cast("Exception", self._error)
        )

    def complete(self) -> None:
        """Complete the future of a work that is over, if one was asked for; its callbacks run here."""
        if self._base:
            with contextlib.suppress(IndexError):  # another thread has done it just now
                self._base.pop().set_result(None)

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the future of its tensors, which raises the typed error.

        What runs in C++, as DDP's reducer does, cannot take an exception that was set. So a future that always succeeds
        comes first, and the one that is given out raises in a callback of it.
        """
        if self._future is None:
            base: torch.futures.Future[None] = torch.futures.Future()
            self._future = base.then(lambda _: self.result())
            self._base = [base]
            if self.over:
                self.complete()
            elif self.driving.acquire(blocking=False):
                self._completer.take(self)
        return self._future

    def is_completed(self) -> bool:
        """Return whether it is over, well or not."""
        if not self.over and self.driving.acquire(blocking=False):
            self._completer.take(self)  # who only asks moves nothing
        return self.over

    def is_success(self) -> bool:
        """Return whether it is over and well."""
        return self.over and self._error is None

    def exception(self) -> BaseException | None:
        """Return its typed error, if it has one."""
        return self._error

    def source_rank(self) -> int:
        """Return the rank that a receive got its message of."""
        return self._source

    _source_rank = source_rank

    def result(self) -> list[torch.Tensor]:
        """Return the tensors, or raise the typed error."""
        if self._error is not None:
            raise self._raised()
        return self._tensors

    def synchronize(self) -> None:
        """Wait for it: there is no stream to synchronize with."""
        self.wait()
