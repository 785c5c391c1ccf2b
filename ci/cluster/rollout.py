"""Bring a release onto all hosts at once; what happens to one is no matter of the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from build.errors import ToolError
from ci.cluster.inventory import Host
from ci.cluster.release import Kind, Pinned, Wanted
from ci.cluster.ssh import Conversation, HostError, Way, talking


class Action(Enum):
    """The actions on a host."""

    INSTALL = "install"
    CHECK = "check"
    LOOK = "look"
    ROLL_BACK = "roll-back"


class Outcome(Enum):
    """The result of a host; `good` says if it is the wanted one."""

    INSTALLED = "installed"
    UNCHANGED = "unchanged"
    ROLLED_BACK = "rolled back"
    LOOKED = "looked"
    PENDING = "would change"
    FAILED = "failed"
    LOST = "lost"
    UNREACHABLE = "unreachable"

    @property
    def good(self) -> bool:
        return self not in (Outcome.PENDING, Outcome.FAILED, Outcome.LOST, Outcome.UNREACHABLE)


@dataclass(frozen=True, slots=True)
class Result:
    """One host's end.

    Attributes:
        release: what the host runs now; empty if nothing, or unknown.
        before: what it ran before.
        versions: installed distributions by name.
        doctor: the doctor's findings by verdict (`ok`, `note`, `fail`); empty without multiworld.
        what: for a person: what went wrong; `cause` likewise.
        seconds: the time that it took.
    """

    host: str
    outcome: Outcome
    release: str = ""
    before: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    doctor: dict[str, list[str]] = field(default_factory=dict)
    what: str = ""
    cause: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": self.outcome.value}


@dataclass(frozen=True, slots=True)
class Plan:
    """The task for the hosts.

    Attributes:
        prefix: the folder on each host; `~` is the home there.
        after: shell command on each host after the switch; its failure rolls the host back.
        again: make the environment anew although the host runs the release.
        parallel: hosts at once.
        timeout: seconds for each command on a host.
    """

    action: Action
    wanted: Wanted
    way: Way
    prefix: str
    after: str = ""
    again: bool = False
    parallel: int = 64
    timeout: float = 1800.0


class Rollout:
    """Does a plan on many hosts: each kind of host is resolved for once."""

    def __init__(self, plan: Plan, seen: Callable[[str, str], None]) -> None:
        self._plan, self._seen = plan, seen
        self._pinned: dict[Kind, asyncio.Task[Pinned]] = {}

    async def run(self, hosts: Sequence[Host]) -> list[Result]:
        """Return one result for each host, in the order of the hosts."""
        places = asyncio.Semaphore(self._plan.parallel)

        async def one(host: Host) -> Result:
            async with places:
                result = await self._host(host)
            self._seen(host.name, result.outcome.value)
            return result

        return list(await asyncio.gather(*map(one, hosts)))

    async def _host(self, host: Host) -> Result:
        began = time.monotonic()
        before: dict[str, Any] = {}
        try:
            async with talking(host, self._plan.way) as talk:
                await talk.tell({"prefix": self._plan.prefix})
                before.update(await _heard(talk, "state"))
                said = await self._act(host, talk, before)
        except HostError as error:
            outcome = Outcome.LOST if error.lost else Outcome.UNREACHABLE
            said = {"outcome": outcome.value, "what": error.what, "cause": error.cause}
        except ToolError as error:  # what is wanted cannot be had for this kind of host
            said = {**before, "outcome": "failed", "what": error.what, "cause": error.cause}
        known = {key: said[key] for key in ("release", "versions", "doctor", "what", "cause") if key in said}
        spent = time.monotonic() - began
        return Result(host.name, Outcome(said["outcome"]), before=before.get("release", ""), seconds=spent, **known)

    async def _act(self, host: Host, talk: Conversation, before: dict[str, Any]) -> dict[str, Any]:
        plan = self._plan
        asked = {"prefix": plan.prefix, "timeout": plan.timeout, "after": plan.after}
        if plan.action in (Action.LOOK, Action.ROLL_BACK):
            await talk.tell({**asked, "action": plan.action.value})
            return await self._result(host, talk)
        pinned = await self._resolve(Kind(before["python"], before["machine"], before["glibc"]))
        if plan.action is Action.CHECK and before["release"] != pinned.name:
            return {**before, "outcome": Outcome.PENDING.value, "what": f"{pinned.name} would be installed"}
        if plan.action is Action.CHECK:
            await talk.tell({**asked, "action": Action.LOOK.value})
            return {**await self._result(host, talk), "outcome": Outcome.UNCHANGED.value}
        digests = plan.wanted.offered
        wheels = {name: {"sha256": digests[name], "size": path.stat().st_size} for name, path in pinned.wheels.items()}
        release = {"release": pinned.name, "requirements": pinned.requirements, "pip": plan.wanted.pip}
        await talk.tell({**asked, **release, "action": "install", "wheels": wheels, "again": plan.again})
        return await self._result(host, talk, pinned)

    async def _result(self, host: Host, talk: Conversation, pinned: Pinned | None = None) -> dict[str, Any]:
        while True:
            said = await talk.hear()
            if said["event"] == "step":
                self._seen(host.name, said["text"])
            elif said["event"] == "send" and pinned is not None:
                await talk.send([pinned.wheels[name] for name in said["names"]])
            elif said["event"] == "result":
                return said

    async def _resolve(self, kind: Kind) -> Pinned:
        if kind not in self._pinned:
            self._pinned[kind] = asyncio.create_task(asyncio.to_thread(self._plan.wanted.pinned, kind))
        return await asyncio.shield(self._pinned[kind])


async def _heard(talk: Conversation, event: str) -> dict[str, Any]:
    while (said := await talk.hear())["event"] != event:
        pass
    return said
