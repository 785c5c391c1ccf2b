"""A scene: a store, workers, worlds among them, and what they have to say when one of them is hit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gpuless.control import Remote
from multiworld import BrokenWorldException, PeerLost, TcpStoreAddress, WorldState
from multiworld.lab.context import Outcome, serve_store
from multiworld.lab.injector import Fired, Injector
from multiworld.lab.workers import OverdueError, Running, VanishedError, Worker, WorkerPool
from tests.multiworld.faults import acts
from tests.multiworld.faults.backends import Backend, Kind
from tests.multiworld.faults.bounds import ANSWER_SECONDS, JOIN_SECONDS
from tests.multiworld.faults.network import enter_network

CALM = "calm"
#: folder of the simulated devices' control blocks, next to the log of the workers
CONTROL = "control"
#: How a death is noticed. A dying process frees its memory and ends all its threads before its sockets: on a loaded
#: machine it is silent first.
DEATH = frozenset({"eof", "silence", "reported"})
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Resources that a process holds on its devices.

    Attributes:
        communicators: of NCCL.
        streams: that were made.
        spare: those of them that wait to be used again. A generation that begins before the one before it is freed
            takes others.
        tensors: bytes of live tensors.
        others: bytes that torch's allocator knows nothing of.
    """

    communicators: int
    streams: int
    spare: int
    tensors: int
    others: int

    @property
    def streams_in_use(self) -> int:
        """Streams that are not given back, or are nobody's."""
        return self.streams - self.spare

    def adds_little_to(self, before: OnDevice) -> bool:
        """Return whether it is no more, but for tensors of what happened last: the smallest takes 512 bytes."""
        same = self.communicators <= before.communicators and self.streams_in_use <= before.streams_in_use
        return same and self.others <= before.others and self.tensors < before.tensors + 50 * 512


class Scene:
    """Workers of one test, the store they meet at, and the faults that hit them.

    Attributes:
        pool: where workers come from.
        injector: what makes the faults.
        backend: the row of the table of backends that this run is about.
    """

    def __init__(self, pool: WorkerPool, injector: Injector, backend: Backend) -> None:
        self.pool = pool
        self.injector = injector
        self.backend = backend
        self._places: dict[Worker, int] = {}
        self._store: TcpStoreAddress | None = None
        self._host: Worker | None = None

    @property
    def host(self) -> Worker:
        """The worker that hosts the store and does nothing else."""
        if self._host is None:
            self._host = self.worker("store-host")
            self._store = self._host.run(serve_store)
        return self._host

    def host_at(self, network: str, address: str) -> None:
        """Host the store in a network namespace."""
        self._host = self.worker("store-host", network=network)
        self._store = self._host.run(serve_store, address)

    def host_with(self, env: dict[str, str]) -> None:
        """Host the store in a worker with this environment."""
        self._host = self.worker("store-host", env=env)
        self._store = self._host.run(serve_store)

    @property
    def store(self) -> TcpStoreAddress:
        """The store that serves all worlds of the scene."""
        assert self.host is not None
        assert self._store is not None
        return self._store

    def worker(self, name: str = "", network: str = "", env: dict[str, str] | None = None) -> Worker:
        """A fresh worker process, in a network namespace and with variables of its own if they are given."""
        made = self.pool.worker(name or f"worker-{next(_numbers)}")
        if network:
            made.run(enter_network, network)
        self._places[made] = len(self._places)
        if variables := {**self.backend.variables(self._places[made]), **(env or {})}:
            made.run(acts.set_variables, variables)
        return made

    def workers(self, count: int) -> list[Worker]:
        """Fresh worker processes."""
        return [self.worker() for _ in range(count)]

    def imitation(self, worker: Worker) -> Remote:
        """The imitated CUDA and NCCL of a worker: what it was asked for, and failures to inject."""
        assert self.pool.log is not None
        return Remote(self.pool.log.parent / CONTROL, worker.pid)

    def on_device(self, worker: Worker) -> OnDevice | None:
        """Return what a worker holds on a simulated device; None on others."""
        if self.backend.kind is not Kind.SIMULATED:
            return None
        tensors, reserved = worker.run(acts.device_memory)
        spare = worker.run(acts.spare_streams)
        with self.imitation(worker) as remote:
            found = remote.counters()
        return OnDevice(found.communicators, found.streams, spare, tensors, found.allocated - reserved)

    def options(self, worker: Worker) -> dict[str, Any]:
        """Return the arguments with which a worker joins a world of this scene."""
        device = self.backend.device(self._places[worker])
        return {"store": self.store, "backend": self.backend.backend, "device": device, "join_timeout": JOIN_SECONDS}

    def start_join(self, name: str, worker: Worker, rank: int, size: int, **options: Any) -> Running:
        """One worker begins to join."""
        return worker.start(acts.join, name, rank, size, {**self.options(worker), **options})

    def join(self, name: str, workers: Sequence[Worker], **options: Any) -> int:
        """All ``workers`` join ``name``, in the order of their ranks; the generation, which is the same for all."""
        running = [self.start_join(name, worker, rank, len(workers), **options) for rank, worker in enumerate(workers)]
        results = [call.result(JOIN_SECONDS + 5) for call in running]
        assert [rank for rank, _ in results] == list(range(len(workers)))
        generations = {generation for _, generation in results}
        assert len(generations) == 1, f"members of one assembly are in generations {generations}"
        return generations.pop()

    def everywhere(self, workers: Sequence[Worker], function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a function in all ``workers`` at once; their results."""
        running = [worker.start(function, *args) for worker in workers]
        try:
            return [call.result(ANSWER_SECONDS) for call in running]
        except OverdueError as overdue:
            raise OverdueError(f"{overdue}; of the others: {[_came_of(call) for call in running]}") from None

    def works(self, name: str, workers: Sequence[Worker], rounds: int = 2) -> None:
        """Assert that the world carries messages and collectives, with the right data, and on the row's driver."""
        self.everywhere(workers, acts.ring, name, rounds)
        if self.backend.kind is not Kind.CPU:
            found = workers[0].run(acts.drivers, name)
            assert found == {self.backend.backend}, f"the row {self.backend} runs on {found}"

    def broken(self, name: str, workers: Sequence[Worker]) -> list[BrokenWorldException]:
        """Wait until the world is broken for all ``workers``; return the failure of each."""
        self.everywhere(workers, acts.await_break, name)
        found = [worker.run(acts.standing, name) for worker in workers]
        assert [s.state for s in found] == [WorldState.BROKEN] * len(workers)
        return [s.failure for s in found]


def _came_of(call: Running) -> str:
    """Describe the state of a call by now, for a message."""
    try:
        outcome = call.outcome(0.1)
    except (OverdueError, VanishedError) as error:
        return type(error).__name__
    return repr(outcome.error or "done")


def lost(outcome: Outcome, world: str, rank: int | None, within: float, fired: Fired, how: Collection[str]) -> PeerLost:
    """Assert that a call ended with the loss of ``rank`` (None: any), noticed in one of the ways ``how``, in time."""
    error = outcome.error
    assert isinstance(error, PeerLost), f"got {error!r} and value {outcome.value!r}"
    assert error.world == world
    assert error.ranks, str(error)
    assert rank is None or error.ranks == (rank,), f"accused ranks {error.ranks}: {error}"
    assert error.how in how, f"noticed by {error.how!r}: {error}"
    delay = outcome.ended - fired.at
    assert delay <= within, f"noticed {delay:.3f} s after the fault"
    return error
