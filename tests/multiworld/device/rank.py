"""One rank: a process on the imitated CUDA and NCCL that drives device drivers as the test tells it to.

Each message is a call (the name of a function below, its arguments), and gets one answer. Members exchange the values
of their set-up in a folder that they share.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from multiworld.backends import device_driver as device_driver
from multiworld.backends.choice import make_driver
from multiworld.backends.setup_store import SetupStore
from multiworld.config import Heartbeat, NetworkSettings, WorldConfig
from multiworld.lab.context import Context
from multiworld.rendezvous.join_arguments import Defaults, checked_config
from tests.multiworld.torch_form import is_official, is_patched

PATIENCE = 20.0
IDLE_SECONDS = 600.0
FAIL, ILLEGAL_ADDRESS, ANY_COMMUNICATOR = 1, 700, -1  # of the imitation's control.h, and of cudaError_t


class Relay:
    """Carries the values of one store between the members, as lanes would."""

    def __init__(self, folder: Path, place: int, timeout: float) -> None:
        self._folder, self._place, self._sent = folder, place, 0
        self.store = SetupStore(self._send, timeout)
        threading.Thread(target=self._receive, daemon=True).start()

    def _send(self, key: str, value: bytes) -> None:
        part = self._folder / f"part-{self._place}-{self._sent}"
        part.write_text(json.dumps([key, value.hex()]))
        part.rename(self._folder / f"value-{self._place}-{self._sent}")
        self._sent += 1

    def _receive(self) -> None:
        seen: set[Path] = set()
        while True:
            for path in sorted(set(self._folder.glob("value-*")) - seen):
                seen.add(path)
                if not path.name.startswith(f"value-{self._place}-"):
                    key, value = json.loads(path.read_text())
                    self.store.receive(key, bytes.fromhex(value))
            time.sleep(0.005)


class Outcome:
    """The end of an operation."""

    def __init__(self) -> None:
        self.launched, self.over = threading.Event(), threading.Event()
        self.calls: list[str] = []
        self.error: BaseException | None = None

    def was_launched(self) -> None:
        self.calls.append("launched")
        self.launched.set()

    def finished(self, error: BaseException | None) -> None:
        self.calls.append("finished")
        self.error = error
        self.over.set()


drivers: dict[str, Any] = {}
opened: dict[str, Outcome] = {}
works: dict[str, tuple[Any, Outcome]] = {}
tensors: dict[str, torch.Tensor] = {}
streams: dict[str, Any] = {}
ended_by: list[str] = []
logged: list[str] = []


def make(name: str, folder: str, backend: str, place: int, size: int, device: str, timeout: float = PATIENCE) -> str:
    """Make a driver; its name."""
    config = WorldConfig(f"world-{name}", place, size, backend=backend, device=device, join_timeout=timeout)
    Path(folder).mkdir(exist_ok=True)
    drivers[name] = make_driver(config, place, size, Relay(Path(folder), place, timeout).store)
    return str(drivers[name].name)


def begin_open(name: str) -> None:
    """Open it in a thread of its own, as a slot does."""
    outcome = opened[name] = Outcome()

    def run() -> None:
        try:
            drivers[name].open()
        except Exception as error:  # noqa: BLE001 - the outcome
            outcome.finished(error)
        else:
            outcome.finished(None)

    threading.Thread(target=run, daemon=True).start()


def end_open(name: str, seconds: float = PATIENCE) -> list[str] | None:
    """The class and text of the error; nothing if it is open."""
    outcome = opened[name]
    if not outcome.over.wait(seconds):
        raise TimeoutError(f"open of {name} does not return")
    return said(outcome.error)


def said(error: BaseException | None) -> list[str] | None:
    return None if error is None else [type(error).__name__, str(error)]


def tensor(name: str, values: list[float], dtype: str = "float32", device: str = "cuda:0") -> None:
    """Make a tensor on the CPU and copy it: kernels do not run."""
    tensors[name] = torch.tensor(values, dtype=getattr(torch, dtype)).to(device)
    torch.cuda.synchronize(device) if not works else None


def pieces(names: list[str], length: int, device: str) -> None:
    """Make tensors that lie one behind the other."""
    whole = torch.zeros(len(names) * length).to(device)
    tensors.update(zip(names, whole.split(length), strict=True))


def values(name: str) -> list[float]:
    """Return the content of a tensor, copied by a stream that waits for nothing."""
    found = tensors[name]
    with torch.cuda.stream(_stream("look", found.device)):
        return [float(x) for x in found.cpu().float().tolist()]


def _stream(name: str, device: Any) -> Any:
    return streams.setdefault(name, torch.cuda.Stream(device))


REDUCTIONS = {"SUM": dist.ReduceOp.SUM, "AVG": dist.ReduceOp.AVG, "MAX": dist.ReduceOp.MAX, "BAND": dist.ReduceOp.BAND}


def start(work: str, driver: str, operation: str, *arguments: Any, stream: str | None = None) -> float:
    """Start an operation and watch it; the names of tensors stand for them. Returns the seconds that it took."""
    given = [_resolved(one) for one in arguments]
    after = None
    if stream is not None:
        after = torch.cuda.Event()
        after.record(streams[stream])
    outcome = Outcome()
    began = time.monotonic()
    made = getattr(drivers[driver], operation)(*given, after=after)
    works[work] = made, outcome
    drivers[driver].watch(made, outcome.finished, outcome.was_launched)
    return time.monotonic() - began


def _resolved(one: Any) -> Any:
    if isinstance(one, list):
        return [_resolved(each) for each in one]
    if isinstance(one, str):
        return REDUCTIONS[one] if one in REDUCTIONS else tensors[one]
    return one


def end(work: str, seconds: float = PATIENCE) -> list[str] | None:
    """The class and text of an operation's error; nothing if it went well."""
    outcome = works[work][1]
    if not outcome.over.wait(seconds):
        raise TimeoutError(f"{work} is not over")
    return said(outcome.error)


