"""One NCCL call of a world fails while an operation is being enqueued; what becomes of the caller?"""

from __future__ import annotations

import fake
from torch.distributed import DistBackendError
from world import World


def run(
    operation: str,
    sites: list[str] | None = None,
    code: int = fake.REMOTE_ERROR,
    judge: str = "all",
    fresh: bool = False,
    backend: str = "classic",
) -> tuple[str, dict[str, object]]:
    """Run an operation whose NCCL call fails.

    Args:
        operation: its name in `world.OPERATIONS`.
        sites: the NCCL calls that fail; default: those that carry data. A call that fails inside a group
            makes the group's end fail as well, as NCCL documents.
        code: the NCCL error they fail with.
        judge: "all", or "message" where only the error's text matters.
        fresh: whether the world runs its first operation, for which it has to make a communicator.
        backend: "classic" or "nccl2".
    """
    broken, healthy = World(backend), World(backend)
    healthy.run("all_reduce")
    if not fresh:
        broken.run(operation)
    sites = sites or list(fake.DATA_CALLS)
    for site in sites:
        fake.inject(site, fake.FAIL, code)
    error = _attempt(broken, operation)
    fake.lift(*sites)
    detail: dict[str, object] = {
        "fired": {site: fake.fired(site) for site in sites if fake.fired(site)},
        "exception": type(error).__name__ if error else None,
        "message": str(error)[:400] if error else "",
        "depth": fake.depth(),
    }
    before = fake.launched()
    detail["other world"] = repr(_attempt(healthy, "all_reduce"))
    detail["other launched"] = fake.launched() - before
    return _judge(error, detail, judge), detail


def _attempt(world: World, operation: str) -> Exception | None:
    try:
        world.run(operation)
    except Exception as error:  # noqa: BLE001 - which exception it is is what is measured
        return error
    return None


def _judge(error: Exception | None, detail: dict[str, object], judge: str) -> str:
    if error is None:
        return "NO_EXCEPTION"
    if "Unconvertible NCCL type" in str(error) and judge == "message":
        return "UNCONVERTIBLE"
    if judge == "message":
        return "OK" if "remote process exited" in str(error) else "WRONG_EXCEPTION"
    if detail["depth"]:
        return "GROUP_LEAKED"
    if not detail["other launched"] or detail["other world"] != "None":
        return "NOT_LAUNCHED"
    return "OK" if isinstance(error, DistBackendError) else "WRONG_EXCEPTION"
