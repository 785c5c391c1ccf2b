"""The NCCL group of the installed torch: ``ProcessGroupNCCL`` or its successor ``ProcessGroupNCCL2``.

Torch's own streams come from a pool and its group has a watchdog: patched wheels cure what these do to other worlds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.dlpack import from_dlpack, to_dlpack

from multiworld.backends import cuda, nccl_environment
from multiworld.backends.device_driver import Call, DeviceDriver, Work
from multiworld.backends.device_members import Member
from multiworld.backends.gathered import Gathered
from multiworld.backends.setup_store import SetupStore
from multiworld.matching.driver import DriverRefused

_SUCCESS = 0  # WorkResult
_ABORTS = "abort", "_abort", "shutdown", "_shutdown"
# Deadlines are the session's.
_LONGEST = timedelta(days=30)
_DTYPES = {torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64}
_DTYPES |= {torch.float16, torch.float32, torch.float64, torch.bfloat16}
_TASKS = Path("/proc/self/task")
#: the most that the threads of a new group get to begin, and the time between two looks at them
_BEGIN_SECONDS, _NAP = 1.0, 1e-4
_BITWISE = dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR


def unavailable() -> str | None:
    """Why torch's group cannot be used here; None if it can."""
    return "this torch is built without NCCL" if nccl_environment.group_kind() is None else None


