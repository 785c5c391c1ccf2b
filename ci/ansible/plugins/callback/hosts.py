"""Tells each step of each host, and keeps the file MULTIWORLD_RESULTS, which has what became of all hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from ansible.plugins.callback import CallbackBase

from ci.cluster.results import Result

DOCUMENTATION = "name: hosts\ntype: stdout\nshort_description: Steps and results of each host\n"
_WHY = ("msg", "stderr", "module_stderr", "module_stdout")


class CallbackModule(CallbackBase):
    """The plugin. Of a task without a failure `outcome` is empty: the module's facts tell it."""

    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "stdout", "hosts"
    found: ClassVar[dict[str, Result]] = {}

    def v2_playbook_on_play_start(self, play: Any) -> None:
        for name in play.get_variable_manager().get_vars(play=play)["ansible_play_hosts_all"]:
            self.found.setdefault(name, Result(name))
        self._keep()

    def _keep(self) -> None:
        part = Path(os.environ["MULTIWORLD_RESULTS"] + ".part")
        part.write_bytes(msgspec.json.encode(list(self.found.values())))
        part.rename(os.environ["MULTIWORLD_RESULTS"])

    def _ended(self, result: Any, word: str, outcome: str = "") -> None:
        name, said = result._host.get_name(), result._result
        if outcome or "host" in said:
            self.found[name].hear(said.get("host"), outcome, "\n".join(str(said[key]) for key in _WHY if said.get(key)))
            self._keep()
        self._display.display(f"{name}: {result._task.name}: {word}")

    def v2_runner_on_ok(self, result: Any) -> None:
        self._ended(result, "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: ARG002 - Ansible's
        self._ended(result, "failed", "failed")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._ended(result, "unreachable", "unreachable")
