"""``WorldProcessGroup``: a group of a world as torch.distributed takes it, over all generations of the world.

torch calls these methods from Python and, where it has a trampoline for them, from C++. Some have an older and a newer
name. What a method is not given by its options, it takes from the world.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from multiworld.errors import InvalidArgument, MultiWorldError
from multiworld.operations import collectives, exchanges, p2p
from multiworld.torch import registration
from multiworld.torch.completer import Completer
from multiworld.torch.layout import Layout
from multiworld.torch.work import WorkCall, WorldWork
from multiworld.worlds.world import World

if TYPE_CHECKING:
    from multiworld.worlds.group import Group

Tensors = Sequence[torch.Tensor]
#: the name of the backend in torch.distributed
BACKEND: Final = "multiworld"
_NONE: Final = timedelta(0)


class WorldProcessGroup(dist.ProcessGroup):  # type: ignore[misc]  # torch is not followed by the type checker
    """All or some members of a world, as a ``torch.distributed.ProcessGroup``. Made by ``Group.process_group``.

    It is one object over all generations: after ``rejoin`` it works with the new rank and size.

    Args:
        group: the world, or a group of it.
        name: that torch.distributed knows it by.
        end: what ``shutdown`` does; nothing where the world is the caller's.
    """

    def __init__(self, group: Group, name: str, end: Callable[[], None] = lambda: None) -> None:
        super().__init__(group.rank, group.size)
        self.group_name = self.group_desc = name
        self._timeout: float | None = None
        self.bind(group, end)

    def bind(self, group: Group, end: Callable[[], None]) -> None:
        """Go on as ``group``."""
        self.group, self._end = group, end
        self._member, self._completer = group.member, Completer.of(group.member)
        self.raised: list[BaseException] = []  # the last errors of works
        self._together: list[tuple[list[WorkCall], Layout]] | None = None

    # the world

    @property
    def world(self) -> World:
        """The world that it is a group of."""
        return self.group if isinstance(self.group, World) else self._member.owner[self._member.name]  # type: ignore[index]

    @property
    def is_callers(self) -> bool:
        """True if the program joined the world, and torch.distributed did not."""
        return self is self.group._process_group

    @property
    def generation(self) -> int:
        """Generation of the world."""
        return self._member.generation

    def errored(self) -> MultiWorldError | None:
        """Return what broke the world, or None while it works."""
        return self._member.session.failure

    def abort(self) -> None:
        """Break the world, here and on every member; every work of it fails."""
        self._member.session.abort("abort() of its process group was called")

    def rejoin(self, *, rank: int | None = None, size: int | None = None, timeout: float | None = None) -> None:
        """Assemble the world again under a new generation, as ``World.rejoin`` does, and go on in it.

        Raises:
            InvalidArgument: the size changes, and a DeviceMesh keeps the old one.
        """
        if size not in (None, self._member.config.size):
            self.check_resizable(self._member.world_rank, "rejoin")
        self.world.sync.rejoin(rank=rank, size=size, timeout=timeout)

    def shrink(self, *, min_size: int = 1, timeout: float | None = None) -> None:
        """Go on with the members that are left, as ``World.shrink`` does."""
        self.check_resizable(self._member.world_rank, "shrink")
        self.world.sync.shrink(min_size=min_size, timeout=timeout)

    def grow(self, *, timeout: float | None = None) -> None:
        """Take in the newcomers that wait, as ``World.grow`` does."""
        self.check_resizable(self._member.world_rank, "grow")
        self.world.sync.grow(timeout=timeout)

    def check_resizable(self, rank: int, operation: str) -> None:
        """Raise ``InvalidArgument`` while a DeviceMesh keeps the present size."""
        mesh = registration.mesh_of(self.group_name)
        if mesh is not None:
            what = f"{mesh} refers to the process group {self.group_name}, whose size would change"
            cause = "DeviceMesh, and FSDP2 and DTensor on it, keep the sizes that they were made with"
            remedy, name = "drop the mesh first, or keep the size", self._member.name
            raise InvalidArgument(name, what, cause=cause, remedy=remedy, rank=rank, operation=operation)

    def become_default(self) -> WorldProcessGroup:
        """See ``World.process_group_as_default``."""
        registration.become_default(self)
        return self

    def renewed(self) -> None:
        """Take up a new generation: torch.distributed learns the new ranks."""
        registration.register(self, self.group_name)

    @contextlib.contextmanager
    def typed(self) -> Iterator[None]:
        """Raise the typed error in the place of the RuntimeError that DDP's reducer makes of it."""
        before = self.raised
        try:
            yield
        except RuntimeError as error:
            typed = self.typed_error(error, before)
            if typed is None or isinstance(error, MultiWorldError):
                raise
            raise typed from error

    def typed_error(self, error: BaseException | None, before: Sequence[BaseException] = ()) -> MultiWorldError | None:
        """Find the typed error behind what torch raised; ``before`` are errors of before that."""
        if isinstance(error, MultiWorldError) or not isinstance(error, RuntimeError):
            return error if isinstance(error, MultiWorldError) else None
        since = [one for one in self.raised if isinstance(one, MultiWorldError) and one not in before]
        return since[-1] if since else self.errored()

    # a process group

    def rank(self) -> int:
        return self.group.rank

    def size(self) -> int:
        return self.group.size

    def name(self) -> str:
        return BACKEND

    getRank, getSize, getBackendName, _get_backend_name = rank, size, name, name  # noqa: N815 - torch's names

    #: attributes of the object, since older releases of torch.compile look into no property of ours
    group_name = group_desc = ""

    def _set_group_name(self, name: str) -> None:
        self.group_name = name

    def _set_group_desc(self, desc: str) -> None:
        self.group_desc = desc

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        return self.group_name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        return self.group_desc

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc  # noqa: N815 - torch's names

    @property
    def _device_types(self) -> list[torch.device]:
        if not registration.is_known(self):  # torch 2.15 asks to record it, which its C++ cannot for a group in Python
            return []
        return [torch.device(kind) for kind in dict.fromkeys(["cpu", self._member.torch_device.type])]

    supports_coalescing = supports_splitting = _supports_time_estimate = False

    def _get_backend(self, _: torch.device) -> WorldProcessGroup:
        return self

    def supports_tensor_alloc(self, _: torch.device) -> bool:
        """Return False: FSDP2 asks, and takes torch's own memory."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Let each operation take so long, where it says nothing else."""
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Forget it; a world that ``init_process_group`` joined is left."""
        self._end()

    # operations

    def _begin(
        self,
        name: str,
        calls: Sequence[tuple[Any, ...]],
        tensors: list[torch.Tensor],
        layout: Layout,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> WorldWork | None:
        """Begin operations, each a function of ``multiworld.operations`` and its arguments, as one work.

        In a block of torch's coalescing manager there is one work for all of it, at its end.
        """
        limit: timedelta = getattr(opts, "timeout", _NONE) if timeout is None else timeout
        # c10d fills its own default in where nothing was said.
        seconds = limit.total_seconds() if limit > _NONE and limit != default_pg_timeout else self._timeout
        registration.hide_from_dynamo()
        begun: list[WorkCall] = []
        try:
            for start, *arguments in calls:
                call = WorkCall(self.group, name, seconds)
                call.begin(start, self.group, *arguments)
                begun.append(call)
        except BaseException:
            self._give_up(begun)
            raise
        if self._together is not None:
            self._together.append((begun, layout))
            return None
        work = WorldWork(begun, tensors, self._completer, layout.give_back, self._note)
        if getattr(opts, "asyncOp", True):
            self._completer.note(work)
        return work

    def _give_up(self, begun: list[WorkCall]) -> None:
        """Give up what belongs to a call that fails; torch does not end a coalescing block in which one does."""
        together, self._together = self._together or [], None
        for call in (*begun, *(one for calls, _ in together for one in calls)):
            call.give_up()

    def _note(self, error: BaseException) -> None:
        self.raised = [*self.raised[-8:], error]

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> WorldWork | None:
        """See ``torch.distributed.broadcast``; ``opts`` are options, or the root."""
        (tensor,), root, layout = _list(tensors), getattr(opts, "rootRank", opts or 0), Layout()
        calls = [(collectives.broadcast, layout.target(tensor), root)]
        return self._begin("broadcast", calls, [tensor], layout, opts, timeout)

    def broadcast_one(self, tensor: torch.Tensor, root: int) -> WorldWork | None:
        """See ``broadcast``; a name of torchft's."""
        return self.broadcast([tensor], root)

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> WorldWork | None:
        """See ``torch.distributed.all_reduce``; ``opts`` are options, or the reduction."""
        targets, layout, op = _list(tensors), Layout(), _reduction(opts)
        calls = [(collectives.all_reduce, layout.target(tensor), op) for tensor in targets]
        return self._begin("all_reduce", calls, targets, layout, opts, timeout)

    allreduce_coalesced = allreduce

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> WorldWork | None:
        """See ``torch.distributed.reduce``; ``opts`` are options, or the root."""
        (tensor,), root, layout = _list(tensors), getattr(opts, "rootRank", opts or 0), Layout()
        calls = [(collectives.reduce, layout.target(tensor), root, _reduction(opts if op is None else op))]
        return self._begin("reduce", calls, [tensor], layout, opts, timeout)

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> WorldWork | None:
        """See ``torch.distributed.all_gather``."""
        (tensor,), layout = _list(inputs), Layout()
        targets = _list(outputs[0]) if _is_nested(outputs) else list(outputs)
        calls = [(collectives.all_gather, layout.targets(targets), layout.source(tensor))]
        return self._begin("all_gather", calls, targets, layout, opts, timeout)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> WorldWork | None:
        """See ``torch.distributed.all_gather_into_tensor``."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> WorldWork | None:
        """Gather several tensors, each into one."""
        layout = Layout()
        calls = [
            (collectives.all_gather_into_tensor, layout.target(output), layout.source(tensor))
            for output, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._begin("all_gather_into_tensor", calls, list(outputs), layout, opts)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> WorldWork | None:
        """Gather several tensors: ``outputs`` has a list of them for each rank."""
        layout = Layout()
        calls = [
            (collectives.all_gather, layout.targets([of_rank[place] for of_rank in outputs]), layout.source(tensor))
            for place, tensor in enumerate(inputs)
        ]
        return self._begin("all_gather", calls, [one for of_rank in outputs for one in of_rank], layout, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> WorldWork | None:
        """See ``torch.distributed.gather``; ``opts`` are options, or the root."""
        (tensor,), root, layout = _list(inputs), getattr(opts, "rootRank", opts or 0), Layout()
        targets = (_list(outputs[0]) if _is_nested(outputs) else list(outputs)) if root == self.group.rank else []
        calls = [(collectives.gather, layout.source(tensor), layout.targets(targets) or None, root)]
        return self._begin("gather", calls, targets, layout, opts, timeout)

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> WorldWork | None:
        """See ``torch.distributed.scatter``; ``opts`` are options, or the root."""
        (tensor,), root, layout = _list(outputs), getattr(opts, "rootRank", opts or 0), Layout()
        sources = (_list(inputs[0]) if _is_nested(inputs) else list(inputs)) if root == self.group.rank else []
        calls = [(collectives.scatter, layout.target(tensor), layout.sources(sources) or None, root)]
        return self._begin("scatter", calls, [tensor], layout, opts, timeout)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> WorldWork | None:
        """See ``torch.distributed.reduce_scatter``; ``opts`` are options, or the reduction."""
        (tensor,), layout = _list(outputs), Layout()
        sources = inputs[0] if _is_nested(inputs) else inputs
        calls = [(exchanges.reduce_scatter, layout.target(tensor), layout.sources(sources), _reduction(opts))]
        return self._begin("reduce_scatter", calls, [tensor], layout, opts, timeout)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> WorldWork | None:
        """See ``torch.distributed.reduce_scatter_tensor``."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> WorldWork | None:
        """Reduce and scatter several tensors."""
        layout, op = Layout(), _reduction(opts)
        calls = [
            (exchanges.reduce_scatter_tensor, layout.target(output), layout.source(tensor), op)
            for output, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._begin("reduce_scatter_tensor", calls, list(outputs), layout, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> WorldWork | None:
        """See ``torch.distributed.all_to_all``."""
        layout = Layout()
        calls = [(exchanges.all_to_all, layout.targets(outputs), layout.sources(inputs))]
        return self._begin("all_to_all", calls, list(outputs), layout, opts)

    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, of: Sequence[int], to: Sequence[int], opts: Any = None
    ) -> WorldWork | None:
        """See ``torch.distributed.all_to_all_single``; empty splits are even ones."""
        layout, splits = Layout(), (list(of) or None, list(to) or None)
        calls = [(exchanges.all_to_all_single, layout.target(output), layout.source(tensor), *splits)]
        return self._begin("all_to_all_single", calls, [output], layout, opts)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> WorldWork | None:
        """See ``torch.distributed.barrier``."""
        return self._begin("barrier", [(collectives.barrier,)], [], Layout(), opts, timeout)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:  # noqa: ARG002
        """Return when all have called it; the error of one that is late names those that did not come, all of them."""
        work = self._begin("barrier", [(collectives.barrier, "monitored_barrier")], [], Layout(), None, timeout)
        if work is not None:
            work.wait()

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> WorldWork | None:
        """See ``torch.distributed.send``."""
        (tensor,), layout = tensors, Layout()
        return self._begin("send", [(p2p.send, layout.source(tensor), dst, tag)], [tensor], layout)

    def recv(self, tensors: Tensors, src: int | None, tag: int = 0) -> WorldWork | None:
        """See ``torch.distributed.recv``."""
        (tensor,), layout = tensors, Layout()
        return self._begin("recv", [(p2p.recv, layout.target(tensor), src, tag)], [tensor], layout)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> WorldWork | None:
        """Receive from the first member that sends."""
        return self.recv(tensors, None, tag)

    def _start_coalescing(self, _: torch.device) -> None:
        self._together = []

    def _end_coalescing(self, _: torch.device) -> WorldWork:
        together, self._together = self._together or [], None

        def give_back() -> None:
            for _, layout in together:
                layout.give_back()

        calls = [call for begun, _ in together for call in begun]
        return WorldWork(calls, [], self._completer, give_back, self._note)

    #: the names of older releases
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def made(group: Group) -> WorldProcessGroup:
    """Make the process group of ``group``; torch.distributed forgets it when the world is left."""
    member, name = group.member, registration.free_name(f"mw:{group.member.name}:{group.gid}")
    pg = WorldProcessGroup(group, name)
    registration.register(pg, name)
    forget = member.forget

    def forget_both() -> None:
        forget()
        registration.unregister(pg, name)

    member.forget = forget_both
    return pg


def _list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _is_nested(tensors: Any) -> bool:
    return bool(tensors) and not isinstance(tensors[0], torch.Tensor)


def _reduction(opts: Any) -> Any:
    """The reduction that options have, or that they are."""
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
