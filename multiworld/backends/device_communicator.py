"""The interface between a device driver and the communicator of any library, and the comparison of its members."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from multiworld.backends.setup_store import SetupStore
from multiworld.errors import BackendFailed

Cancelled = Callable[[], bool]


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


class Communicator(Protocol):
    """One communicator. It belongs to one thread, which has its device and its stream as the current ones.

    Its operations are those of ``Driver`` without ``after``, and return what ``outcome`` takes. Only ``abort`` may be
    called from another thread, as the last resort, while that thread is inside a call.
    """

    name: str

    def version(self) -> str:
        """Return what has to be the same on all members, in text."""

    def connect(self, store: SetupStore, stream: int, cancelled: Cancelled) -> None:
        """Meet the other members; operations go into ``stream``, a CUDA stream's address. May block."""

    def failure(self) -> BaseException | None:
        """Return a failure in the background, where no call could report it; None if there is none."""

    def outcome(self, handle: Any) -> BaseException | None:
        """Return how an operation went so far, at once, in a thread that has its stream."""

    def abort(self) -> None:
        """Stop its kernels and free it. May block. Harmless if it is gone, or not made yet."""

    def finalize(self, cancelled: Cancelled) -> None:
        """Free it in good order, when nothing is under way here. May block."""

    def release(self) -> None:
        """Let go of what an abort or an end leaves, when no operation and no call is under way any more. May block."""


class Gathered:
    """The outputs of an all-gather as NCCL writes them: one behind the other.

    Those of one member may lie so and those of another one not; all of them have to call the same function of NCCL.

    Args:
        outputs: flat tensors of one length.
    """

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        first, count = outputs[0], len(outputs) * outputs[0].numel()
        self._outputs = [] if _are_adjacent(outputs) else outputs
        self.whole = first.new_empty(count) if self._outputs else first.as_strided((count,), (1,))

    def spread(self) -> None:
        """Bring it to its places, in the current stream and after what was enqueued there."""
        for output, part in zip(self._outputs, self.whole.chunk(max(1, len(self._outputs))), strict=False):
            output.copy_(part)


def _are_adjacent(pieces: Sequence[torch.Tensor]) -> bool:
    first, step = pieces[0], pieces[0].nbytes
    storage = first.untyped_storage().data_ptr()
    return all(
        one.untyped_storage().data_ptr() == storage and one.data_ptr() == first.data_ptr() + place * step
        for place, one in enumerate(pieces)
    )


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
