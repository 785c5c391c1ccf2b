"""Every exception of the package: what happened, the likely cause, what to do.

``MultiWorldError`` is the base. ``BrokenWorldException`` and its subclasses say that a world cannot be used.
``TensorMismatch``, ``ObjectRefused``, ``InvalidArgument`` and ``WrongContext`` are about one call: the world goes on.

All of them are picklable and carry ``world``, ``generation``, ``rank`` and ``operation``, so that a handler (or another
process) can decide without parsing text.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)
Kind = TypeVar("Kind", bound="MultiWorldError")

#: what installs this package, which is on no index; ``format(extra="[cli]")`` adds an extra
INSTALL = "pip install '.{extra}' in a checkout, or pip install --find-links WHEELHOUSE 'torch-multiworld{extra}'"


class MultiWorldError(Exception):
    """Base of all errors of this package.

    Args:
        world: name of the world; None where no world is concerned.
        what: what happened, one sentence.
        cause: the likely cause; falls back to the class's own text.
        remedy: what to do about it; falls back to the class's own text.
        generation: generation of the world, from 1; None before there is one.
        rank: our rank in that world; None before there is one.
        operation: the operation that raised, such as ``"recv"``; None outside of one.
        own: attributes of the class.
    """

    likely_cause: ClassVar[str] = ""
    what_to_do: ClassVar[str] = ""

    def __init__(
        self,
        world: str | None = None,
        what: str = "",
        *,
        cause: str | None = None,
        remedy: str | None = None,
        generation: int | None = None,
        rank: int | None = None,
        operation: str | None = None,
        **own: Any,
    ) -> None:
        super().__init__(world, what)
        self.world = world
        self.what = what
        self.cause = self.likely_cause if cause is None else cause
        self.remedy = self.what_to_do if remedy is None else remedy
        self.generation = generation
        self.rank = rank
        self.operation = operation
        for name, value in own.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no attribute {name!r}")
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return rebuilt, (type(self), dict(self.__dict__))

    def with_context(self, **fields: Any) -> Self:
        """A copy with some fields replaced, such as ``operation`` of the waiter that it is raised in."""
        return rebuilt(type(self), {**self.__dict__, **fields})

    def without_frames(self) -> Self:
        """Forget the frames that it came through, which are the package's own; they are logged at the debug level."""
        logger.debug("%s", self.what, exc_info=self)
        return self.with_traceback(None)

    @property
    def where(self) -> str:
        """World, generation, rank and operation in words, as far as known."""
        world = None if self.world is None else repr(self.world)
        parts = (("world", world), ("generation", self.generation), ("rank", self.rank), ("in", self.operation))
        return ", ".join(f"{label} {value}" for label, value in parts if value is not None)

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.cause:
            lines.append(f"  likely cause: {self.cause}")
        if self.remedy:
            lines.append(f"  what to do: {self.remedy}")
        return "\n".join(lines)


def rebuilt(kind: type[Kind], state: Mapping[str, Any]) -> Kind:
    """Make an error of ``kind`` again from its attributes; what pickle calls."""
    error = kind.__new__(kind)
    Exception.__init__(error, state.get("world"), state.get("what"))
    error.__dict__.update(state)
    return error


@contextlib.contextmanager
def told_of(
    world: str | None, rank: int | None, operation: str = "join", generation: int | None = None
) -> Iterator[None]:
    """Let the errors of the enclosed say which world, rank, operation and generation they are about."""
    try:
        yield
    except MultiWorldError as error:
        place = {"generation": generation, "rank": rank, "operation": operation}
        raise error.with_context(world=world, **place) from error.__cause__


class InvalidArgument(MultiWorldError, ValueError):
    """An argument cannot be right: rank out of range, list of a wrong length, tensor not contiguous or elsewhere.

    Nothing was sent and the world is as it was.
    """

    what_to_do = "correct the call; nothing was sent and the world goes on"


class WrongContext(MultiWorldError, RuntimeError):
    """The call came from where it cannot work: another event loop, a forked child, a closed ``MultiWorld``."""

    likely_cause = "the object was made in another event loop or process"
    what_to_do = "make a MultiWorld where it is used; event loops and forked children cannot share one"


class BackendUnavailable(MultiWorldError, RuntimeError):
    """The backend asked for is unknown or cannot work here, such as NCCL without CUDA."""

    what_to_do = "choose backend='gloo', or install a torch with the backend and its devices"


class ObjectRefused(MultiWorldError):
    """A received object needs a class or function that the caller did not allow. Or it is no pickle of ours, or would
    take far more work than its length warrants."""

    likely_cause = "the peer sent a type that is not in the allow-list"
    what_to_do = "pass allow=[...] with the types you expect, and only if you trust the peer"


class BrokenWorldException(MultiWorldError):
    """A world cannot do what was asked; other worlds are untouched.

    The first two arguments, the world's name and a message, are those of pymultiworld 0.2.3.
    """

    likely_cause = "a member of the world failed"
    what_to_do = "go on with the other worlds; call rejoin() to bring this one back under a new generation"


