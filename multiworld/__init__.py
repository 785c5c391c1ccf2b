"""Many fault domains in one process: worlds that break, and come back, one by one.

    from multiworld import MultiWorld

    async with MultiWorld() as mw:
        w = await mw.join("pipeline-1", rank, 2, store="tcp://127.0.0.1:29500")
        await w.send(tensor, dst=1)

Importing the package loads no torch and changes nothing in the process; names are loaded when they are first used.
Programs written for pymultiworld 0.2.3 find their modules here: ``multiworld.manager``, ``multiworld.communicator``,
``multiworld.watchdog`` and the older ``multiworld.world_manager``, ``multiworld.world_communicator``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from multiworld import version
from multiworld.compat import conflict

if getattr(version, "DISTRIBUTION", "") != "torch-multiworld":
    raise ImportError(conflict.mixed(__path__[0]))

from multiworld.config import FileStorePath, Heartbeat, TcpStoreAddress, WorldConfig, WorldState
from multiworld.errors import (
    BackendFailed,
    BackendUnavailable,
    BrokenWorldException,
    DescriptorsExhausted,
    DeviceFailed,
    GaveUp,
    InvalidArgument,
    LossReason,
    MultiWorldError,
    ObjectRefused,
    OpTimeout,
    PeerLost,
    RendezvousError,
    StaleGeneration,
    TensorMismatch,
    TooFewMembers,
    WorldClosed,
    WrongContext,
)
from multiworld.events import (
    AttemptFailed,
    DeviceLost,
    Draining,
    Event,
    OwnStall,
    PeerLeft,
    PeerRecovered,
    PeerSuspected,
    WorldBroken,
    WorldGivenUp,
    WorldJoined,
    WorldLeft,
)
from multiworld.version import VERSION as __version__  # noqa: N811 - the name that tools look for

conflict.warn(__path__[0])

if TYPE_CHECKING:
    from multiworld.operations.p2p import P2P as P2P
    from multiworld.rendezvous.listing import ListedMember as ListedMember
    from multiworld.rendezvous.listing import ListedWorld as ListedWorld
    from multiworld.session.member import WorldMember as WorldMember
    from multiworld.torch.recovery import recovering as recovering
    from multiworld.worlds.group import Group as Group
    from multiworld.worlds.multi_world import MultiWorld as MultiWorld
    from multiworld.worlds.supervision.supervisor import Supervisor as Supervisor
    from multiworld.worlds.supervision.want import Backoff as Backoff
    from multiworld.worlds.supervision.want import Want as Want
    from multiworld.worlds.world import World as World

_LAZY = {
    "ListedMember": "multiworld.rendezvous.listing",
    "ListedWorld": "multiworld.rendezvous.listing",
    "Backoff": "multiworld.worlds.supervision.want",
    "Supervisor": "multiworld.worlds.supervision.supervisor",
    "Want": "multiworld.worlds.supervision.want",
    "MultiWorld": "multiworld.worlds.multi_world",
    "World": "multiworld.worlds.world",
    "WorldMember": "multiworld.session.member",
    "Group": "multiworld.worlds.group",
    "P2P": "multiworld.operations.p2p",
    "recovering": "multiworld.torch.recovery",
}

__all__ = [
    "P2P",
    "AttemptFailed",
    "BackendFailed",
    "BackendUnavailable",
    "Backoff",
    "BrokenWorldException",
    "DescriptorsExhausted",
    "DeviceFailed",
    "DeviceLost",
    "Draining",
    "Event",
    "FileStorePath",
    "GaveUp",
    "Group",
    "Heartbeat",
    "InvalidArgument",
    "ListedMember",
    "ListedWorld",
    "LossReason",
    "MultiWorld",
    "MultiWorldError",
    "ObjectRefused",
    "OpTimeout",
    "OwnStall",
    "PeerLeft",
    "PeerLost",
    "PeerRecovered",
    "PeerSuspected",
    "RendezvousError",
    "StaleGeneration",
    "Supervisor",
    "TcpStoreAddress",
    "TensorMismatch",
    "TooFewMembers",
    "Want",
    "World",
    "WorldBroken",
    "WorldClosed",
    "WorldConfig",
    "WorldGivenUp",
    "WorldJoined",
    "WorldLeft",
    "WorldMember",
    "WorldState",
    "WrongContext",
    "__version__",
    "recovering",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