def is_over(work: str) -> bool:
    return works[work][1].over.is_set()


def launched(work: str, seconds: float = PATIENCE) -> bool:
    return works[work][1].launched.wait(seconds)


def calls(work: str) -> list[str]:
    return works[work][1].calls


def join(work: str, driver: str, stream: str, device: str = "cuda:0") -> None:
    """Let a stream wait for an operation."""
    with torch.cuda.stream(_stream(stream, torch.device(device))):
        drivers[driver].join(works[work][0])


def copy(to: str, of: list[float], stream: str) -> None:
    """Copy values into a tensor, in a stream."""
    source = torch.tensor(of, dtype=tensors[to].dtype).pin_memory()
    tensors[f"{to}-source"] = source
    with torch.cuda.stream(_stream(stream, tensors[to].device)):
        tensors[to].copy_(source, non_blocking=True)


def stall(stream: str, device: str = "cuda:0") -> None:
    """Keep a stream busy until the injection at ``ncclReduce`` is lifted: with an operation of a group of one."""
    nccl = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[0])
    identity, comm = UniqueId(), ctypes.c_void_p()
    place = _stream(stream, torch.device(device))
    with torch.cuda.stream(place):
        busy = tensors["busy"] = torch.empty(1, device=device)
    assert nccl.ncclGetUniqueId(ctypes.byref(identity)) == 0
    assert nccl.ncclCommInitRank(ctypes.byref(comm), 1, identity, 0) == 0
    at, where = ctypes.c_void_p(busy.data_ptr()), ctypes.c_void_p(place.cuda_stream)
    assert nccl.ncclReduce(at, at, ctypes.c_size_t(1), 7, 0, 0, comm, where) == 0


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


def forget(name: str) -> int:
    """Drop our reference to a tensor; its address."""
    return int(tensors.pop(name).data_ptr())


def config(backend: str, device: str | None) -> str:
    """The device that ``join`` takes for a world."""
    defaults = Defaults(None, 1.0, Heartbeat(), NetworkSettings())
    return checked_config(defaults, "w", 0, 2, backend, device, None, None, 1.0, None).device


