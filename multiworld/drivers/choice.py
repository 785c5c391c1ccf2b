"""Which driver a world gets."""

from __future__ import annotations

from multiworld.config import WorldConfig

# Not when they are needed: an import in the middle of a collective fails where no file descriptor is free.
from multiworld.drivers.gloo import GlooDriver
from multiworld.drivers.nccl import NcclDriver
from multiworld.drivers.values import LaneStore
from multiworld.matching.driver import Driver


def make_driver(config: WorldConfig, place: int, size: int, store: LaneStore, address: str) -> Driver:
    """The driver for one group of a world; made only, ``open`` connects it.

    Args:
        config: of the world.
        place: our rank in the group.
        size: of the group.
        store: where the group's members exchange what sets it up.
        address: local address to bind to.
    """
    if config.backend == "nccl":
        return NcclDriver(store, place, size, config.device)
    return GlooDriver(store, place, size, address)
