"""Tells each step of each host, and adds it to the file ANSIBLE_HOME/results, which `ci.cluster.results` reads.

Each event is a line of JSON that is written at once, so that nothing is lost however the run ends.
"""

from __future__ import annotations

import json
import os
from functools import partialmethod
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

# Here once, and not in the process of each host that `torch_lock` runs in.
import ci.cluster.lock  # noqa: F401

_WHY = ("msg", "stderr", "module_stderr", "module_stdout")
#: Characters of each that are told: a host may say megabytes, in which `ci.cluster.results` would look for words.
_TOLD = 100_000


class CallbackModule(CallbackBase):
    """The plugin. Of a task without a failure `outcome` is empty: the module's facts tell it."""

    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "stdout", "hosts"

    def _tell(self, host: str, facts: object = None, outcome: str = "", why: str = "") -> None:
        event = {"host": host, "facts": facts, "outcome": outcome, "why": why}
        with Path(os.environ["ANSIBLE_HOME"], "results").open("a", encoding="utf-8", errors="replace") as file:
            file.write(json.dumps(event, ensure_ascii=False) + "\n")  # a host may send what is no text

    def v2_playbook_on_play_start(self, play: Any) -> None:
        for name in play.get_variable_manager().get_vars(play=play)["ansible_play_hosts_all"]:
            self._tell(name)

    def _ended(self, result: Any, outcome: str = "", **_: Any) -> None:
        name, said = result._host.get_name(), result._result
        if outcome or "host" in said:
            why = "\n".join(str(said[key])[:_TOLD] for key in _WHY if said.get(key))
            self._tell(name, said.get("host"), outcome, why)
        self._display.display(f"{name}: {result._task.name}: {outcome or 'ok'}")

    v2_runner_on_ok = _ended
    v2_runner_on_failed = partialmethod(_ended, outcome="failed")  # Ansible adds ignore_errors
    v2_runner_item_on_failed = v2_runner_on_failed  # of a loop, whose own failure has no reason
    v2_runner_on_unreachable = partialmethod(_ended, outcome="unreachable")
