"""What members do in the tests of worlds on NCCL; imports nothing but torch and multiworld."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ReduceOp

from multiworld import P2P, BrokenWorldException, InvalidArgument, MultiWorld, TensorMismatch, World, WorldBroken
from multiworld.lab.context import Context

DEVICE = torch.device("cuda:0")
SECONDS = 30.0


@dataclass(frozen=True)
class Place:
    """Where the members of a test meet, and on which backend."""

    store: str
    backend: str


@contextlib.asynccontextmanager
async def world(place: Place, rank: int, size: int, name: str = "w") -> AsyncIterator[World]:
    """A world on the one device of this host, which each member takes for a host of its own."""
    os.environ["NCCL_HOSTID"] = f"host-{rank}"
    async with MultiWorld(op_timeout=SECONDS) as mw:
        yield await mw.join(name, rank, size, store=place.store, backend=place.backend, device=DEVICE)


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
    """What it raises."""
    try:
        await call
    except (InvalidArgument, TensorMismatch, BrokenWorldException) as error:
        return error
    raise AssertionError("nothing was raised")


# point to point


def exchange(_: Context, place: Place, rank: int, dtypes: list[torch.dtype]) -> list[list[Any]]:
    """Each dtype to the other, both directions at once, told apart by tags."""

    async def main() -> list[list[Any]]:
        async with world(place, rank, 2) as w:
            came = [room(1000, dtype) for dtype in dtypes]
            sends = [w.send(numbers(1000, rank, dtype), 1 - rank, tag=tag) for tag, dtype in enumerate(dtypes)]
            await asyncio.gather(*sends, *(w.recv(t, 1 - rank, tag=tag) for tag, t in enumerate(came)))
            return [t.cpu()[:3].tolist() for t in came]

    found: list[list[Any]] = run(main)
    return found


def sizes(_: Context, place: Place, rank: int, counts: list[int]) -> list[bool]:
    """Messages of several lengths, one after the other."""

    async def main() -> list[bool]:
        right = []
        async with world(place, rank, 2) as w:
            for count in counts:
                if rank == 0:
                    await w.send(numbers(count), 1)
                else:
                    got = room(count)
                    await w.recv(got, 0)
                    right.append(torch.equal(got.cpu(), torch.arange(float(count))))
        return right

    found: list[bool] = run(main)
    return found


def described(_: Context, place: Place, rank: int) -> list[Any]:
    """Tensors with their shapes, on the device and on the CPU, to both."""

    async def main() -> list[Any]:
        async with world(place, rank, 2) as w:
            sent = torch.arange(12, dtype=torch.int32).reshape(3, 4)
            if rank == 0:
                for tensor in (on_device(sent), sent, on_device(sent), on_device(torch.zeros(0, 5))):
                    await w.send_tensor(tensor, 1)
                return []
            came = [await w.recv_tensor(0), await w.recv_tensor(0), await w.recv_tensor(0, device="cpu")]
            empty = await w.recv_tensor(0)
            same = [torch.equal(tensor.cpu(), sent) for tensor in came]
            return [same, [str(tensor.device) for tensor in came], tuple(empty.shape), str(empty.device)]

    found: list[Any] = run(main)
    return found


def any_source(_: Context, place: Place, rank: int) -> list[Any]:
    """Rank 0 receives from whoever sends."""

    async def main() -> list[Any]:
        async with world(place, rank, 3) as w:
            if rank:
                await w.send(numbers(4, rank), 0)
                await w.barrier()
                return []
            came = []
            for _ in range(2):
                got = room(4)
                came.append((await w.recv(got), got.cpu()[0].item()))
            await w.barrier()
            return sorted(came)

    found: list[Any] = run(main)
    return found


def batches(_: Context, place: Place, rank: int) -> list[Any]:
    """Everybody sends to everybody at once."""

    async def main() -> list[Any]:
        async with world(place, rank, 3) as w:
            others = [one for one in range(3) if one != rank]
            came = {one: room(8) for one in others}
            sends = [P2P("send", numbers(8, 10 * rank + one), one) for one in others]
            result = await w.batch_p2p([*sends, *(P2P("recv", came[one], one) for one in others)])
            return [result, [came[one].cpu()[0].item() for one in others]]

    found: list[Any] = run(main)
    return found


def in_group(_: Context, place: Place, rank: int) -> Any:
    """Ranks 2 and 0 as a group of their own: ranks, tags and source are the group's."""

    async def main() -> Any:
        async with world(place, rank, 3) as w:
            result = None
            if rank != 1:
                pair = w.group([2, 0])
                if pair.rank == 0:
                    await pair.send(numbers(4, 5), 1, tag=3)
                else:
                    got = room(4)
                    result = await pair.recv(got, tag=3), got.cpu().tolist()
            await w.barrier()
            return result

    return run(main)


