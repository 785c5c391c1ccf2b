"""The interface between a device driver and the communicator of any library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

    Only ``abort`` may be called from another thread, as the last resort, while that thread is inside a call.
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

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any: ...
    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any: ...
    def reduce(self, tensor: torch.Tensor, root: int, op: Any) -> Any: ...
    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any: ...
    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Any: ...
    def scatter(self, output: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> Any: ...
    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> Any: ...
    def all_to_all(
        self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> Any: ...
    def send(self, tensor: torch.Tensor, peer: int) -> Any: ...
    def recv(self, tensor: torch.Tensor, peer: int) -> Any: ...


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
