"""Counts of the all-reduces by the switch, and of those by Gloo with the reasons."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Statistics:
    """All-reduces of this process since it began, over all of its ``switchml`` groups.

    Attributes:
        delegated: those that the switch did, ``delegated_bytes`` of payload in ``seconds``.
        gloo: those that Gloo did, by reason: ``operation`` (not a sum), ``tensors`` (not one), ``dtype``, ``layout``,
            ``empty``, ``no switch``, ``failure`` (of the switch), ``after failure``.
        failed: those that raised.
    """

    delegated: int = 0
    delegated_bytes: int = 0
    seconds: float = 0.0
    gloo: dict[str, int] = field(default_factory=dict)
    gloo_bytes: int = 0
    failed: int = 0


class Counts:
    """Counts from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._seconds = 0.0

    def delegated(self, tensor: torch.Tensor, seconds: float) -> None:
        with self._lock:
            self._sums.update(delegated=1, delegated_bytes=_size([tensor]))
            self._seconds += seconds

    def gloo(self, tensors: Iterable[torch.Tensor], reason: str) -> None:
        with self._lock:
            self._sums.update(gloo_bytes=_size(tensors))
            self._reasons[reason] += 1

    def failed(self) -> None:
        with self._lock:
            self._sums["failed"] += 1

    def snapshot(self) -> Statistics:
        with self._lock:
            return Statistics(**self._sums, seconds=self._seconds, gloo=dict(self._reasons))


def _size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


COUNTS = Counts()
