"""The register of sockets: forks that overlap, nest and come late, and names with several addresses."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator

import pytest
from procs import open_numbers

from multiworld.transport import sockets

SECONDS = 10.0


@pytest.fixture(autouse=True)
def free_afterwards() -> Iterator[None]:
    """Another thread gets the guard after the forks."""
    yield
    done = threading.Event()

    def make() -> None:
        sockets.made(socket.socket).close()
        done.set()

    threading.Thread(target=make, daemon=True).start()
    assert done.wait(SECONDS), "the guard is held"


class _Forker:
    """A thread that does the steps of a fork one by one, as it is told."""

    def __init__(self) -> None:
        self._steps = (sockets.before_fork, sockets.after_fork_in_parent)
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def step(self) -> None:
        self._go.release()
        assert self._done.acquire(timeout=SECONDS)

    def _run(self) -> None:
        for step in self._steps:
            self._go.acquire()
            step()
            self._done.release()


@pytest.mark.parametrize("order", [(0, 1, 0, 1), (0, 1, 1, 0)])
def test_forks_overlap_and_one_does_not_wait_for_the_other(
    order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "FORK_SECONDS", 0.01)
    forkers = _Forker(), _Forker()
    for number in order:
        forkers[number].step()


def test_forks_nest() -> None:
    for step in (*[sockets.before_fork] * 2, *[sockets.after_fork_in_parent] * 2):
        step()


def test_a_socket_that_another_hook_has_closed_does_not_keep_the_rest_open() -> None:
    child = os.fork()
    if child == 0:
        made = [sockets.made(socket.socket) for _ in range(3)]
        numbers = [sock.fileno() for sock in made]
        for number in numbers[::2]:
            os.close(number)
        sockets.after_fork_in_child()
        os._exit(sum(sock.fileno() != -1 for sock in made) + os.path.exists(f"/proc/self/fd/{numbers[1]}"))  # noqa: PTH110
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_address_of_a_family_that_the_kernel_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (real,) = socket.getaddrinfo(*server.getsockname(), type=socket.SOCK_STREAM)
        unknown = (9999, *real[1:])
        with pytest.raises(OSError, match=os.strerror(errno.EAFNOSUPPORT)):
            socket.socket(9999)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [unknown, real])
        sockets.connected("a-name", 0, SECONDS).close()


def _open_in_a_child(inode: int) -> int:
    """Fork, and count the descriptors of a socket that the child keeps."""
    child = os.fork()
    if child == 0:
        kept = -1
        try:
            sockets.after_fork_in_child()  # a second time, if this process has registered it
            kept = sum(_inode(number) == inode for number in open_numbers())
        finally:
            os._exit(kept)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _inode(number: int) -> int | None:
    with contextlib.suppress(OSError):  # the descriptor by which the open ones were listed
        return os.fstat(number).st_ino
    return None


def test_a_socket_that_a_thread_is_about_to_close_is_none_of_a_childs() -> None:
    """Its object is closed by then, as Python has it, and its descriptor is open."""
    sock = sockets.made(socket.socket)
    number = sock.detach()
    assert _open_in_a_child(os.fstat(number).st_ino) == 0
    os.close(number)


def test_what_has_the_number_of_a_closed_socket_stays() -> None:
    with sockets.made(socket.socket) as sock:
        number = sock.fileno()
        sock.close()
        other = os.memfd_create("other")
        if other != number:
            os.dup2(other, number)
            os.close(other)
        assert _open_in_a_child(os.fstat(number).st_ino) == 1
        os.close(number)
