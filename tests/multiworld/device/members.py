"""Common parts of members in the tests of worlds on NCCL; imports nothing but torch and multiworld."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import torch

from multiworld import BrokenWorldException, InvalidArgument, MultiWorld, TensorMismatch, World

DEVICE = torch.device("cuda:0")
SECONDS = 30.0


@dataclass(frozen=True)
class Place:
    """The store and the backend of a test's members."""

    store: str
    backend: str


@contextlib.asynccontextmanager
async def world(place: Place, rank: int, size: int, name: str = "w", **options: Any) -> AsyncIterator[World]:
    """A world on the one device of this host, which each member takes for a host of its own."""
    os.environ["NCCL_HOSTID"] = f"host-{rank}"
    async with MultiWorld(op_timeout=SECONDS) as mw:
        yield await mw.join(name, rank, size, store=place.store, backend=place.backend, device=DEVICE, **options)


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """A copy there; no kernel is needed for it, and none runs on an imitated device."""
    return tensor.to(DEVICE)


def numbers(count: int, begin: float = 0.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return on_device(torch.arange(begin, begin + count).to(dtype))


def room(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return on_device(torch.zeros(count, dtype=dtype))


def run(main: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main(*args), 2 * SECONDS)

    return asyncio.run(bounded())


async def error_of(call: Awaitable[Any]) -> Exception:
    """Return the error that it raises."""
    try:
        await call
    except (InvalidArgument, TensorMismatch, BrokenWorldException) as error:
        return error
    raise AssertionError("nothing was raised")