def crossing(_: Context, place: Place, rank: int) -> list[str]:
    """A CPU tensor sent to a receive on the device, and the reverse; then the world is used again."""

    async def main() -> list[str]:
        async with world(place, rank, 2) as w:
            texts = []
            for cpu_rank in range(2):
                tensor = torch.ones(4) if rank == cpu_rank else room(4)
                texts.append(str(await error_of(w.send(tensor, 1) if rank == 0 else w.recv(tensor, 0))))
            for tensor in (torch.ones(4), numbers(4)):
                await (w.send(tensor, 1) if rank == 0 else w.recv(tensor, 0))
            return texts

    found: list[str] = run(main)
    return found


def refused(_: Context, place: Place, rank: int) -> list[str]:
    """Calls that cannot be right, before anything is sent."""

    async def main() -> list[str]:
        async with world(place, rank, 2) as w:
            elsewhere = torch.zeros(4).to("cuda:1")
            found = [
                await error_of(w.send(elsewhere, 1 - rank)),
                await error_of(w.all_reduce(elsewhere)),
                await error_of(w.all_gather([room(4), torch.zeros(4)], room(4))),
            ]
            capturing, torch.cuda.is_current_stream_capturing = torch.cuda.is_current_stream_capturing, lambda: True
            try:
                found += [await error_of(w.send(room(4), 1 - rank)), await error_of(w.recv_tensor(1 - rank))]
            finally:
                torch.cuda.is_current_stream_capturing = capturing
            await w.all_reduce(room(4))
            return [f"{type(error).__name__}: {error}" for error in found]

    found: list[str] = run(main)
    return found


def unmatched(context: Context, place: Place, rank: int) -> Any:
    """Rank 0 sends at once; rank 1 receives when it is told to."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
            if rank == 0:
                sending = asyncio.ensure_future(w.send(numbers(1 << 16), 1))
                await w.barrier()
                context.send(os.getpid())
                await sending
                return None
            await w.barrier()
            await asyncio.to_thread(context.recv)
            got = room(1 << 16)
            await w.recv(got, 0)
            return got.cpu()[-1].item()

    return run(main)


def cancelled(_: Context, place: Place, rank: int) -> Any:
    """Receives that are cancelled before and after their match; no message is lost."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
            if rank == 0:
                await w.barrier()
                for value in range(20):
                    await w.send(numbers(1 << 14, value), 1)
                await w.barrier()
                return None
            lone = asyncio.ensure_future(w.recv(room(1 << 14), 0))
            await asyncio.sleep(0)
            lone.cancel()
            await w.barrier()
            came, turn = [], 0
            while len(came) < 20:
                turn += 1
                got = room(1 << 14)
                receive = asyncio.ensure_future(w.recv(got, 0))
                if turn % 3:
                    for _ in range(turn % 7):
                        await asyncio.sleep(0)
                    receive.cancel()
                done = (await asyncio.gather(receive, return_exceptions=True))[0]
                if done == 0:
                    came.append(got.cpu()[0].item())
                got.copy_(torch.full((1 << 14,), -1.0))  # ours again: nobody writes to it, and nobody reads it
            await w.barrier()
            return came

    return run(main)


# the order of streams