def watchdog_ends_the_process() -> bool:
    """Return whether this torch is a stock one whose watchdog ends the process over a CUDA error."""
    return is_official()


def knows_remote_errors() -> bool:
    """Return whether torch's group tells the loss of a peer from an end: older stock releases do not."""
    return not can_only_abort() or is_patched()


def survives_failed_launches() -> bool:
    """Return whether the process lives on after NCCL refused a launch: on stock releases before 2.4 it does not."""
    return hasattr(dist.ProcessGroupNCCL, "eager_connect_single_device") or is_patched()


def can_only_abort() -> bool:
    """Return whether torch's group has no end in good order: releases before 2.6."""
    return not any(hasattr(dist.ProcessGroupNCCL, name) for name in ("abort", "_abort"))


def address(name: str) -> int:
    return int(tensors[name].data_ptr())


def abort(driver: str) -> float:
    """Abort; the seconds that it took."""
    began = time.monotonic()
    drivers[driver].abort()
    return time.monotonic() - began


def close(driver: str, seconds: float) -> float:
    """Close; the seconds that it took."""
    began = time.monotonic()
    drivers[driver].close(seconds)
    return time.monotonic() - began


def begin_close(driver: str, seconds: float) -> None:
    outcome = opened[driver] = Outcome()

    def run() -> None:
        drivers[driver].close(seconds)
        outcome.finished(None)

    threading.Thread(target=run, daemon=True).start()


def lose_device_in(thread: str) -> None:
    """Lose the device when a thread whose name begins so chooses one."""
    imitation = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[0])
    choose = torch.cuda.set_device

    def chosen(device: Any) -> None:
        if threading.current_thread().name.startswith(thread):
            assert imitation.gpuless_inject(b"cudaSetDevice", FAIL, ILLEGAL_ADDRESS, ANY_COMMUNICATOR, 0, 1) == 0
        choose(device)

    torch.cuda.set_device = chosen


def look_late(driver: str) -> None:
    """Have the thread that looks for failures come to it when what it is to look at is over."""
    made = drivers[driver]
    made._launcher = _Late(made._launcher, made._works)


class _Late:
    def __init__(self, launcher: Any, works: dict[int, Any]) -> None:
        self._launcher, self._works = launcher, works
        self.looking = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)

    def next(self) -> Any:
        job, number, reports = self._launcher.next()
        if job == device_driver._Job.LOOK:
            self.looking.set()
            until = time.monotonic() + PATIENCE
            while number in self._works and time.monotonic() < until:
                time.sleep(0.001)
        return job, number, reports


def is_looking(driver: str) -> bool:
    """Wait until a thread is to look."""
    found: bool = drivers[driver]._launcher.looking.wait(PATIENCE)
    return found


def uncaught() -> list[str]:
    """The errors that ended threads."""
    return ended_by


def ticks(seconds: float) -> int:
    """Count how often a thread of Python's ran meanwhile."""
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        count += 1
        time.sleep(0.005)
    return count


def threads() -> list[str]:
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("mw-"))


def give_up_aborts_after(seconds: float) -> None:
    device_driver.ABORT_SECONDS = seconds


def errors_logged() -> list[str]:
    """Return what the package has logged as an error."""
    return logged


def variable(name: str) -> str | None:
    return os.environ.get(name)


def serve(context: Context, variables: dict[str, str]) -> None:
    """Answer the calls of a test, until it ends us."""
    os.environ.update(variables)
    logging.getLogger("multiworld").addHandler(errors := logging.Handler(logging.ERROR))
    errors.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("multiworld").addHandler(logging.StreamHandler())  # which one that has none would have
    threading.excepthook = lambda given: ended_by.append(f"{given.thread}: {given.exc_value!r}")
    while True:
        name, arguments, named = context.recv(timeout=IDLE_SECONDS)
        try:
            answer = globals()[name](*arguments, **named), ""
        except Exception as error:  # noqa: BLE001 - told to the test
            answer = None, f"{type(error).__name__}: {error}"
        context.send(answer)
