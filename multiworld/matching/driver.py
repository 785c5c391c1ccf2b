"""The interface of a backend: what is asked of it, and nothing about worlds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Finished = Callable[[BaseException | None], None]
Launched = Callable[[], None]


class DriverRefused(ValueError):
    """The backend cannot do this operation, such as its dtype or reduction; known before anything was launched.

    The operation fails and the world goes on. Every other error of a driver means that the world is broken.
    """


class Driver(Protocol):
    """Carries operations whose members, lengths and dtypes are agreed on already.

    ``open`` blocks until all members have opened theirs. The operations start something and return a handle, the
    work; members start the operations of one driver in the same order. Ranks are those of the driver's group. Tensors
    are contiguous. A work keeps its tensors alive until it is over.

    The tensors are on the world's CUDA device. The operations return at once, may be called from any thread, also under
    a lock, and never raise for a failure of the backend: ``watch`` reports it. They take ``after``, an event of CUDA
    recorded on the caller's stream, for which the driver's stream waits before it starts; None waits for nothing.

    ``op`` is a ``torch.distributed.ReduceOp``; reductions are in place. The lists of ``gather`` and ``scatter`` are
    empty except at the root. ``reduce_scatter`` takes a flat tensor with one piece of the output's length for each
    rank, and ``all_to_all`` two flat tensors, split in elements.
    """

    name: str

    def open(self) -> None:
        """Connect to the other members; blocks. Raises if ``abort`` is called meanwhile, or if it takes too long."""

    def broadcast(self, tensor: torch.Tensor, root: int, *, after: Any = None) -> Any: ...
    def all_reduce(self, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Any: ...
    def reduce(self, tensor: torch.Tensor, root: int, op: Any, *, after: Any = None) -> Any: ...
    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, *, after: Any = None) -> Any: ...
    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int, *, after: Any = None) -> Any: ...
    def scatter(
        self, output: torch.Tensor, tensors: Sequence[torch.Tensor], root: int, *, after: Any = None
    ) -> Any: ...
    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Any: ...
    def all_to_all(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        *,
        after: Any = None,
    ) -> Any: ...
    def send(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Any: ...
    def recv(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Any: ...

    def transfers(self, adopt: Callable[[int], None]) -> Any:
        """Return the compiled launcher that transfers can be handed to; None if they need Python.

        Args:
            adopt: called, without a lock, with the number of a transfer that compiled code cannot tell the end of, or
                with 0 for all: ``adopt`` of the driver is called for each in turn.
        """

    def adopt(self, number: int, memory: Any, *, dropped: bool) -> Any:
        """Return the work of a transfer that was handed to the launcher.

        Args:
            number: of the transfer.
            memory: what is kept until it is over.
            dropped: it is not launched.
        """

    def watch(self, work: Any, finished: Finished, launched: Launched | None = None) -> None:
        """Report the end of ``work``, from any thread.

        Args:
            work: what an operation returned.
            finished: called once, with None or the error, when the backend no longer uses the tensors.
            launched: called once before ``finished(None)``, when the work is in the driver's stream; where there is
                none, when it has ended. It is not called if the launch fails.
        """

    def join(self, work: Any) -> None:
        """Let the calling thread's current CUDA stream wait for the end of a launched ``work``; never blocks."""

    def abort(self) -> None:
        """Release everything that waits; nothing can be started any more. Blocks for half a second at most."""

    def close(self, deadline: float) -> None:
        """Free everything after ``abort`` or when nothing is under way; blocks for at most ``deadline`` seconds."""
