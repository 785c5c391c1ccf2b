"""Hosts on this machine: real sshd processes, each with a port, a host key and a home of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.build.official.server import Index, make_wheel
from tests.build.wheels.little_wheel import record_line

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
#: Where sshd wants an empty folder when root runs it; Debian's service makes it.
_EMPTY = Path("/run/sshd")
_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {top}/key.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
SetEnv HOME={folder}/home PATH={path} TMPDIR={folder}/tmp PIP_CONFIG_FILE=/dev/null PIP_DEFAULT_TIMEOUT=120
"""


def _keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=60)


@dataclass
class Host:
    """One sshd: a process for each connection, as inetd runs it, so that the port is one that the kernel chose.

    Attributes:
        sessions: the process groups of its connections.
    """

    name: str
    folder: Path
    listener: socket.socket
    sessions: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def current(self) -> Path:
        return self.home / "multiworld" / "current"

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        assert SSHD is not None
        command = [SSHD, "-i", "-e", "-f", str(self.folder / "sshd_config")]
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, (self.folder / "sshd.log").open("ab") as log:
                wire = connection.fileno()
                self.sessions.append(
                    subprocess.Popen(command, stdin=wire, stdout=wire, stderr=log, start_new_session=True)
                )

    def lose(self, *, processes: bool) -> None:
        """Break the connection as a host does that loses its network, or with `processes` its power."""
        ended = [pid for session in self.sessions for pid in _below(session.pid)]
        for pid in ended if processes else [pid for pid in ended if b"sshd" in _command(pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop everything of its connections: no packet comes back, and no connection breaks."""
        for session in self.sessions:
            for pid in _below(session.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def left(self) -> list[int]:
        """The processes of its connections that still run."""
        return [
            int(p.name) for p in Path("/proc").glob("[0-9]*") if str(self.home).encode() in _environment(int(p.name))
        ]

    def close(self) -> None:
        # A thread that waits in accept() is not woken by close alone.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.lose(processes=True)
        for pid in self.left():  # what a lost connection has left behind
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for session in self.sessions:
            session.wait(30)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _command(pid: int) -> bytes:
    return _read(pid, "cmdline").split(b"\0")[0]


def _environment(pid: int) -> bytes:
    return _read(pid, "environ")


def _below(pid: int) -> list[int]:
    """Return a process and all that come from it, the youngest first."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        stat = _read(int(path.name), "stat").rpartition(b")")[2].split()
        if stat:
            parents.setdefault(int(stat[1]), []).append(int(path.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found[::-1]


@dataclass
class Cluster:
    """Hosts by name, and the configuration with which ssh reaches them."""

    top: Path
    hosts: dict[str, Host] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.top / "ssh_config"

    @property
    def ssh(self) -> tuple[str, str]:
        """The end of a command line of `ci/install` that reaches them."""
        return "--", f"--ssh-common-args=-F {self.config}"

    def add(self, name: str, *, known: bool = True) -> Host:
        folder = self.top / name
        for part in (folder / "home", folder / "tmp"):
            part.mkdir(parents=True)
        _keygen(folder / "host_key")
        path = f"{Path(sys.executable).parent}:{os.defpath}"
        (folder / "sshd_config").write_text(_CONFIG.format(folder=folder, top=self.top, path=path))
        host = Host(name, folder, socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=host.serve, daemon=True).start()
        self.hosts[name] = host
        self.reach(name, host.port)
        if known:
            self.trust(name, folder / "host_key.pub")
        return host

    def reach(self, name: str, port: int) -> None:
        """Let ssh find a host of that name at a port of this machine."""
        with self.config.open("a") as config:
            config.write(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  HostKeyAlias {name}\n")

    def trust(self, name: str, public: Path) -> None:
        with (self.top / "known_hosts").open("a") as known:
            known.write(f"{name} {public.read_text()}")


@contextlib.contextmanager
def cluster(top: Path) -> Iterator[Cluster]:
    """Yield a cluster without hosts, and end all of them."""
    if SSHD is None:
        pytest.skip("sshd is not installed (apt-get install openssh-server): nothing of ci/install was tested")
    if os.geteuid() == 0:
        _EMPTY.mkdir(exist_ok=True)
    top.mkdir(exist_ok=True)
    _keygen(top / "key")
    made = Cluster(top)
    made.config.write_text(f"UserKnownHostsFile {top}/known_hosts\nIdentityFile {top}/key\nIdentitiesOnly yes\n")
    (top / "known_hosts").touch()
    try:
        yield made
    finally:
        for host in made.hosts.values():
            host.close()


#: A doctor that judges by a file in its home, so that one host can be ill.
_DOCTOR = """
import json, pathlib, sys
def main():
    ill = pathlib.Path.home() / "ill"
    verdict = "fail" if ill.is_file() and ill.read_text() in ("", "{version}") else "ok"
    if sys.argv[1:] != ["doctor", "--json"]:
        sys.exit("usage: doctor --json")
    check = {{"name": "versions", "verdict": verdict, "found": "multiworld {version}", "remedy": ""}}
    print(json.dumps({{"checks": [check]}}))
    sys.exit(verdict == "fail")
"""


def offer(index: Index, version: str, scratch: Path) -> None:
    """Offer a real wheel of a `torch-multiworld` in miniature, whose doctor speaks as the real one."""
    points = "[console_scripts]\nmultiworld = little_multiworld:main\n"
    offer_named(
        index,
        "torch-multiworld",
        version,
        scratch,
        {
            "little_multiworld.py": _DOCTOR.format(version=version),
            f"torch_multiworld-{version}.dist-info/entry_points.txt": points,
        },
    )


def offer_named(index: Index, name: str, version: str, scratch: Path, files: Mapping[str, str] | None = None) -> None:
    """Offer a wheel of pure Python with these files."""
    stem = f"{name.replace('-', '_')}-{version}"
    texts = {
        **(files or {}),
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members = {path: text.encode() for path, text in texts.items()}
    lines = [*(record_line(path, data) for path, data in members.items()), f"{stem}.dist-info/RECORD,,"]
    members[f"{stem}.dist-info/RECORD"] = ("\n".join(lines) + "\n").encode()
    index.add(f"{stem}-py3-none-any.whl", make_wheel(scratch / "made.whl", members))
