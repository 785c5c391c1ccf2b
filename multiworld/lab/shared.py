"""One loaded process for pools of several processes, as those of pytest-xdist: torch is imported once for all of them.

The first pool that asks starts it, as ``python -m multiworld.lab.shared SOCKET FD few|many MODULE...``. It forks a
forkserver for each pool, and ends when none of these is left, so that nothing has to end it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_MODULE = "multiworld.lab.shared"
_started: list[subprocess.Popen[bytes]] = []  # it may live longer than the pool that has started it


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else asks or starts, and the process does not end."""
    with path.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ask(folder: Path, command: Sequence[str], environment: Mapping[str, str], given: Sequence[int]) -> None:
    """Have a forkserver made with ``environment``, in the folder that we are in.

    Args:
        folder: of the sockets, made if needed; whoever may write there may have anything run.
        command: the interpreter, and what follows the socket where the process is to be started. Those that agree in
            it and in PYTHONPATH share one.
        given: descriptors of its control, standard output and standard error.
    """
    kind = json.dumps([*command, environment["PYTHONPATH"]])
    path = folder / hashlib.sha256(kind.encode()).hexdigest()[:8]
    request = json.dumps([str(Path.cwd()), dict(environment)]).encode()
    folder.mkdir(exist_ok=True)
    with _alone(path), _socket() as link, _socket() as listener:
        try:
            link.connect(str(path))
            socket.send_fds(link, [request], given)
        except (FileNotFoundError, ConnectionRefusedError):
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen(64)
            link.connect(str(path))
            socket.send_fds(link, [request], given)  # before the start: it waits for a first one
            _start(path, listener, command, environment, given)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _start(
    path: Path, listener: socket.socket, command: Sequence[str], environment: Mapping[str, str], given: Sequence[int]
) -> None:
    _started[:] = [process for process in _started if process.poll() is None]
    python, *rest = command
    process = subprocess.Popen(
        [python, "-m", _MODULE, str(path), str(listener.fileno()), *rest],
        pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stdout=given[1], stderr=given[2],
        env=environment, start_new_session=True,
    )  # fmt: skip
    _started.append(process)


def serve(path: Path, listener: socket.socket) -> socket.socket | None:
    """Fork forkservers until none is left (None), or until we are a new one (its control)."""
    living: dict[int, int] = {}  # descriptors that tell the end of these processes
    while True:
        ready = set(select.select([listener.fileno(), *living], [], [])[0])
        for descriptor in ready & living.keys():
            os.waitpid(living.pop(descriptor), 0)
            os.close(descriptor)
        if listener.fileno() in ready and (control := _fork(listener, living)):
            return control
        if not living and _leave(path, listener):
            return None


def _leave(path: Path, listener: socket.socket) -> bool:
    with contextlib.suppress(FileNotFoundError), _alone(path):  # unless the folder is gone
        if select.select([listener], [], [], 0)[0]:
            return False
        path.unlink()
    return True


def _fork(listener: socket.socket, living: dict[int, int]) -> socket.socket | None:
    link, _ = listener.accept()
    with link:
        request, given, _, _ = socket.recv_fds(link, 1 << 18, 3)
    if not request:  # it was killed meanwhile
        return None
    _adopt(request)
    pid = os.fork()
    if pid == 0:
        for descriptor in (listener.detach(), *living):
            os.close(descriptor)
        return _become_forkserver(*given)
    for descriptor in given:
        os.close(descriptor)
    living[os.pidfd_open(pid)] = pid
    return None


def _adopt(request: bytes) -> None:
    """Before the fork, at which gpuless looks at the environment."""
    folder, environment = json.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it depends on them


def _become_forkserver(control: int, output: int, errors: int) -> socket.socket:
    os.setsid()
    for number, descriptor in ((1, output), (2, errors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return socket.socket(fileno=control)


def main() -> None:
    from multiworld.lab import forkserver

    path, listener = Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    forkserver.load(sys.argv[4:], many=sys.argv[3] == "many")
    control = serve(path, listener)
    if control is None:
        os._exit(0)  # nothing here needs an orderly end
    forkserver.attend(control)


if __name__ == "__main__":
    main()
