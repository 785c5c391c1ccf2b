"""Process groups whose members are agreed on elsewhere, by torchft's manager or by who calls torch's ``reconfigure``.

Each agreement is a world of its own, which the members join after they have left the last one.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from multiworld.errors import InvalidArgument, MultiWorldError, WorldClosed
from multiworld.torch import registration
from multiworld.torch.process_group import WorldProcessGroup
from multiworld.torch.work import WorldWork
from multiworld.worlds.multi_world import MultiWorld


class QuorumProcessGroup(WorldProcessGroup):
    """A process group without members until the first agreement.

    Args:
        name: that torch.distributed knows it by.
        rank: until then; so is ``size``.
        timeout: of each operation, and until the members have met.
        backend: of the worlds, see ``MultiWorld.join``; so is ``device``.
    """

    def __init__(self, name: str, rank: int, size: int, timeout: timedelta, backend: str, device: str | None) -> None:
        dist.ProcessGroup.__init__(self, rank, size)  # it belongs to no world yet
        self.group_name = self.group_desc = name
        self._place = rank, size
        self._timeout: float = timeout.total_seconds()
        self._backend, self._device = backend, device
        self._end = lambda: None

    def _go_on(self, world: str, rank: int, size: int, store: Any, seconds: float) -> None:
        """Leave the present world and join the next; its members have to meet within ``seconds``."""
        self.shutdown()
        own = MultiWorld()  # several members may be in one process
        try:
            joined = own.sync.join(
                world,
                rank,
                size,
                store=store,
                backend=self._backend,
                device=self._device,
                op_timeout=self._timeout,
                join_timeout=seconds,
            )
        except BaseException:
            own.sync.close()
            raise
        self.bind(joined, own.sync.close)
        registration.refresh(self)

    def _begin(self, name: str, *args: Any, **more: Any) -> WorldWork | None:
        if not hasattr(self, "group"):
            raise WorldClosed(
                what=f"{name} on a process group without members", cause="nobody has told it who they are"
            )
        return super()._begin(name, *args, **more)

    def errored(self) -> MultiWorldError | None:
        """Return what broke the world, or why there is none."""
        return super().errored() if hasattr(self, "group") else WorldClosed(what="it has no members yet")

    def rank(self) -> int:
        return super().rank() if hasattr(self, "group") else self._place[0]

    def size(self) -> int:
        return super().size() if hasattr(self, "group") else self._place[1]

    getRank, getSize = rank, size  # noqa: N815 - torch's names


class ReconfigurableProcessGroup(QuorumProcessGroup):
    """A process group under the names of ``reconfigure`` that torch has from 2.14 on: its members are who was named.

    ``init_process_group("multiworld", enable_reconfigure=True)`` makes it.

    Args:
        store: a store of torch's that all members reach.
    """

    supports_reconfigure = True

    def __init__(
        self, store: Any, name: str, rank: int, size: int, timeout: timedelta, backend: str, device: str | None
    ) -> None:
        super().__init__(name, rank, size, timeout, backend, device)
        self._store, self._worlds, self._handle = store, f"c10d-{name}", uuid.uuid4().hex

    def get_reconfigure_handle(self) -> str:
        """Return what names this member in ``reconfigure``."""
        return self._handle

    def reconfigure(self, opts: Any) -> WorldWork:
        """Go on with the members that ``opts`` names, in the order of a list, or one that all find in a set.

        Args:
            opts: ``torch._C._distributed_c10d.ReconfigureOptions``: a new ``uuid``, the ``handles``, a ``timeout``.

        Returns:
            A work that is over.

        Raises:
            InvalidArgument: we are not among them, or somebody is there twice.
            RendezvousError: they have not met in time.
        """
        handles = opts.handles if isinstance(opts.handles, list) else sorted(opts.handles)
        if self._handle not in handles or len(set(handles)) < len(handles):
            what = f"the handles {handles} have not {self._handle}, which is ours, or one of them twice"
            remedy = "give all members the same handles, each once, from get_reconfigure_handle()"
            raise InvalidArgument(what=what, remedy=remedy, operation="reconfigure")
        seconds = self._timeout if opts.timeout is None else opts.timeout.total_seconds()
        rank, size = handles.index(self._handle), len(handles)
        self._go_on(f"{self._worlds}-{opts.uuid}", rank, size, self._store, seconds)
        work = WorldWork((), [], self._completer, None, self._note)
        work.wait()
        return work
