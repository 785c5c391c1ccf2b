"""Rows of the matrix: each runs on every member of a world that is the default process group.

A row asserts what it has computed, and returns what all members must agree on, if anything.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from multiworld import InvalidArgument

SEED = 7
RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])


def device() -> str:
    """Return the kind of device that the rows run on, which is torch's default device here."""
    return os.environ["ROWS_DEVICE"]


def model() -> nn.Sequential:
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator("cpu").manual_seed(100 * step + rank), device="cpu").to(device())


def checksum(parameters: Any) -> float:
    return float(sum(one.detach().double().abs().sum() for one in parameters))


def alone(steps: int = 2, lr: float = 0.1) -> nn.Sequential:
    """Train without torch.distributed, on all members' batches."""
    net = model()
    opt = torch.optim.SGD(net.parameters(), lr)
    for step in range(steps):
        opt.zero_grad()
        for rank in range(dist.get_world_size()):
            (net(batch(rank, step)).square().mean() / dist.get_world_size()).backward()
        opt.step()
    return net


def trained(net: Any, opt: torch.optim.Optimizer, steps: int = 2) -> None:
    for step in range(steps):
        opt.zero_grad()
        net(batch(dist.get_rank(), step)).square().mean().backward()
        opt.step()


def same(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


# collectives and messages


def collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.full((5,), rank + 1.0)
    dist.all_reduce(total)
    assert total[0] == size * (size + 1) / 2
    work = dist.all_reduce(total, op=dist.ReduceOp.MAX, async_op=True)
    assert work.wait()
    assert work.is_success()
    assert work.is_completed()
    assert work.exception() is None
    root = torch.full((3,), float(rank))
    dist.broadcast(root, src=1)
    assert root[0] == 1.0
    dist.reduce(root, dst=0)
    gathered = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(gathered, torch.full((2,), float(rank)))
    assert [float(one[0]) for one in gathered] == list(range(size))
    whole = torch.zeros(2 * size)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    assert whole.tolist() == [float(one) for one in range(size) for _ in range(2)]
    dist.gather(torch.full((2,), float(rank)), gathered if rank == 0 else None, dst=0)
    dist.scatter(root, [torch.full((3,), 10.0 + one) for one in range(size)] if rank == 0 else None, src=0)
    assert root[0] == 10.0 + rank
    piece = torch.zeros(2)
    dist.reduce_scatter(piece, [torch.full((2,), float(one)) for one in range(size)])
    assert piece[0] == rank * size
    dist.reduce_scatter_tensor(piece, torch.ones(2 * size))
    assert piece[0] == size
    swapped = torch.zeros(size)
    dist.all_to_all_single(swapped, torch.arange(size, dtype=torch.float32) + 10 * rank)
    assert swapped.tolist() == [10.0 * one + rank for one in range(size)]
    outputs = [torch.zeros(1 + one) for one in range(size)]
    dist.all_to_all(outputs, [torch.full((1 + rank,), float(rank)) for _ in range(size)])
    assert [one.numel() for one in outputs] == [1 + one for one in range(size)]
    dist.barrier()


def not_contiguous() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    sheet = torch.full((4, 6), rank + 1.0).t()[1:5]
    assert not sheet.is_contiguous()
    dist.all_reduce(sheet)
    assert bool((sheet == size * (size + 1) / 2).all())
    holes = torch.zeros(10)[::2]
    dist.broadcast(holes if rank else torch.arange(10.0)[::2], src=0)
    assert rank == 0 or holes.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


def futures() -> None:
    for length in (4, 400_000):  # with the fingerprints, and through the backend
        tensor = torch.full((length,), dist.get_rank() + 1.0)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        half = future.then(lambda done: done.value()[0] / 2).wait()
        assert half[0] == tensor[0] / 2
        assert tensor[0] == 3.0


def nested_future() -> None:
    """A callback begins an operation and waits for its future, as PowerSGD's does."""
    tensor, other = torch.ones(4), torch.ones(4)

    def again(_: Any) -> torch.Tensor:
        found: list[torch.Tensor] = dist.all_reduce(other, async_op=True).get_future().wait()
        return found[0]

    done = dist.all_reduce(tensor, async_op=True).get_future().then(again).wait()
    assert float(done[0]) == dist.get_world_size()


def out_of_order_futures() -> None:
    """The future of a receive does not hold up that of a later collective, which the message waits for."""
    rank, tensor, total = dist.get_rank(), torch.zeros(1), torch.ones(1)
    if rank == 0:
        late = dist.irecv(tensor, src=1).get_future()
        dist.all_reduce(total, async_op=True).get_future().wait()
        late.wait()
        assert tensor.item() == 5.0
    else:
        dist.all_reduce(total)
        dist.send(torch.full((1,), 5.0), dst=0)


def nobody_waits() -> None:
    """A message goes out although its sender waits for something else."""
    rank, large = dist.get_rank(), torch.full((1 << 20,), 3.0)
    if rank == 0:
        work = dist.isend(large, dst=1)
        while not work.is_completed():
            pass
        sent = [dist.isend(large, dst=1, tag=2)]
        Path(os.environ["ROWS_FOLDER"], "wait").touch()
        folder = Path(os.environ["ROWS_FOLDER"], "got")
        while not folder.exists():
            os.sched_yield()
        sent[0].wait()
        folder.unlink()
    else:
        got = torch.zeros(1 << 20)
        dist.recv(got, src=0)
        dist.recv(got, src=0, tag=2)
        assert got[-1] == 3.0
        Path(os.environ["ROWS_FOLDER"], "got").touch()


def messages() -> None:
    rank, got = dist.get_rank(), torch.zeros(3)
    if rank == 0:
        dist.send(torch.ones(3), dst=1)
        dist.isend(torch.full((3,), 2.0), dst=1, tag=4).wait()
        assert dist.recv(got) == 1
        assert got[0] == 7.0
    else:
        dist.recv(got, src=0)
        work = dist.irecv(got, src=0, tag=4)
        work.wait()
        assert got[0] == 2.0
        dist.send(torch.full((3,), 7.0), dst=0)
    other = 1 - rank
    both = [dist.P2POp(dist.isend, torch.full((2,), float(rank)), other), dist.P2POp(dist.irecv, got[:2], other)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    assert got[0] == other


def objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": one} for one in range(size)]
    said = [("a", 1) if rank == 0 else None]
    dist.broadcast_object_list(said, src=0)
    assert said == [("a", 1)]
    dist.gather_object(rank, found if rank == 0 else None, dst=0)
    assert rank or found == list(range(size))
    got: list[Any] = [None]
    dist.scatter_object_list(got, [f"for {one}" for one in range(size)] if rank == 0 else None, src=0)
    assert got == [f"for {rank}"]
    if not hasattr(dist, "send_object_list"):  # torch before 2.3
        return
    if rank == 0:
        dist.send_object_list([1, "two"], dst=1)
    else:
        two: list[Any] = [None, None]
        dist.recv_object_list(two, src=0)
        assert two == [1, "two"]


def subgroups() -> None:
    """Groups of the world, which torch.distributed makes and finds."""
    rank = dist.get_rank()
    alone_group = dist.new_group([0])
    both = dist.new_group([1, 0])
    tensor = torch.full((2,), rank + 1.0)
    dist.all_reduce(tensor, group=both)
    assert tensor[0] == 3.0
    assert dist.get_process_group_ranks(both) == [0, 1]
    if rank == 0:
        assert dist.get_world_size(alone_group) == 1
        dist.all_reduce(tensor, group=alone_group)
    dist.destroy_process_group(both)


def coalesced() -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    size = dist.get_world_size()
    parts = [torch.ones(3), torch.ones(5)]
    with _coalescing_manager():
        for part in parts:
            dist.all_reduce(part)
    assert [float(part[0]) for part in parts] == [size, size]
    with _coalescing_manager(device=torch.device(device()), async_ops=True) as block:
        dist.all_reduce(parts[0], async_op=True)
    block.wait()
    assert float(parts[0][0]) == size * size


# training


def ddp() -> None:
    net = nn.parallel.DistributedDataParallel(model())
    trained(net, torch.optim.SGD(net.parameters(), 0.1))
    same(net.module.parameters(), alone().parameters())


def ddp_in_buckets() -> None:
    net = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.0002, find_unused_parameters=True)
    trained(net, torch.optim.SGD(net.parameters(), 0.1), 3)
    same(net.module.parameters(), alone(3).parameters())


def comm_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook

    net = nn.parallel.DistributedDataParallel(model())
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    trained(net, torch.optim.SGD(net.parameters(), 0.1))
    for ours, theirs in zip(net.module.parameters(), alone().parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-2)
    net = nn.parallel.DistributedDataParallel(model())
    state = post_localSGD_hook.PostLocalSGDState(None, dist.group.WORLD, start_localSGD_iter=10)
    net.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    trained(net, torch.optim.SGD(net.parameters(), 0.1))
    same(net.module.parameters(), alone().parameters())


def power_sgd() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    net = nn.parallel.DistributedDataParallel(model())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    trained(net, torch.optim.SGD(net.parameters(), 0.1), 5)
    sums = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, torch.tensor([checksum(net.parameters())], dtype=torch.float64))
    assert len({float(one) for one in sums}) == 1


def zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = nn.parallel.DistributedDataParallel(model())
    trained(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1))
    same(net.module.parameters(), alone().parameters())


def join() -> None:
    """Uneven inputs."""
    from torch.distributed.algorithms.join import Join

    net = nn.parallel.DistributedDataParallel(model())
    with Join([net]):
        for step in range(1 + dist.get_rank()):
            net(batch(0, step)).sum().backward()


def autograd_functions() -> None:
    import torch.distributed.nn.functional as differentiable

    rank, size = dist.get_rank(), dist.get_world_size()
    leaf = torch.full((3,), rank + 1.0, requires_grad=True)
    differentiable.all_reduce(leaf * 2, group=dist.group.WORLD).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad[0] == 2.0 * size
    gathered = differentiable.all_gather(leaf, group=dist.group.WORLD)
    assert [float(one[0]) for one in gathered] == [one + 1.0 for one in range(size)]


def profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        dist.all_reduce(torch.ones(4))
    assert any("multiworld::all_reduce" in event.key for event in seen.key_averages())


# sharding


class MissingError(Exception):
    """What this release of torch lacks for a row."""


def fsdp_on_cpu() -> None:
    """Look for what torch's FSDP2 needs on the CPU: 2.6 has it on devices only."""
    if device() == "cpu" and not hasattr(torch.cpu.current_stream(), "record_event"):
        raise MissingError("torch's streams of the CPU record no events, and FSDP2 wants them")


