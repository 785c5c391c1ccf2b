"""One conversation with a host: the agent runs there, and both sides exchange lines of JSON over OpenSSH's client.

It is the client that Ansible runs, too. With it, every way in that a cluster's users have works as it is: jump hosts,
agents, certificates, Kerberos, ssh's configuration and known hosts. The Python libraries for ssh implement a part of
these, and their licences (LGPL, EPL, GPL) are not permissive.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from build.errors import EnvironmentUnfitError
from ci.cluster.inventory import Host

AGENT = files("ci.cluster").joinpath("agent.py").read_bytes()
#: Nothing asks a person; a host that goes away in the middle is noticed after `ServerAliveInterval` times three.
OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "StrictHostKeyChecking": "yes",
}
#: ssh's own exit status, for all that fails before or beside the remote command.
_SSH_FAILED = 255
_NO_PROGRAM = (126, 127)
_CHUNK = 1 << 18
#: Seconds that ssh has to end after the last word.
_GRACE = 10.0
_LONGEST_LINE = 1 << 24
#: What ssh says, in this order, with what that means.
_MEANINGS = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is not the one in known_hosts: another or a new machine"),
    ("host key is known for", "its host key is not in known_hosts: compare it, then add it, e.g. with ssh-keyscan"),
    ("Host key verification failed", "its host key is not the one in known_hosts"),
    ("Could not resolve hostname", "there is no host of that name"),
    ("Permission denied", "ssh is not let in: a key of the agent or of --ssh-config must be in authorized_keys there"),
    ("Connection refused", "nothing listens there: sshd is not running, or the port is wrong"),
    ("timed out", "it does not answer: it is down, or a firewall is between"),
    ("No route to host", "it does not answer: it is down, or a firewall is between"),
    ("not responding", "it stopped answering"),
)


class HostError(Exception):
    """A host could not be reached, or was lost.

    Attributes:
        lost: whether it had answered before.
    """

    def __init__(self, what: str, cause: str, *, lost: bool = False) -> None:
        super().__init__(what)
        self.what, self.cause, self.lost = what, cause, lost


@dataclass(frozen=True, slots=True)
class Way:
    """The settings of ssh: a configuration file (`ssh -F`), and the seconds that one answer of a host may take."""

    config: Path | None = None
    timeout: float = 1800.0

    def command(self, host: Host) -> list[str]:
        """Return the command that runs the agent: its source is the first thing that the host's Python reads."""
        options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
        own = {"-F": self.config, "-p": host.port, "-l": host.user, "-i": host.key}
        options += [word for flag, value in own.items() if value for word in (flag, str(value))]
        load = f"import sys; exec(compile(sys.stdin.buffer.read({len(AGENT)}), 'agent.py', 'exec'))"
        return ["ssh", "-T", *options, "--", host.target, f"exec {host.python} -I -u -c {shlex.quote(load)}"]


class Conversation:
    """The lines to and from one host's agent."""

    def __init__(self, process: Process, timeout: float) -> None:
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        self._process, self._timeout, self._answered = process, timeout, False
        self._input, self._output = process.stdin, process.stdout

    async def tell(self, request: Mapping[str, Any]) -> None:
        await self.write(json.dumps(request).encode() + b"\n")

    async def send(self, paths: Sequence[Path]) -> None:
        """Send the bytes of files, one after the other."""
        for path in paths:
            with path.open("rb") as file:
                while block := file.read(_CHUNK):
                    await self.write(block)

    async def hear(self) -> dict[str, Any]:
        """Return the next thing that the host says.

        Raises:
            HostError: ssh or the agent ended, or nothing came in time.
        """
        try:
            line = await asyncio.wait_for(self._output.readline(), self._timeout)
        except asyncio.TimeoutError:
            raise HostError("it hangs", f"no answer within {self._timeout:.0f} s (--timeout)", lost=True) from None
        if not line.endswith(b"\n"):
            raise await self._ended()
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and "event" in said:
                self._answered = True
                return said
        return {"event": "noise"}  # a message of the host's login shell

    async def write(self, data: bytes) -> None:
        try:
            self._input.write(data)
            await asyncio.wait_for(self._input.drain(), self._timeout)
        except asyncio.TimeoutError:
            raise HostError("it hangs", f"it took no data for {self._timeout:.0f} s", lost=True) from None
        except (BrokenPipeError, ConnectionResetError):
            raise await self._ended() from None

    async def _ended(self) -> HostError:
        """Return why the conversation is over, from ssh's exit status and messages."""
        assert self._process.stderr is not None  # noqa: S101
        said = (await self._process.stderr.read(1 << 20)).decode("utf-8", "replace").strip()
        status = await self._process.wait()
        if self._answered:
            return HostError("it was lost in the middle", _last(said) or "the connection broke", lost=True)
        if status in _NO_PROGRAM:
            return HostError("Python cannot be run there", _last(said))
        if status != _SSH_FAILED:
            return HostError(f"the login ended with status {status}", _last(said))
        for words, meaning in _MEANINGS:
            if words in said:
                return HostError("it cannot be reached", meaning)
        return HostError("it cannot be reached", _last(said))


def _last(text: str) -> str:
    return "\n".join(text.splitlines()[-4:])


@contextlib.asynccontextmanager
async def talking(host: Host, way: Way) -> AsyncIterator[Conversation]:
    """Start the agent on a host; its input ends with the block, and ssh with it."""
    try:
        process = await asyncio.create_subprocess_exec(
            *way.command(host),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=_LONGEST_LINE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise EnvironmentUnfitError("ssh is not installed here", remedy="apt-get install openssh-client") from None
    talk = Conversation(process, way.timeout)
    try:
        await talk.write(AGENT)
        yield talk
        process.stdin.close()  # type: ignore[union-attr]  # a pipe, see above
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.communicate(), _GRACE)
    finally:
        # The connection ends with ssh, and the agent's input with the connection.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
