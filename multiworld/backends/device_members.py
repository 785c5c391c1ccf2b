"""The members of a communicator on devices, and their comparison before it is made."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from multiworld.backends.setup_store import SetupStore
from multiworld.errors import BackendFailed


@dataclass(frozen=True, slots=True)
class Member:
    """Our membership in the group of a communicator.

    Attributes:
        world: name of the world.
        rank: ours in the world.
        place: ours in the group.
        size: of the group.
        device: CUDA device in text, with its index.
    """

    world: str
    rank: int
    place: int
    size: int
    device: str

    def failed(self, what: str, cause: str, remedy: str) -> BackendFailed:
        """Make the error for a communicator that cannot be made or ended."""
        return BackendFailed(self.world, what, cause=cause, remedy=remedy, rank=self.rank)


_SAME = "install the same version on every member"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that members compare.

    Attributes:
        rank: its rank in the world.
        driver: name of its driver.
        version: of what the driver stands on; NCCL refuses members of other versions.
        host: as NCCL tells hosts apart.
        device: PCI address of its device.
    """

    rank: int
    driver: str
    version: str
    host: str
    device: str


def host_id() -> str:
    """Return what NCCL takes for the host: ``NCCL_HOSTID``, or the host's name and boot."""
    given = os.environ.get("NCCL_HOSTID")
    if given:
        return given
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
    return f"{socket.gethostname()} {boot}"


def meet(store: SetupStore, us: Member, ours: Facts) -> None:
    """Exchange facts with all members of the group, before NCCL would hang or fail over a difference.

    Raises:
        BackendFailed: two members do not fit together.
    """
    store.set(f"mw/driver/{us.place}", json.dumps(asdict(ours)).encode())
    members = [ours if place == us.place else _facts(store, us, place) for place in range(us.size)]
    for theirs in members:
        _compare(us, ours, theirs)
    _one_device_each(us, members)


def _facts(store: SetupStore, us: Member, place: int) -> Facts:
    said = store.get(f"mw/driver/{place}")
    try:
        return Facts(**json.loads(said))
    except (ValueError, TypeError):
        what = f"member {place} of the group says what no driver says: {said[:80]!r}"
        raise us.failed(what, "it runs another version of multiworld", _SAME) from None


def _compare(us: Member, ours: Facts, theirs: Facts) -> None:
    if theirs.driver != ours.driver:
        raise us.failed(
            f"rank {theirs.rank} uses the driver {theirs.driver!r}, rank {us.rank} {ours.driver!r}",
            cause="backend='nccl' takes NVIDIA's bindings where they are installed, and torch's group elsewhere",
            remedy="install the extra 'nccl' on every member or on none, or join with backend='torch-nccl' everywhere",
        )
    if theirs.version != ours.version:
        what = f"rank {theirs.rank} has {theirs.version}, rank {us.rank} {ours.version}"
        raise us.failed(what, "NCCL connects only members of the same version", _SAME)


def _one_device_each(us: Member, members: list[Facts]) -> None:
    seen: dict[tuple[str, str], int] = {}
    for one in members:
        other = seen.setdefault((one.host, one.device), one.rank)
        if other != one.rank:
            raise us.failed(
                f"ranks {other} and {one.rank} use the same device, {one.device}",
                cause="NCCL refuses two ranks of a communicator on one device of a host",
                remedy="pass another device= to one of them; to share one in a test, start each process with an "
                "NCCL_HOSTID of its own",
            )