def fsdp2() -> None:
    fsdp_on_cpu()
    from torch.distributed.fsdp import fully_shard

    net = model()
    for layer in (net[0], net[2], net):
        fully_shard(layer)
    trained(net, torch.optim.SGD(net.parameters(), 0.1))
    same((one.full_tensor() for one in net.parameters()), alone().parameters())


def hsdp() -> None:
    fsdp_on_cpu()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = model()
    mesh = init_device_mesh(device(), (2, 1), mesh_dim_names=("replicate", "shard"))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    trained(net, torch.optim.SGD(net.parameters(), 0.1))
    same((one.full_tensor() for one in net.parameters()), alone().parameters())


def device_mesh() -> None:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    mesh = init_device_mesh(device(), (1, 2), mesh_dim_names=("a", "b"))
    assert mesh["b"].size() == 2
    assert mesh.get_local_rank("b") == dist.get_rank()
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=mesh.get_group("b"))
    assert tensor[0] == 2.0
    if hasattr(DeviceMesh, "from_group"):  # torch 2.3 and newer
        assert DeviceMesh.from_group(dist.group.WORLD, device()).size() == 2


def dtensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(device(), (2,))
    whole = torch.arange(12.0).reshape(6, 2)
    split = distribute_tensor(whole, mesh, [Shard(0)])
    assert split.to_local().shape == (3, 2)
    torch.testing.assert_close(split.full_tensor(), whole)
    torch.testing.assert_close(split.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    torch.testing.assert_close((split.t() @ split).redistribute(mesh, [Replicate()]).to_local(), whole.t() @ whole)
    assert isinstance(split.sum().placements[0], Partial)
    assert float(split.sum().full_tensor()) == float(whole.sum())


def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh, net = init_device_mesh(device(), (2,)), model()
    expected = model()(batch(0))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(net(batch(0)), expected)


def pipelining() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, net = dist.get_rank(), model()
    part = nn.Sequential(*net[:2]) if rank == 0 else nn.Sequential(net[2])
    given = torch.empty(2, 16 if rank else 8)  # torch 2.4 does not find out by itself what comes in
    stage = PipelineStage(part, rank, 2, torch.device(device()), given)
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: (out - target).square().mean())
    if rank == 0:
        schedule.step(batch(0))
    else:
        out = schedule.step(target=torch.zeros(4, 8))
        torch.testing.assert_close(out, model()(batch(0)))
    assert all(one.grad is not None for one in part.parameters())


