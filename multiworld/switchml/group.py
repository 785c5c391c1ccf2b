"""A process group that is Gloo's, but for the all-reduces that the switch does."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from multiworld.errors import InvalidArgument, MultiWorldError
from multiworld.switchml.errors import SwitchMLUnavailable
from multiworld.switchml.lane import OWNED, Lane, Library
from multiworld.switchml.settings import Otherwise, Settings, current
from multiworld.switchml.statistics import COUNTS

#: What the switch can add up.
DTYPES = (torch.float32, torch.int32)
_DEVICES = ("cpu", "cuda")


def reason_for_gloo(tensors: Sequence[torch.Tensor], operation: Any) -> str:
    """Say in a word why Gloo does this all-reduce; empty if the switch does it.

    All ranks agree on what decides, so all decide alike.
    """
    if operation != dist.ReduceOp.SUM:
        return "operation"
    if len(tensors) != 1:
        return "tensors"
    (tensor,) = tensors
    if tensor.dtype not in DTYPES:
        return "dtype"
    if tensor.layout is not torch.strided or tensor.device.type not in _DEVICES:
        return "layout"
    return "" if tensor.numel() else "empty"


logger = logging.getLogger(__name__)
NAME = "switchml"
_READY, _TAKEN, _MISSING = 0, 1, 2
#: A few numbers per group, kept: up to torch 2.6, a group hangs that ends while Gloo frees a tensor of Python.
_kept: list[torch.Tensor] = []


def create(store: Any, rank: int, size: int, timeout: timedelta) -> SwitchMLGroup:
    """Make a process group; what ``torch.distributed`` calls for the backend ``switchml``.

    The first such group of a process gets the switch, if it is the first one on all of its ranks. Others use Gloo
    alone: the workers of the switch are the members of one group.

    Raises:
        SwitchMLUnavailable: a rank has no client library, or it did not start there.
        InvalidArgument: the ranks have other settings.
    """
    settings = current()
    gloo = _gloo(store, "all", rank, size, timeout)
    failure = None
    try:
        started = _start(gloo, rank, size, settings)
    except MultiWorldError as error:
        failure = error.with_context()
    if failure is not None:
        # Its traceback would keep Gloo's group until Python has ended, and Gloo's threads need Python to free tensors.
        del gloo
        raise failure
    lane = None
    if started is not None:
        own = _gloo(store, "lane", rank, size, timeout) if settings.failure is Otherwise.GLOO else None
        lane = Lane(started, settings.seconds(timeout.total_seconds()), own)
    return SwitchMLGroup(store, rank, size, gloo, lane)


#: What C++ asks a Python subclass of ``ProcessGroup`` for, under the names of all releases.
_FORWARDED = (
    *("all_gather_single_coalesced", "all_to_all_single", "allgather", "allgather_into_tensor_coalesced"),
    *("allreduce_coalesced", "alltoall_base", "barrier", "broadcast", "recv", "reduce_scatter"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "send"),
)


class SwitchMLGroup(dist.ProcessGroup):  # type: ignore[misc]
    """The process group: all operations are those of a plain group of Gloo, but for ``allreduce``."""

    def __init__(self, store: Any, rank: int, size: int, gloo: Any, lane: Lane | None) -> None:
        try:
            super().__init__(store, rank, size)
        except TypeError:  # older releases have no such constructor for subclasses
            super().__init__(rank, size)
        self._lane = lane
        self._plain = _plain_group(store, rank, size)
        for group in (self, self._plain):
            if hasattr(group, "_set_default_backend"):  # in newer releases
                group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
                group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)
        if lane is not None:
            self._closing = weakref.finalize(self, lane.close)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    def allreduce(self, tensors: Any, opts: Any = None, **named: Any) -> Any:
        """Begin an all-reduce by the switch or by Gloo; takes what ``ProcessGroup.allreduce`` takes."""
        listed = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        options = _options(opts if opts is not None else named.get("op"))
        reason = "no switch" if self._lane is None else reason_for_gloo(listed, options.reduceOp)
        if self._lane is not None and not reason:
            return self._lane.submit(listed[0])
        COUNTS.gloo(listed, reason)
        return self._plain.allreduce(listed, options)

    def shutdown(self) -> None:
        """Stop the switch; what is not done fails."""
        self._end("shutdown")

    def abort(self) -> None:
        self._end("abort")

    def _end(self, how: str) -> None:
        if self._lane is not None:
            self._closing()
        if hasattr(self._plain, how):  # in newer releases
            getattr(self._plain, how)()


def _forwarded(name: str) -> Callable[..., Any]:
    """A method that calls the plain group's.

    Without it, C++ finds no method of this class and calls its own while it holds the GIL. Gloo's threads need the GIL
    to free tensors, and hold a lock then that a new operation needs: the process would hang.
    """

    def method(self: SwitchMLGroup, *args: Any, **named: Any) -> Any:
        return getattr(self._plain, name)(*args, **named)

    method.__name__ = name
    method.__doc__ = f"``ProcessGroup.{name}``, by Gloo."
    return method


for _name in _FORWARDED:
    if hasattr(dist.ProcessGroup, _name):
        setattr(SwitchMLGroup, _name, _forwarded(_name))


def _plain_group(store: Any, rank: int, size: int) -> Any:
    try:
        return dist.ProcessGroup(store, rank, size)
    except TypeError:  # older releases
        return dist.ProcessGroup(store, rank, size, dist.ProcessGroup.Options(backend="gloo"))


def _options(given: Any) -> Any:
    """``AllreduceOptions`` of themselves, of a reduction, or of nothing."""
    if isinstance(given, dist.AllreduceOptions):
        return given
    options = dist.AllreduceOptions()
    if given is not None:
        options.reduceOp = given
    return options


def _gloo(store: Any, name: str, rank: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(dist.PrefixStore(f"switchml-{name}", store), rank, size, timeout=timeout)


def _start(gloo: Any, rank: int, size: int, settings: Settings) -> Library | None:
    """Start the client library on all ranks or on none; None where the group is to use Gloo alone."""
    state, error, library = _look(settings)
    started = False
    try:
        states = _agreed(gloo, size, state, settings)
        if _TAKEN in states:
            return None
        if library is not None and _MISSING not in states:
            why = library.start(settings.config, rank, size)
            what = f"the client library does not start on rank {rank}: {why}"
            error = SwitchMLUnavailable(what=what) if why else None
            states = _agreed(gloo, size, _MISSING if error else _READY, settings)
            if _MISSING not in states:
                started = True
                return library
            if error is None:
                library.stop()
        _without(states, error, settings)
        return None
    finally:
        if state == _READY and not started:
            OWNED.release()


def _look(settings: Settings) -> tuple[int, SwitchMLUnavailable | None, Library | None]:
    """Return the state of this process and its library; claims the library's context if it is ready."""
    try:
        library = Library(settings.library)
    except SwitchMLUnavailable as error:
        return _MISSING, error, None
    return (_READY if OWNED.acquire(blocking=False) else _TAKEN), None, library


