"""A process group with the surface that torchft's manager uses; nothing of torchft is imported."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from multiworld.config import TcpStoreAddress
from multiworld.errors import InvalidArgument, MultiWorldError, WorldClosed
from multiworld.torch import registration
from multiworld.torch.process_group import WorldProcessGroup
from multiworld.worlds.multi_world import MultiWorld

DEFAULT_TIMEOUT: Final = timedelta(seconds=60)


class TorchftProcessGroup(WorldProcessGroup):
    """For ``torchft.Manager(pg=TorchftProcessGroup(), ...)``: each quorum is a world, which ``configure`` joins.

    Args:
        timeout: of each operation, and until the members of a quorum have met.
        backend: of the worlds, see ``MultiWorld.join``; so is ``device``.
    """

    def __init__(
        self, timeout: timedelta = DEFAULT_TIMEOUT, *, backend: str = "gloo", device: str | None = None
    ) -> None:
        dist.ProcessGroup.__init__(self, 0, 1)  # it belongs to no world yet
        self._timeout: float = timeout.total_seconds()
        self._backend, self._device = backend, device
        self._name = self._desc = "torchft"
        self._end = lambda: None

    def configure(self, store_addr: str, *place: Any, **more: Any) -> None:
        """Leave the present quorum and join the next.

        Args:
            store_addr: ``host:port/prefix``; the prefix names the quorum.
            place: rank and size; newer releases of torchft say the replica's name first.
            more: the same by name; what else is given is not needed.
        """
        numbers = [one for one in place if isinstance(one, int)]
        rank = int(more.get("rank", numbers[0] if numbers else -1))
        size = int(more.get("world_size", numbers[1] if len(numbers) > 1 else -1))
        where, _, prefix = store_addr.partition("/")
        host, _, port = where.rpartition(":")
        if not (port.isdecimal() and prefix):
            what = f"{store_addr!r} is not host:port/prefix"
            raise InvalidArgument(what=what, remedy="pass what torchft's manager passes", operation="configure")
        self.shutdown()
        store = TcpStoreAddress(host.strip("[]"), int(port), hosted=False)
        own = MultiWorld()  # several members may be in one process
        try:
            world = own.sync.join(
                f"torchft-{prefix}",
                rank,
                size,
                store=store,
                backend=self._backend,
                device=self._device,
                op_timeout=self._timeout,
                join_timeout=self._timeout,
            )
        except BaseException:
            own.sync.close()
            raise
        self.bind(world, own.sync.close)
        registration.refresh(self)

    def errored(self) -> MultiWorldError | None:
        """Return what broke the quorum's world, or why there is none."""
        return super().errored() if hasattr(self, "group") else WorldClosed(what="configure() was not called")

    def register(self, name: str) -> TorchftProcessGroup:
        """Let torch.distributed know it, for DeviceMesh and compiled code; returns itself."""
        self._name = name
        registration.register(self, name)
        return self

    def unregister(self) -> None:
        """Let torch.distributed forget it."""
        registration.unregister(self, self._name)

    def rank(self) -> int:
        """Return our rank in the quorum; 0 before the first."""
        return super().rank() if hasattr(self, "group") else 0

    def size(self) -> int:
        """Return the size of the quorum; 1 before the first."""
        return super().size() if hasattr(self, "group") else 1

    getRank, getSize = rank, size  # noqa: N815 - torch's names