class TorchNcclDriver(DeviceDriver):
    """See ``Driver``. Python makes torch's calls, and compiled code waits for their ends."""

    name = "torch-nccl"

    def __init__(self, store: SetupStore, us: Member) -> None:
        super().__init__(store, us)
        self._group: Any = None
        self._tells_result = False

    def version(self) -> str:
        return nccl_environment.group_version()

    def connect(self, stream: int) -> None:
        """See ``DeviceDriver.connect``.

        Raises:
            BackendFailed: the environment is not as it has to be.
        """
        nccl_environment.settle(self._us.world, self._us.rank)
        self._launcher.open(cuda.functions(), stream, 0)
        self._group = self._new_group(self._store)
        classic = isinstance(self._group, dist.ProcessGroupNCCL)
        self._tells_result = classic and hasattr(dist.Work, "get_future_result")
        eager = self._tells_result or not classic  # before 2.6 the call keeps the GIL: no other world would go on
        if eager:
            self._group.eager_connect_single_device(self._device)
        if not eager or not classic:  # it is made in the first collective, whatever that call says
            self._meet()

    def failure(self) -> BaseException | None:
        ask = getattr(self._group, "get_error", None)
        with contextlib.suppress(RuntimeError, TypeError):  # not every kind of group answers
            said = None if ask is None else ask()
            if said is not None and getattr(said, "name", "SUCCESS") != "SUCCESS":
                return RuntimeError(f"torch's NCCL group reports {said.name}")
        return None

    def outcome(self, handle: Any) -> BaseException | None:
        """See ``DeviceDriver.outcome``.

        Where torch's watchdog aborted, the event of the operation comes all the same, and on stock releases ``wait``
        returns as if nothing was. From 2.6 on the result is told apart; before, a peer's connections tell.
        """
        try:
            handle.wait()  # returns at once by now
        except RuntimeError as error:
            return error
        result = handle.get_future_result() if self._tells_result else None
        failed = result is not None and result.done() and result.value() != _SUCCESS
        return RuntimeError("torch aborted the communicator over an error of NCCL") if failed else None

    def abort_communicator(self) -> None:
        for name in _ABORTS:
            end = getattr(self._group, name, None)
            if end is not None:
                end()
                return

    def finalize(self) -> None:
        """See ``DeviceDriver.finalize``.

        The members meet: then all that came before is done, in all of them. The rest is an abort, which waits for
        no peer: torch's ``shutdown`` waits for the others, cannot be cancelled, and one of them may give up meanwhile.
        """
        met = torch.cuda.Event(blocking=True)
        self._meet()
        met.record()
        met.synchronize()
        if self._failure is None:
            self.abort_communicator()

    def release(self) -> None:
        self._group = None

    def _meet(self) -> None:
        """Enqueue the least that needs all members; what is in it does not matter."""
        least = torch.empty(1, dtype=torch.uint8, device=self._device)
        self._group.allreduce([_unrecorded(least)], _options(dist.AllreduceOptions, reduceOp=dist.ReduceOp.MAX)).wait()

    # operations: launched on a stream of torch's, which the thread's current stream then waits for

    def broadcast(self, tensor: torch.Tensor, root: int, *, after: Any = None) -> Work:
        options = _options(dist.BroadcastOptions, rootRank=root, rootTensor=0)
        return self._launch(tensor, after, lambda: self._group.broadcast([_known(tensor)], options))

    def all_reduce(self, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Work:
        options = _options(dist.AllreduceOptions, reduceOp=op)
        return self._launch(tensor, after, lambda: self._group.allreduce([_reducible(tensor, op)], options))

    def reduce(self, tensor: torch.Tensor, root: int, op: Any, *, after: Any = None) -> Work:
        options = _options(dist.ReduceOptions, reduceOp=op, rootRank=root)
        return self._launch(tensor, after, lambda: self._group.reduce([_reducible(tensor, op)], options))

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, *, after: Any = None) -> Work:
        """See ``Driver.all_gather``; not by torch's own for lists, which records streams for its memory."""

        def prepare() -> tuple[Any, list[Call]]:
            gathered = Gathered(outputs)
            work = self._group._allgather_base(_unrecorded(gathered.whole), _known(tensor))
            work.wait()
            gathered.spread()
            return work, []

        return self._start((outputs, tensor), after, None, prepare)

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int, *, after: Any = None) -> Work:
        options = _options(dist.GatherOptions, rootRank=root)
        return self._launch(
            (outputs, tensor), after, lambda: self._group.gather(_all_known(outputs), [_known(tensor)], options)
        )

    def scatter(self, output: torch.Tensor, tensors: Sequence[torch.Tensor], root: int, *, after: Any = None) -> Work:
        options = _options(dist.ScatterOptions, rootRank=root)
        return self._launch(
            (output, tensors), after, lambda: self._group.scatter([_known(output)], _all_known(tensors), options)
        )

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Work:
        options = _options(dist.ReduceScatterOptions, reduceOp=op)
        return self._launch(
            (output, tensor),
            after,
            lambda: self._group._reduce_scatter_base(_known(output), _reducible(tensor, op), options),
        )

    def all_to_all(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        *,
        after: Any = None,
    ) -> Work:
        splits, options = (list(output_splits), list(input_splits)), dist.AllToAllOptions()
        return self._launch(
            (output, tensor),
            after,
            lambda: self._group.alltoall_base(_known(output), _known(tensor), *splits, options),
        )

    def send(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Work:
        return self._launch(tensor, after, lambda: self._group.send([_known(tensor)], peer, 0))

    def recv(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Work:
        return self._launch(tensor, after, lambda: self._group.recv([_known(tensor)], peer, 0))

    def _launch(self, tensors: Any, after: Any, call: Callable[[], Any]) -> Work:
        def prepare() -> tuple[Any, list[Call]]:
            work = call()
            work.wait()  # for the stream; the host goes on
            return work, []

        return self._start(tensors, after, None, prepare)

    def _new_group(self, store: SetupStore) -> Any:
        kind = nccl_environment.group_kind()
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _LONGEST
        if kind is dist.ProcessGroupNCCL:
            with _threads_begun():
                return kind(store, self._us.place, self._us.size, options)
        # A call that waits for a peer would hold a lock of torch's that the allocator of all worlds needs.
        options.config.blocking = 0
        with contextlib.suppress(AttributeError):  # the first release of it is always lazy
            options.lazy_init = True
        try:
            return kind(store, self._us.place, self._us.size, options, self._device)
        except TypeError:
            return kind(store, self._us.place, self._us.size, options)


@contextlib.contextmanager
def _threads_begun() -> Iterator[None]:
    """Wait until the threads that torch starts in the block have begun, and sleep.

    Stock torch replaces the log prefix of a group with each communicator, the first of which comes next. A watchdog
    that is putting its first line together would read freed memory. The patch ``log-prefix`` cures that.
    """
    before = set(_TASKS.iterdir())
    yield
    awake, until = set(_TASKS.iterdir()) - before, time.monotonic() + _BEGIN_SECONDS
    while (awake := set(filter(_is_awake, awake))) and time.monotonic() < until:
        time.sleep(_NAP)


def _is_awake(task: Path) -> bool:
    try:
        said = (task / "stat").read_text()
    except OSError:  # it has ended
        return False
    return said.rpartition(")")[2].split()[0] != "S"


def _options(kind: Callable[[], Any], **fields: Any) -> Any:
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _known(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _DTYPES:
        raise DriverRefused(f"torch's NCCL group has no {tensor.dtype}")
    return _unrecorded(tensor)


def _all_known(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """As torch takes the lists of the root; none for the other members."""
    return [[_known(tensor) for tensor in tensors]] if tensors else []


def _reducible(tensor: torch.Tensor, op: Any) -> torch.Tensor:
    if any(op == one for one in _BITWISE) or (tensor.dtype is torch.bool and op == dist.ReduceOp.AVG):
        raise DriverRefused(f"NCCL has no {op} of {tensor.dtype}")
    return _known(tensor)


def _unrecorded(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of ``tensor`` as a tensor for which the group records no streams.

    To free memory with recorded streams is a CUDA call of torch's allocator in a destructor: on a lost device it ends
    the process. The driver's works keep the memory as long as it is used. The allocator passes over what is not its
    own, as a tensor that came through DLPack; only the native one does.
    """
    if torch.cuda.get_allocator_backend() != "native":
        return tensor
    if tensor.dtype is torch.bool:  # older releases cannot hand it over
        return from_dlpack(to_dlpack(tensor.detach().view(torch.uint8))).view(torch.bool)
    return from_dlpack(to_dlpack(tensor.detach()))
