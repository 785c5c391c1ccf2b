"""Commands of the tooling, forked from a process that has imported them: a start takes a tenth of the time.

A command runs in a process and a session of its own, with its own environment, as if it were started anew. What is
about the start or the end of the process itself is tested with fresh ones: `test_cli`, `test_interruptions`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
#: the commands, and what they import while they run; what is not installed is passed over
_LOADED = ("build.cli", "build.official.pip_session", "build.wheels.sbom", "pydantic.type_adapter")
_CONTEXT.set_forkserver_preload(
    [*_LOADED, *(f"build.commands.{name}" for name in ("build", "explain", "test", "verify"))]
)


def run(arguments: list[str], environment: Mapping[str, str], timeout: float, module: str = "build") -> tuple[int, str]:
    """Run `python -m MODULE ARGUMENTS` with nothing but that environment; return exit status and output."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        output.touch()
        process = _CONTEXT.Process(target=_command, args=(module, arguments, dict(environment), str(output)))
        process.start()
        process.join(timeout)
        if process.exitcode is None:  # it shows where it hangs
            os.kill(process.pid or 0, signal.SIGABRT)
            process.join()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        said = output.read_text(errors="replace")
        assert process.exitcode is not None
        assert process.exitcode != -signal.SIGABRT, said
        return process.exitcode, said


def _command(module: str, arguments: list[str], environment: dict[str, str], output: str) -> None:
    """Become the command."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir("/")
    for number, (path, flags) in enumerate([(os.devnull, os.O_RDONLY), *[(output, os.O_WRONLY | os.O_APPEND)] * 2]):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    faulthandler.enable()
    for folder in reversed(environment["PYTHONPATH"].split(os.pathsep)):
        sys.path.insert(0, folder)
        if (site := Path(folder, "sitecustomize.py")).is_file():
            runpy.run_path(str(site))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")