def ordered(_: Context, place: Place, rank: int, stream: bool) -> Any:
    """What the caller's own stream is about to write is what is sent, and what it reads next is what has come."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
            side, count, rounds = torch.cuda.Stream(DEVICE), 1 << 20, 8
            slow = [torch.full((count,), float(value)).pin_memory() for value in range(rounds)]
            copies, buffer = [], room(count)
            torch.cuda.synchronize(DEVICE)
            with torch.cuda.stream(side):
                for value in range(rounds):
                    if rank == 0:
                        for source in slow[: value + 1]:  # the last is what is to be sent
                            buffer.copy_(source, non_blocking=True)
                        await w.send(buffer, 1, stream=stream)
                        buffer.copy_(slow[0], non_blocking=True)  # after the transfer has read it
                    else:
                        await w.recv(buffer, 0, stream=stream)
                        copies.append(buffer.clone())
                await w.synchronize()
            side.synchronize()
            return [[copy.cpu().min().item(), copy.cpu().max().item()] for copy in copies]

    return run(main)


# collectives


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
                "large": large[-1].item(), "rows": [one[-1].item() for one in out], "error": str(error),
                "again": listed(t), "objects": objects,
            }  # fmt: skip

    found: dict[str, Any] = run(main)
    return found


def late_member(_: Context, place: Place, rank: int) -> Any:
    """A collective that is cancelled before all have called it goes on without its caller, from copies."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
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


def alone(_: Context, place: Place, rank: int) -> Any:
    """The only member."""

    async def main() -> Any:
        async with world(place, rank, 1) as w:
            t, out = numbers(4), room(4)
            await w.all_reduce(t, ReduceOp.AVG)
            await w.all_gather_into_tensor(out, t)
            return listed([t, out])

    return run(main)


# stream=True


def pipelined(context: Context, place: Place, rank: int, count: int) -> Any:
    """Rank 0 enqueues all while its device does nothing, says so, and waits for the end."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
            tensors = [numbers(1 << 18, value) if rank == 0 else room(1 << 18) for value in range(count)]
            await w.all_reduce(room(4))
            context.send(os.getpid())
            await asyncio.to_thread(context.recv)
            for tensor in tensors:
                await (w.send(tensor, 1, stream=True) if rank == 0 else w.recv(tensor, 0, stream=True))
            context.send("enqueued")
            await w.synchronize()
            return [tensor.cpu()[0].item() for tensor in tensors]

    return run(main)


def fails_later(context: Context, place: Place, rank: int, then: str) -> Any:
    """Rank 1 dies with a transfer that rank 0 has enqueued; ``then`` is where rank 0 hears of it."""

    async def main() -> Any:
        os.environ["NCCL_HOSTID"] = f"host-{rank}"
        async with MultiWorld(op_timeout=SECONDS) as mw:
            events = mw.events()
            w = await mw.join("w", rank, 2, store=place.store, backend=place.backend, device=DEVICE)
            tensor = room(1 << 22)
            await w.all_reduce(room(4))
            context.send(os.getpid())
            await asyncio.to_thread(context.recv)
            if rank == 1:
                await w.recv(tensor, 0, stream=True)
                context.send("enqueued")
                await asyncio.Event().wait()
            await w.send(tensor, 1, stream=True)
            context.send("enqueued")
            if then == "synchronize":
                error: Any = await error_of(w.synchronize())
            elif then == "next":
                error = await error_of(w.recv(tensor, 1))
            else:
                error = await _broken(events)
            threads = {thread.name for thread in threading.enumerate()}
            return type(error).__name__, error.world, "mw-hub" in threads

    return run(main)


def leaves(_: Context, place: Place, rank: int, count: int) -> Any:
    """Rank 0 enqueues and leaves at once."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
            tensors = [numbers(1 << 18, value) if rank == 0 else room(1 << 18) for value in range(count)]
            if rank == 1:
                receives = [asyncio.ensure_future(w.recv(tensor, 0)) for tensor in tensors]
                await asyncio.sleep(0)
                await w.send_object("posted", 0)
                await asyncio.gather(*receives)
                return [tensor.cpu()[0].item() for tensor in tensors]
            await w.recv_object(1)
            for tensor in tensors:
                await w.send(tensor, 1, stream=True)
            await w.leave()
            return None

    return run(main)


def comes_back(_: Context, place: Place, rank: int, times: int) -> list[Any]:
    """The world is assembled again and again; what it leaves behind each time, and at the end."""

    def ours() -> list[str]:
        return sorted(thread.name for thread in threading.enumerate() if "nccl" in thread.name)

    async def main() -> list[Any]:
        found: list[Any] = []
        async with world(place, rank, 2) as w:
            for _ in range(times):
                tensor = numbers(8, rank)
                await w.all_reduce(tensor)
                await (w.send(tensor, 1) if rank == 0 else w.recv(tensor, 0))
                found.append(tensor.cpu()[0].item())
                await w.rejoin()
        for _ in range(int(SECONDS * 100)):  # their threads end in the background
            if not ours():
                break
            await asyncio.sleep(0.01)
        return [found, ours()]

    result: list[Any] = run(main)
    return result


