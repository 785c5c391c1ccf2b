"""A switch for tests: adds up what its workers send, job after job, and can fail or stall where a test says so."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch

from multiworld.switchml.compiling import ClientLibrary, compile_shim

HERE = Path(__file__).parent
_HELLO, _HEAD, _REPLY = struct.Struct("=HH"), struct.Struct("=QQ"), struct.Struct("=Q")
_TYPES = (torch.float32, torch.int32)
#: Rounds in which some ranks get no sum, by number from 0.
Faults = Mapping[int, Collection[int]]


def build_client(home: Path) -> ClientLibrary:
    """Compile the stand-in, as an installed client library; what the real one needs is there, empty."""
    (home / "lib").mkdir(parents=True)
    (home / "include").symlink_to(HERE / "include")
    client = home / "client.o"
    flags = ["-std=c++17", "-O1", "-fPIC", "-DTIMEOUTS", f"-I{HERE / 'include'}"]
    subprocess.run(["g++", *flags, "-c", str(HERE / "client.cpp"), "-o", str(client)], check=True, timeout=120)
    for name, objects in (("switchml-client", [str(client)]), ("glog", []), ("boost_program_options", [])):
        subprocess.run(["ar", "rcs", str(home / "lib" / f"lib{name}.a"), *objects], check=True, timeout=60)
    return ClientLibrary(home)


def build_shim(home: Path) -> Path:
    """Compile the stand-in, and the shim against it."""
    shim = home / "shim.so"
    compile_shim(build_client(home), shim)
    return shim


class Switch:
    """The switch: one job at a time, from all workers.

    Args:
        size: the number of workers.
        fail: ranks that are told that the job failed, by round.
        stall: ranks that get no answer, by round.
    """

    def __init__(self, size: int, fail: Faults | None = None, stall: Faults | None = None) -> None:
        self.jobs: list[tuple[int, torch.dtype]] = []
        #: what a worker did that none may do, such as another job than the others
        self.complaints: list[str] = []
        self._size, self._fail, self._stall = size, fail or {}, stall or {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._workers: dict[int, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def config(self, folder: Path) -> Path:
        """A configuration for the client library, whose rank and number of workers are nobody's."""
        port = self._listener.getsockname()[1]
        path = folder / "switchml.cfg"
        text = f"[general]\nrank = 77\nnum_workers = 99\ncontroller_ip = 127.0.0.1\ncontroller_port = {port}\n"
        path.write_text(text)
        return path

    def close(self) -> None:
        for sock in (self._listener, *self._workers.values()):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._workers) < self._size:
                worker, _ = self._listener.accept()
                rank, size = _HELLO.unpack(_exactly(worker, _HELLO.size))
                if size != self._size or rank in self._workers:
                    self.complaints.append(f"worker {rank} of {size}")
                self._workers[rank] = worker
            while True:
                self._round(len(self.jobs))

    def _round(self, number: int) -> None:
        heads, parts = [], []
        for rank in range(self._size):
            count, kind = _HEAD.unpack(_exactly(self._workers[rank], _HEAD.size))
            heads.append((count, _TYPES[kind]))
            data = bytearray(_exactly(self._workers[rank], 4 * count))
            parts.append(torch.frombuffer(data, dtype=_TYPES[kind]))
        if len(set(heads)) != 1:
            self.complaints.append(f"job {number}: {heads}")
            raise OSError
        self.jobs.append(heads[0])
        total = torch.stack(parts).sum(0, dtype=heads[0][1])
        for rank, worker in self._workers.items():
            if rank in self._fail.get(number, ()):
                worker.sendall(_REPLY.pack(1))
            elif rank not in self._stall.get(number, ()):
                worker.sendall(_REPLY.pack(0) + total.numpy().tobytes())


@contextlib.contextmanager
def switch(size: int, fail: Faults | None = None, stall: Faults | None = None) -> Iterator[Switch]:
    """A switch that is gone when the block ends; it must have had nothing to complain about."""
    made = Switch(size, fail, stall)
    try:
        yield made
    finally:
        made.close()
    assert not made.complaints, made.complaints


def _exactly(sock: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        more = sock.recv(count - len(found))
        if not more:
            raise ConnectionResetError
        found += more
    return bytes(found)