def _agreed(gloo: Any, size: int, state: int, settings: Settings) -> list[int]:
    """The states of all ranks, in their order; ``InvalidArgument`` if settings differ that must be the same."""
    policies = [list(Otherwise).index(policy) for policy in (settings.missing, settings.failure)]
    mine = torch.tensor([state, *policies])
    all_of = [torch.empty_like(mine) for _ in range(size)]
    _kept.extend((mine, *all_of))
    gloo.allgather([all_of], [mine]).wait()
    found = [row.tolist() for row in all_of]
    if any(row[1:] != policies for row in found):
        remedy = "set MULTIWORLD_SWITCHML_MISSING and MULTIWORLD_SWITCHML_FAILURE alike on all ranks"
        raise InvalidArgument(what="switchml: the ranks differ in missing= or failure=", remedy=remedy)
    return [row[0] for row in found]


def _without(states: list[int], error: SwitchMLUnavailable | None, settings: Settings) -> None:
    """Say on which ranks there is no switch, and raise if that is to be an error."""
    ranks = tuple(rank for rank, state in enumerate(states) if state == _MISSING)
    what = error.what if error else f"the client library is missing or does not start on ranks {ranks}"
    if settings.missing is Otherwise.ERROR:
        fields = {"cause": error.cause, "remedy": error.remedy} if error else {}
        raise SwitchMLUnavailable(what=what, ranks=ranks, **fields)
    logger.warning("switchml: Gloo does all all-reduces of this group: %s", what)
