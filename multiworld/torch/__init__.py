"""Worlds as process groups of torch.distributed: DDP, FSDP2, DeviceMesh and the rest run on them unchanged.

    pg = world.process_group                        # of a world that was joined
    dist.init_process_group("multiworld")           # or a world of its own, after `import multiworld.torch`

This module is imported where one of them is asked for. See ``docs/process-groups.md``.
"""

from __future__ import annotations

from multiworld.torch.backend import Options, register
from multiworld.torch.process_group import WorldProcessGroup
from multiworld.torch.recovery import recovering
from multiworld.torch.torchft import TorchftProcessGroup
from multiworld.torch.work import WorldWork

__all__ = ["Options", "TorchftProcessGroup", "WorldProcessGroup", "WorldWork", "recovering", "register"]

register()
