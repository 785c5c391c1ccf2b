"""Tells each step of each host, and adds it to the file MULTIWORLD_RESULTS, which `ci.cluster.results` reads.

Each event is a line of JSON that is written at once, so that nothing is lost however the run ends.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = "name: hosts\ntype: stdout\nshort_description: Steps and results of each host\n"
_WHY = ("msg", "stderr", "module_stderr", "module_stdout")


class CallbackModule(CallbackBase):
    """The plugin. Of a task without a failure `outcome` is empty: the module's facts tell it."""

    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "stdout", "hosts"

    def _tell(self, host: str, facts: object = None, outcome: str = "", why: str = "") -> None:
        event = json.dumps({"host": host, "facts": facts, "outcome": outcome, "why": why}, ensure_ascii=False)
        with Path(os.environ["MULTIWORLD_RESULTS"]).open("ab") as file:
            file.write(event.encode("utf-8", "replace") + b"\n")  # a host may send what is no text

    def v2_playbook_on_play_start(self, play: Any) -> None:
        for name in play.get_variable_manager().get_vars(play=play)["ansible_play_hosts_all"]:
            self._tell(name)

    def _ended(self, result: Any, word: str, outcome: str = "") -> None:
        name, said = result._host.get_name(), result._result
        if outcome or "host" in said:
            self._tell(name, said.get("host"), outcome, "\n".join(str(said[key]) for key in _WHY if said.get(key)))
        self._display.display(f"{name}: {result._task.name}: {word}")

    def v2_runner_on_ok(self, result: Any) -> None:
        self._ended(result, "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: ARG002 - Ansible's
        self._ended(result, "failed", "failed")

    v2_runner_item_on_failed = v2_runner_on_failed  # of a loop, whose own failure has no reason

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._ended(result, "unreachable", "unreachable")
