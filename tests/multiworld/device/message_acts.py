"""Acts of members in the tests of messages that stay on the device; imports nothing but torch and multiworld."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import torch

from multiworld import P2P, MultiWorld
from multiworld.lab.context import Context
from multiworld.matching.protocol import message_key
from tests.multiworld.device.members import DEVICE, SECONDS, Place, error_of, numbers, on_device, room, run, world
from tests.multiworld.interrupts import EXCHANGING, GIVING_UP, interrupted_at


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
    """Process 0 receives from whoever sends."""

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
            await w.all_reduce(room(4))  # plain tensors are known now; where each lies is looked at anew
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
    """Process 0 sends at once; rank 1 receives when it is told to."""

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


def overtaking(_: Context, place: Place, rank: int, stream: bool) -> Any:
    """Messages that wait in compiled code, matched behind one whose memory is found when it comes."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
            session, taken_in = w.member.session, []
            session.taken_in = lambda number: taken_in.append(number) or type(session).taken_in(session, number)
            right = []
            for turn in range(30):
                small, large = numbers(4, turn), numbers(1 << 12, turn)
                await w.barrier()
                if rank:
                    got = room(4)
                    _, came = await asyncio.gather(w.recv(got, 0, tag=1, stream=stream), w.recv_tensor(0, tag=2))
                    right.append(torch.equal(got.cpu(), small.cpu()) and torch.equal(came.cpu(), large.cpu()))
                else:
                    await asyncio.gather(w.send_tensor(large, 1, tag=2), w.send(small, 1, tag=1, stream=stream))
            await w.synchronize()
            await w.barrier()
            return all(right), bool(taken_in), len(session.engine.held), len(session.engine.operations)

    return run(main)


def interrupted(_: Context, place: Place, rank: int) -> int:
    """Receives that are interrupted at each step in turn; how often the message was there by then."""
    os.environ["NCCL_HOSTID"] = f"host-{rank}"
    with MultiWorld(op_timeout=SECONDS) as mw:
        w = mw.sync.join("w", rank, 2, store=place.store, backend=place.backend, device=DEVICE)
        engine, key = w.member.session.engine, message_key(w.gid, 0)
        hit, kept, step = True, 0, -2  # the communicator is there at the second message, and launches alone
        while hit:
            step += 1
            if rank == 0:
                w.sync.send(numbers(64, step), 1)
                hit = w.sync.recv_object(1)
                continue
            got = room(64)
            if step < 1:
                w.sync.recv(got, 0)
            else:
                hit = interrupted_at(step, (*EXCHANGING, *GIVING_UP), lambda got=got: w.sync.recv(got, 0))
            if hit and (got.cpu()[0] != step or engine.native.keeps(0, key)):
                kept += bool(got.cpu()[0] == step)
                w.sync.recv(got, 0)
            assert got.cpu().tolist() == [float(step + place) for place in range(64)], step
            assert not engine.operations, step
            assert not engine.held, step
            w.sync.send_object(hit, 0)
        w.sync.barrier()
        return kept


def ordered(_: Context, place: Place, rank: int, stream: bool) -> Any:
    """Send what the caller's own stream is about to write, and receive what it reads next."""

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
