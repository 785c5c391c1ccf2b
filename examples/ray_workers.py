"""Two Ray actors in one world: one is killed, Ray starts it again, and it is back in its world.

Run ``python examples/ray_workers.py``; it needs Ray, and starts a cluster of two nodes on this machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster

from multiworld import BrokenWorldException, MultiWorld, Want


@ray.remote(num_cpus=0)
class Store:
    """The store, in an actor that outlives the workers; where it dies, the worlds go on until the next loss."""

    def __init__(self) -> None:
        self.mw = MultiWorld()
        self.where = str(self.mw.serve_store(ray.util.get_node_ip_address()))

    def address(self) -> str:
        return self.where


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=0)
class Worker:
    """A member. Ray calls the constructor again after a death, so the world is kept from there."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        self.began = time.time()
        self.mw = MultiWorld()
        self.sup = self.mw.maintain({"workers": Want(rank=rank, size=size, store=store)})

    def process(self) -> tuple[str, int]:
        """Tell the node and the process."""
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def total(self, number: float) -> tuple[float, int, float]:
        """Sum a number with the other workers; the sum, the generation, and seconds from the start until it was known.

        After a loss they all begin anew, the killed one in its next life.
        """
        while True:
            try:
                self.sup.wait_ready(60)
                world, tensor = self.sup["workers"], torch.tensor([number])
                world.sync.all_reduce(tensor)
                return float(tensor), world.generation, time.time() - self.began
            except BrokenWorldException:  # noqa: PERF203 - the next round is another attempt
                self.sup.reconcile()


def main() -> None:
    """Start a cluster of two nodes, and end it."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        stack.callback(cluster.shutdown)
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, namespace="example")
        stack.callback(ray.shutdown)
        run()


def run() -> None:
    """Let two workers work, kill one, and wait until it is back."""
    store = Store.options(name="store", lifetime="detached").remote()
    where = ray.get(store.address.remote())
    workers: list[Any] = [Worker.options(scheduling_strategy="SPREAD").remote(rank, 2, where) for rank in range(2)]
    places = ray.get([worker.process.remote() for worker in workers])
    print(f"{len({node for node, _ in places})} nodes", flush=True)
    for total, generation, _ in ray.get([worker.total.remote(1.0) for worker in workers]):
        print(f"generation {generation}: {total:g}", flush=True)
    killed = time.time()
    os.kill(places[1][1], signal.SIGKILL)
    survivor = workers[0].total.remote(2.0)
    while True:
        try:
            total, generation, took = ray.get(workers[1].total.remote(2.0))
            break
        except ray.exceptions.RayActorError:
            time.sleep(0.1)  # it is not there again yet
    told = f"{took:.2f} s after its restart, {time.time() - killed:.2f} s after the kill"
    print(f"generation {generation}: {total:g}, {told}", flush=True)
    total, generation, _ = ray.get(survivor)
    print(f"generation {generation}: {total:g}", flush=True)
    ray.kill(store)


if __name__ == "__main__":
    main()
