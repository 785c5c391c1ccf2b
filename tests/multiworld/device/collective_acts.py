"""Acts of members in the tests of collectives that stay on the device; imports nothing but torch and multiworld."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from torch.distributed import ReduceOp

from multiworld.lab.context import Context
from tests.multiworld.device.members import DEVICE, Place, error_of, numbers, room, run, world


def collectives(_: Context, place: Place, rank: int, size: int, stream: bool) -> dict[str, Any]:
    """Each collective once; what is left in the tensors of this rank."""

    async def main() -> dict[str, Any]:
        found: dict[str, Any] = {}
        async with world(place, rank, size) as w:
            t = numbers(4, rank)
            await w.broadcast(t, 1, stream=stream)
            found["broadcast"] = t
            for name, op in (("sum", ReduceOp.SUM), ("max", ReduceOp.MAX), ("avg", ReduceOp.AVG)):
                t = numbers(4, rank)
                await w.all_reduce(t, op, stream=stream)
                found[name] = t
            t = numbers(4, rank)
            await w.reduce(t, 1, ReduceOp.SUM, stream=stream)
            found["reduce"] = t if rank == 1 else None
            ts = [room(4) for _ in range(size)]
            await w.all_gather(ts, numbers(4, rank), stream=stream)
            found["all_gather"] = ts
            t = room(4 * size)
            await w.all_gather_into_tensor(t, numbers(4, rank), stream=stream)
            found["all_gather_into_tensor"] = t
            ts = [room(4) for _ in range(size)] if rank == 1 else []
            await w.gather(numbers(4, rank), ts or None, 1, stream=stream)
            found["gather"] = ts
            t = room(4)
            await w.scatter(t, [numbers(4, 10 * r) for r in range(size)] if rank == 1 else None, 1, stream=stream)
            found["scatter"] = t
            t = room(4)
            await w.reduce_scatter(t, [numbers(4, 10 * r + rank) for r in range(size)], stream=stream)
            found["reduce_scatter"] = t
            t = room(4)
            await w.reduce_scatter_tensor(t, numbers(4 * size, rank), stream=stream)
            found["reduce_scatter_tensor"] = t
            ts = [room(r + 1) for r in range(size)]
            await w.all_to_all(ts, [numbers(rank + 1, 10 * rank + r) for r in range(size)], stream=stream)
            found["all_to_all"] = ts
            t = room(2 * size)
            await w.all_to_all_single(t, numbers(2 * size, 100 * rank), stream=stream)
            found["all_to_all_single"] = t
            await w.synchronize()
            torch.cuda.synchronize(DEVICE)
            return {name: listed(value) for name, value in found.items()}

    found: dict[str, Any] = run(main)
    return found


def listed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu().tolist()
    return [listed(one) for one in value] if isinstance(value, list) else value


def on_both(_: Context, place: Place, rank: int) -> dict[str, Any]:
    """CPU tensors of any length and objects in the same world; a collective on both kinds; then again."""

    async def main() -> dict[str, Any]:
        async with world(place, rank, 2) as w:
            large = torch.full((1 << 19,), rank + 1.0)
            await w.all_reduce(large)
            rows = [torch.full((1 << 18,), 10.0 * rank + r) for r in range(2)]
            out = [torch.zeros(1 << 18) for _ in range(2)]
            await w.all_to_all(out, rows)
            error = await error_of(w.all_reduce(room(4) if rank else torch.zeros(4)))
            t = numbers(4)
            await w.all_reduce(t)
            objects = await w.all_gather_object({"rank": rank})
            return {
                "large": large[-1].item(),
                "rows": [one[-1].item() for one in out],
                "error": str(error),
                "again": listed(t),
                "objects": objects,
            }

    found: dict[str, Any] = run(main)
    return found


def late_member(_: Context, place: Place, rank: int) -> Any:
    """A collective that is cancelled before all have called it goes on without its caller, from copies."""

    async def main() -> Any:
        async with world(place, rank, 2, on_cancel="finish") as w:
            t = numbers(1 << 16, rank)
            if rank == 0:
                call = asyncio.ensure_future(w.all_reduce(t))
                await asyncio.sleep(0)
                call.cancel()
                ended = (await asyncio.gather(call, return_exceptions=True))[0]
                t.copy_(torch.full((1 << 16,), -7.0))
                await w.send_object("cancelled", 1)
                await w.barrier()
                await w.synchronize()
                return type(ended).__name__, t.cpu()[:2].tolist()
            await w.recv_object(0)
            await w.all_reduce(t)
            await w.barrier()
            return t.cpu()[:2].tolist()

    return run(main)


def of_a_group(_: Context, place: Place, rank: int) -> Any:
    """Ranks 2 and 0 as a group of their own, in this order; rank 1 takes no part."""

    async def main() -> Any:
        async with world(place, rank, 3) as w:
            found = None
            if rank != 1:
                pair = w.group([2, 0])
                total, told, parts = numbers(4, rank), numbers(4, rank), [room(2), room(2)]
                await pair.all_reduce(total)
                await pair.broadcast(told, 1)
                await pair.all_gather(parts, numbers(2, rank))
                found = listed([total, told, parts])
            await w.barrier()
            return found

    return run(main)


def alone(_: Context, place: Place, rank: int) -> Any:
    """The only member."""

    async def main() -> Any:
        async with world(place, rank, 1) as w:
            t, out = numbers(4), room(4)
            await w.all_reduce(t, ReduceOp.AVG)
            await w.all_gather_into_tensor(out, t)
            return listed([t, out])

    return run(main)
