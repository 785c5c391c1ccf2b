"""No injection: copies to and from the imitated device, and each operation of a world."""

from __future__ import annotations

import fake
import torch
from world import World, tensor


def run(operations: list[str], backend: str = "classic") -> tuple[str, dict[str, object]]:
    """Run every operation once and look at what the imitation counted."""
    values = torch.arange(4.0).to("cuda:0").cpu().tolist()
    if values != [0.0, 1.0, 2.0, 3.0]:
        return "BROKEN", {"copied": values}
    world = World(backend)
    failed: dict[str, str] = {}
    for operation in operations:
        before = fake.launched()
        try:
            world.run(operation)
        except Exception as error:  # noqa: BLE001 - all failures in one report
            failed[operation] = f"{type(error).__name__}: {error}"[:300]
        if fake.launched() == before and operation not in failed:
            failed[operation] = "never launched"
    reduced = tensor(1, 2)
    world.group.allreduce([reduced]).wait()
    detail = {"failed": failed, "reduced": reduced.cpu().tolist(), "depth": fake.depth()}
    return ("OK" if not failed and fake.depth() == 0 else "BROKEN"), detail