def in_threads(_: Context, place: Place, rank: int) -> Any:
    """The synchronous twins, in a thread without an event loop."""
    os.environ["NCCL_HOSTID"] = f"host-{rank}"
    with MultiWorld(op_timeout=SECONDS) as mw:
        w = mw.sync.join("w", rank, 2, store=place.store, backend=place.backend, device=DEVICE)
        tensor = numbers(1 << 16, rank)
        w.sync.all_reduce(tensor, stream=True)
        if rank == 0:
            w.sync.send(tensor, 1, stream=True)
            w.sync.send_tensor(tensor, 1)
            w.sync.synchronize()
            return None
        got = room(1 << 16)
        w.sync.recv(got, stream=True)
        again = w.sync.recv_tensor(0)
        w.sync.synchronize()
        return [t.cpu()[-1].item() for t in (tensor, got, again)]


def through_the_host(context: Context, place: Place, rank: int) -> Any:
    """CUDA tensors in a Gloo world."""

    async def main() -> Any:
        async with MultiWorld(op_timeout=SECONDS) as mw:
            w = await mw.join("w", rank, 2, store=place.store, backend="gloo", device=DEVICE)
            small, large = numbers(4, rank), numbers(1 << 18, rank)
            await w.all_reduce(small, stream=True)
            await w.all_reduce(large, stream=True)
            if rank == 0:
                await w.send(large, 1, stream=True)
                await w.send_tensor(small, 1)
            else:
                await w.recv(large, 0, stream=True)
                small = await w.recv_tensor(0)
            await w.synchronize()
            context.send(os.getpid())
            await asyncio.to_thread(context.recv)
            return str(small.device), small.cpu().tolist(), large.cpu()[-1].item()

    return run(main)


# two worlds on one device


def leader(context: Context, place: Place, _: int, rounds: int) -> Any:
    """Member of the worlds a and b; what is on its way in a hangs, then fails, and b is used all the while."""

    async def main() -> Any:
        os.environ["NCCL_HOSTID"] = "host-0"
        async with MultiWorld(op_timeout=SECONDS) as mw:
            options: Any = {"store": place.store, "backend": place.backend, "device": DEVICE}
            a, b = await asyncio.gather(*(mw.join(name, 0, 2, **options) for name in ("a", "b")))
            tensor, large = numbers(1 << 12), room(1 << 22)
            for w in (a, b):
                await w.send(tensor, 1)
            context.send("met")
            await asyncio.to_thread(context.recv)
            hangs = asyncio.ensure_future(a.send(large, 1))
            while not a._current.engine.under_way:
                await asyncio.sleep(0.001)
            await _there_and_back(b, tensor, rounds)
            assert not hangs.done()
            context.send("b goes on")
            error = await error_of(hangs)
            await _there_and_back(b, tensor, rounds)
            await b.send_object("over", 1)
            return type(error).__name__, error.__dict__["world"], error.__dict__["ranks"], b.state.value

    return run(main)


async def _there_and_back(w: World, tensor: torch.Tensor, rounds: int) -> None:
    for _ in range(rounds):
        await w.send(tensor, 1)
        await w.recv(tensor, 1)


def follower(context: Context, place: Place, rank: int, name: str, rounds: int) -> Any:
    """The other member of one of them."""

    async def main() -> Any:
        os.environ["NCCL_HOSTID"] = f"host-{rank}"
        async with MultiWorld(op_timeout=SECONDS) as mw:
            w = await mw.join(name, 1, 2, store=place.store, backend=place.backend, device=DEVICE)
            tensor, large = room(1 << 12), room(1 << 22)
            await w.recv(tensor, 0)
            context.send(os.getpid())
            if name == "a":
                await w.recv(large, 0)
            for _ in range(rounds):
                await w.recv(tensor, 0)
                await w.send(tensor, 0)
            return await w.recv_object(0), tensor.cpu()[-1].item()

    return run(main)


async def _broken(events: AsyncIterator[Any]) -> BrokenWorldException:
    async for event in events:
        if isinstance(event, WorldBroken):
            return event.failure
    raise AssertionError("no event")
