"""The interface of a backend: what is asked of it, and nothing about worlds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Finished = Callable[[BaseException | None], None]


class Driver(Protocol):
    """Carries collectives whose members, lengths and dtypes are agreed on already.

    ``open`` blocks until all members have opened theirs. The operations start something and return a handle for
    ``watch``; they are called in the same order on all members. Ranks are those of the group.
    """

    name: str

    def open(self) -> None:
        """Connect to the other members; raises if ``abort`` is called meanwhile."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        """Start a broadcast."""

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        """Start an all-reduce in place."""

    def reduce(self, tensor: torch.Tensor, root: int, op: Any) -> Any:
        """Start a reduce in place."""

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> Any:
        """Start an all-gather."""

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Any:
        """Start a gather; ``outputs`` is empty except at the root."""

    def scatter(self, output: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> Any:
        """Start a scatter; ``tensors`` is empty except at the root."""

    def all_to_all(
        self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> Any:
        """Start an all-to-all of two flat tensors, split as said."""

    def watch(self, work: Any, finished: Finished) -> None:
        """Call ``finished`` with None or the error when ``work`` is over, from any thread."""

    def abort(self) -> None:
        """Release everything that waits; nothing can be started any more. Blocks for half a second at most."""

    def close(self, deadline: float) -> None:
        """Free everything after ``abort`` or when nothing is under way; blocks for at most ``deadline`` seconds."""
