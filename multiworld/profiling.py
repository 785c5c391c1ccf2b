"""Operations visible to ``torch.profiler``, at the price of one attribute look-up while no profiler runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def profiled() -> bool:
    return bool(torch.autograd.profiler._is_profiler_enabled)


@contextlib.contextmanager
def span(world: str, generation: int, operation: str) -> Iterator[None]:
    """Record the enclosed time as ``multiworld::<operation>`` with the world and generation as its arguments."""
    with torch.profiler.record_function(f"multiworld::{operation} world={world} generation={generation}"):
        yield
