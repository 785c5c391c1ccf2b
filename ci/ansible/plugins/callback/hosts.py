"""Tells each step of each host, and writes its results to the file MULTIWORLD_RESULTS, one JSON object a line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = "name: hosts\ntype: stdout\nshort_description: Steps and results of each host\n"
_WHY = ("msg", "stderr", "module_stderr", "module_stdout")
#: Of each of these so much is kept.
MOST = 4000


class CallbackModule(CallbackBase):
    """The plugin. Of a task without a failure `outcome` is empty: `facts` tell it."""

    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "stdout", "hosts"

    def _write(self, name: str, facts: Any = None, outcome: str = "", why: str = "") -> None:
        with Path(os.environ["MULTIWORLD_RESULTS"]).open("a", encoding="utf-8") as file:
            line = {"name": name, "facts": facts, "outcome": outcome, "why": why}
            file.write(json.dumps(line, default=str) + "\n")

    def _ended(self, result: Any, word: str, outcome: str = "") -> None:
        name, said = result._host.get_name(), result._result
        why = "\n".join(str(said[key])[:MOST] for key in _WHY if said.get(key)) if outcome else ""
        if outcome or "host" in said:
            self._write(name, said.get("host"), outcome, why)
        self._display.display(f"{name}: {result._task.name}: {word}")

    def v2_playbook_on_play_start(self, play: Any) -> None:
        for name in play.get_variable_manager().get_vars(play=play)["ansible_play_hosts_all"]:
            self._write(name)

    def v2_runner_on_ok(self, result: Any) -> None:
        self._ended(result, "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: ARG002 - Ansible's
        self._ended(result, "failed", "failed")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._ended(result, "unreachable", "unreachable")
