"""All-reduces by a switch: SwitchML's in-network aggregation as a backend of ``torch.distributed``.

    import multiworld.switchml

    torch.distributed.init_process_group("switchml")        # or "cpu:switchml"

The process group is Gloo's, except that the sum of one float32 or int32 tensor goes to the switch, through SwitchML's
client library. ``install()`` does the same for programs that say ``gloo``. See docs/switchml.md.
"""

from __future__ import annotations

from multiworld.switchml.backend import install, register, uninstall
from multiworld.switchml.compiling import ClientLibrary, compile_shim
from multiworld.switchml.errors import (
    SwitchJobFailed,
    SwitchJobTimeout,
    SwitchMLClosed,
    SwitchMLError,
    SwitchMLUnavailable,
)
from multiworld.switchml.group import SwitchMLGroup
from multiworld.switchml.settings import Otherwise, Settings, configure
from multiworld.switchml.statistics import COUNTS, Statistics

__all__ = [
    "ClientLibrary",
    "Otherwise",
    "Settings",
    "Statistics",
    "SwitchJobFailed",
    "SwitchJobTimeout",
    "SwitchMLClosed",
    "SwitchMLError",
    "SwitchMLGroup",
    "SwitchMLUnavailable",
    "compile_shim",
    "configure",
    "install",
    "register",
    "statistics",
    "uninstall",
]


def statistics() -> Statistics:
    """Return how much the switch has done in this process, and how much Gloo instead and why."""
    return COUNTS.snapshot()


register()
