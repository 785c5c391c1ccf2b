"""A process group with the surface that torchft's manager uses; nothing of torchft is imported."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from multiworld.config import TcpStoreAddress
from multiworld.errors import InvalidArgument
from multiworld.torch import registration
from multiworld.torch.quorum import QuorumProcessGroup

DEFAULT_TIMEOUT: Final = timedelta(seconds=60)


class TorchftProcessGroup(QuorumProcessGroup):
    """For ``torchft.Manager(pg=TorchftProcessGroup(), ...)``: each quorum is a world, which ``configure`` joins.

    Args:
        timeout: of each operation, and until the members of a quorum have met.
        backend: of the worlds, see ``MultiWorld.join``; so is ``device``.
    """

    def __init__(
        self, timeout: timedelta = DEFAULT_TIMEOUT, *, backend: str = "gloo", device: str | None = None
    ) -> None:
        super().__init__("torchft", 0, 1, timeout, backend, device)

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
        store = TcpStoreAddress(host.strip("[]"), int(port), hosted=False)
        self._go_on(f"torchft-{prefix}", rank, size, store, self._timeout)

    def register(self, name: str) -> TorchftProcessGroup:
        """Let torch.distributed know it, for DeviceMesh and compiled code; returns itself."""
        self.group_name = name
        registration.register(self, name)
        return self

    def unregister(self) -> None:
        """Let torch.distributed forget it."""
        registration.unregister(self, self.group_name)