def checkpoint() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net)
    folder = Path(os.environ["ROWS_FOLDER"])
    dcp.save({"net": net.state_dict()}, checkpoint_id=folder / "checkpoint")
    loaded = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    fully_shard(loaded)
    state = {"net": loaded.state_dict()}
    dcp.load(state, checkpoint_id=folder / "checkpoint")
    loaded.load_state_dict(state["net"])
    same((one.full_tensor() for one in loaded.parameters()), model().parameters())


def checkpoint_in_the_background() -> None:
    from torch.distributed.checkpoint import async_save, load

    folder = Path(os.environ["ROWS_FOLDER"])
    async_save({"w": torch.full((4,), 2.0)}, checkpoint_id=folder / "background").result(60)
    state = {"w": torch.zeros(4)}
    load(state, checkpoint_id=folder / "background")
    assert state["w"][0] == 2.0


# compiled


def functional() -> None:
    import torch.distributed._functional_collectives as functions

    rank, group = dist.get_rank(), dist.group.WORLD
    ours = torch.full((4,), rank + 1.0)
    assert float(functions.all_reduce(ours, "sum", group)[0]) == 3.0
    assert functions.all_gather_tensor(ours, 0, group).shape == (8,)
    assert float(functions.reduce_scatter_tensor(ours, "sum", 0, group)[0]) == 3.0
    assert float(functions.all_to_all_single(ours, None, None, group)[0]) == 1.0
    assert float(functions.broadcast(ours, 1, group)[0]) == 2.0


def _compiled(backend: str) -> None:
    if RELEASE < (2, 4):
        raise MissingError("torch.compile of this release takes no process group that is written in Python")
    import torch.distributed._functional_collectives as functions

    group = dist.group.WORLD

    @torch.compile(backend=backend, fullgraph=True)
    def step(tensor: torch.Tensor) -> torch.Tensor:
        total = functions.all_reduce(tensor * 2, "sum", group)
        return functions.all_gather_tensor(total + 1, 0, group)

    assert step(torch.full((4,), dist.get_rank() + 1.0)).tolist() == [7.0] * 8


def compiled() -> None:
    _compiled("aot_eager")


def inductor() -> None:
    _compiled("inductor")


def compiled_ddp() -> None:
    net = nn.parallel.DistributedDataParallel(model())
    trained(torch.compile(net, backend="aot_eager"), torch.optim.SGD(net.parameters(), 0.1))
    same(net.module.parameters(), alone().parameters())


# what cannot be had


def refused_by_name() -> None:
    if RELEASE < (2, 14):
        with pytest.raises(ValueError, match="GLOO"):
            dist.monitored_barrier()
    else:
        dist.monitored_barrier()
    with pytest.raises(InvalidArgument, match="sparse"):
        dist.all_reduce(torch.eye(3).to_sparse())
    dist.group.WORLD.monitored_barrier()
