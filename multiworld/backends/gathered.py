"""The outputs of an all-gather on a device, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch


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

    def pieces(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What is still to be copied, and where to."""
        return list(zip(self.whole.chunk(max(1, len(self._outputs))), self._outputs, strict=False))

    def spread(self) -> None:
        """Bring it to its places, in the current stream and after what was enqueued there."""
        for piece, output in self.pieces():
            output.copy_(piece)


def _are_adjacent(pieces: Sequence[torch.Tensor]) -> bool:
    first, step = pieces[0], pieces[0].nbytes
    storage = first.untyped_storage().data_ptr()
    return all(
        one.untyped_storage().data_ptr() == storage and one.data_ptr() == first.data_ptr() + place * step
        for place, one in enumerate(pieces)
    )