class LossReason(str, enum.Enum):
    """The way in which the loss of a peer was noticed. A member equals its text: ``error.how == "eof"``.

    Metrics use the same texts.

    ``EOF``: its connections ended. ``SILENCE``: it gave no sign of life within ``Heartbeat.lost_after``. ``LEFT``: it
    left the world in good order, and an operation needs it. ``REPORTED``: another member said so, aborted the world, or
    waited for it until a deadline. ``PROTOCOL``: it sent what no member can send. ``BACKEND``: NCCL failed and no
    member said why; ``PeerLost.ranks`` is empty then. ``CANCELLED``: it cancelled a collective; ``PeerLost.ranks``
    names the member that did, on that member, too.
    """

    EOF = "eof"
    SILENCE = "silence"
    LEFT = "left"
    REPORTED = "reported"
    PROTOCOL = "protocol"
    BACKEND = "backend"
    CANCELLED = "cancelled"

    __str__ = str.__str__


class PeerLost(BrokenWorldException):
    """A peer died, hung, was cut off, or does not take part any more: it left, or a collective was cancelled there.

    Attributes:
        ranks: the ranks that were lost, ascending.
        how: how the loss was noticed.
    """

    likely_cause = "the process died or was stopped, or the network between the hosts is cut"

    def __init__(
        self, world: str | None = None, what: str = "", *, how: str, ranks: tuple[int, ...] = (), **fields: Any
    ) -> None:
        super().__init__(world, what, **fields)
        self.ranks = ranks
        self.how = LossReason(how)


class BackendFailed(BrokenWorldException):
    """The backend cannot do its part on this side.

    Its communicator is not made in time, or a function is missing in the library. Or a member uses another driver or
    another version of NCCL, or two members share a device.
    """

    likely_cause = "the installation or the settings of this process or of a peer"


class DeviceFailed(BackendFailed):
    """CUDA refuses every call of this process on a device, so all worlds on that device end; others go on.

    Attributes:
        device: in text, such as ``"cuda:0"``.
        code: the CUDA error, such as 700 for an illegal address.
    """

    device: str = ""
    code: int = 0
    likely_cause = (
        "a kernel of this process, often the program's own, used memory that is not its own, or the GPU failed"
    )
    what_to_do = (
        "start this process again: the error does not go away; CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer find the "
        "kernel; worlds on other devices go on"
    )


class OpTimeout(BrokenWorldException, TimeoutError):
    """An operation was not done by its deadline, and the world was broken because of it.

    Attributes:
        timeout: the deadline that passed, in seconds.
        ranks: the ranks that it waited for, ascending; our own where only our backend was waited for. The others get
            ``PeerLost`` with these.
    """

    timeout: float = 0.0
    ranks: tuple[int, ...] = ()
    likely_cause = "a peer is alive but does not take part: it is slow, deadlocked, or calls another operation"
    what_to_do = (
        "call rejoin(): the deadline broke the world; then raise timeout= or op_timeout=, or look at what the peer "
        "does; a receive that may wait for work takes timeout=math.inf; to cancel the await of a message breaks nothing"
    )


class TensorMismatch(MultiWorldError):
    """The members disagree about an operation: its kind, length, dtype, root or reduction.

    It is noticed before any payload moves, and every member concerned raises it. The world stays usable, so this is no
    ``BrokenWorldException``: do not rejoin. Only operations of ``multiworld.communicator`` raise a subclass that is.

    Attributes:
        ours: what this rank asked for, in words.
        theirs: what the others asked for, by rank.
    """

    ours: str = ""
    theirs: Mapping[int, str] = MappingProxyType({})
    likely_cause = "the two sides were called with tensors of different length or dtype, or with different operations"
    what_to_do = "make both sides agree; the world is still usable; send_tensor/recv_tensor carry shape and dtype"


class StaleGeneration(BrokenWorldException):
    """The world has gone on without this rank under a newer generation.

    Attributes:
        current: the generation that the world is in now.
    """

    current: int | None = None
    likely_cause = "this process was frozen or cut off, and the others have replaced it"
    what_to_do = "join again as a new member, or leave"


class DescriptorsExhausted(BrokenWorldException):
    """The process has too few free file descriptors for what was asked.

    A ``MultiWorld`` and a supervisor raise it when they are made; operations on CPU tensors need none. ``join`` and
    ``rejoin`` raise ``RendezvousError`` with this cause. All worlds stay as they were.

    Attributes:
        limit: descriptors that the process may have.
        need: those that were needed.
    """

    limit: int = 0
    need: int = 1
    likely_cause = "the limit is low for the number of worlds, or descriptors leak somewhere in the process"
    what_to_do = "raise the limit (ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of containers), or close some"


class RendezvousError(BrokenWorldException):
    """The members could not find each other: duplicate rank, other size, other name, store not reachable, deadline
    passed."""

    likely_cause = "another process holds this rank, a member did not come, or the store cannot be reached"
    what_to_do = "check name, rank, size and store on every member"


class TooFewMembers(RendezvousError):
    """Fewer members are left than the world may go on with; it stays broken.

    Attributes:
        left: the number of members that are left.
    """

    left: int = 0
    likely_cause = "more members were lost than min_size= allows for"
    what_to_do = "start replacements and call rejoin(), or call shrink() with a smaller min_size"


class GaveUp(BrokenWorldException):
    """A supervisor has given up on a world: it failed too often, or in a way that another attempt cannot change.

    Attributes:
        failures: how often it failed in the time that counts.
    """

    failures: int = 1
    what_to_do = "mend the cause, then call apply() on the supervisor with the same table: it begins anew"


class WorldClosed(BrokenWorldException):
    """The world was left, aborted here, or its ``MultiWorld`` was closed."""

    likely_cause = "leave(), abort() or close() was called on this side"
    what_to_do = "join again, or call rejoin() on the world"
