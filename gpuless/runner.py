"""Running probes: each in its own process, under a hard deadline, on the imitation built for its torch."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build.errors import UsageError
from gpuless.catalogue import PROBES
from gpuless.control import read_control
from gpuless.forkserver import ForkServer, fork_server
from gpuless.imitation import preloading
from gpuless.model import Form, Outcome, Probe, ProbeResult, Verdict
from gpuless.subject import Subject, examine

# Defaults of every probe: the mode of the series, a monitor that is on with a long timeout, and no flight recorder
# (with it 2.9's watchdog spends seconds on the traceback of a failed operation).
# The names changed in 2.9 (FR instead of NCCL_TRACE); a release ignores what it does not know.
_BASE = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # 2.9 sleeps four times this long before it aborts, whether it dumps or not.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "100",
    # The C++ stack dumper unwinds all threads, takes seconds, and sometimes crashes (2.6.0).
    "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN": "0",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    "TORCH_FR_BUFFER_SIZE": "0",
    "PYTHONWARNINGS": "ignore",
}
_OUTPUT_END = 6000  # characters of standard error that are kept
#: Probes at once, per core: they spend most of their time waiting.
_PER_CORE = 8


class Runner:
    """Runs probes on the torch of one interpreter, which is imported once."""

    def __init__(self, subject: Subject, server: ForkServer) -> None:
        self.subject = subject
        self._server = server

    def end(self) -> None:
        """Kill the probes that run; no more can be run."""
        self._server.end()

    def run(self, probe: Probe, form: Form) -> ProbeResult:
        """Run one probe and judge it.

        Raises:
            EnvironmentUnfitError: torch cannot be imported there.
        """
        release = self.subject.release
        with tempfile.TemporaryDirectory(prefix="gpuless-") as name:
            folder, start = Path(name), time.monotonic()
            (folder / "output").touch()  # a probe may be killed before it opens the file
            code = self._server.run(probe, _environment(probe, folder), folder)
            seconds = time.monotonic() - start
            text = (folder / "output").read_text(encoding="utf-8", errors="replace")
            got, detail = _outcome(probe, code, text, folder)
        expected = probe.expected(form, release)
        got = _right_failure(probe, got, text, form)
        judged = Verdict.AS_EXPECTED if got is expected else Verdict.MISMATCH
        verdict = Verdict.NOT_MEASURED if expected is None else judged
        return ProbeResult(probe, release, form, got, verdict, seconds, detail, text[-_OUTPUT_END:])


@contextlib.contextmanager
def runner(python: Path) -> Iterator[Runner]:
    """Prepare an interpreter for probes.

    Args:
        python: the interpreter; needs torch (CUDA build) and numpy, nothing of the tooling.

    Raises:
        EnvironmentUnfitError: no CUDA build of torch there, or no C compiler.
    """
    subject = examine(python)
    with fork_server(python, _BASE | preloading(subject)) as server:
        yield Runner(subject, server)


def chosen(release: str, only: Iterable[str] | None = None) -> list[Probe]:
    """Return the probes that cover a release, of those named in `only` if that is given.

    Raises:
        UsageError: an id that no probe has.
    """
    known = {probe.id: probe for probe in PROBES}
    wanted = list(known) if only is None else list(only)
    if strange := set(wanted) - set(known):
        raise UsageError(f"no such probe: {', '.join(sorted(strange))}", remedy="--list shows all")
    return [known[name] for name in wanted if known[name].covers(release)]


def run_probes(
    runner: Runner,
    form: Form,
    probes: Iterable[Probe],
    done: Callable[[ProbeResult], None] = lambda _: None,
    jobs: int = 0,
) -> tuple[ProbeResult, ...]:
    """Run probes, many at once.

    A probe that does not show the defect of a stock wheel is run again, alone: on a busy machine the process may end
    after the probe's check. On a patched wheel it is not: a sporadic failure is a failure.

    Args:
        form: decides which outcomes are expected.
        done: called with each result as it comes, from several threads.
        jobs: how many run at once; 0: eight per core.

    Returns:
        The results, in the order of `probes`.
    """

    def doubtful(result: ProbeResult) -> bool:
        return form is Form.STOCK and result.verdict is Verdict.MISMATCH

    def one(probe: Probe, again: bool = False) -> ProbeResult:
        result = runner.run(probe, form)
        if again or not doubtful(result):
            done(result)
        return result

    with ThreadPoolExecutor(jobs or _PER_CORE * len(os.sched_getaffinity(0))) as pool:
        try:
            results = list(pool.map(one, probes))
            return tuple(one(result.probe, True) if doubtful(result) else result for result in results)
        except BaseException:  # Ctrl-C: do not wait for running probes
            pool.shutdown(wait=False, cancel_futures=True)
            runner.end()
            raise


def _environment(probe: Probe, folder: Path) -> dict[str, str]:
    own = {name: str(folder / "trace_") for name in ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")}
    every, mode = _BASE | dict(probe.environment), "NCCL_ASYNC_ERROR_HANDLING"
    own[mode] = every.get(mode, every[f"TORCH_{mode}"])  # its only name before 2.2; later ones read it last
    return {**probe.environment, **own, "TMPDIR": str(folder)}


def _outcome(probe: Probe, code: int | None, output: str, folder: Path) -> tuple[Outcome, dict[str, object]]:
    detail: dict[str, object] = {"exit": code}
    got = _reported(folder / "result", detail) if code == 0 else _from_exit(code)
    control = read_control(folder / "control")
    if control is None:
        return Outcome.BROKEN, detail | {"error": "the imitation was not loaded"}
    if control.unimplemented:
        detail["not imitated"] = control.last_unimplemented
    if control.misused:
        detail["used after its end"] = control.last_misused
        got = Outcome.USED_AFTER_FREE if got is Outcome.OK and not probe.misuses else got
    if probe.fires and got is not Outcome.BROKEN and not control.fired(probe.fires):
        return Outcome.NOT_INJECTED, detail
    if code != 0:
        lines = [line for line in output.splitlines() if "terminat" in line.lower() or "what():" in line]
        detail["last words"] = " | ".join(lines[-2:])[-400:]
    return got, detail


def _reported(result: Path, detail: dict[str, object]) -> Outcome:
    if not result.is_file():
        return Outcome.BROKEN
    answer = json.loads(result.read_text(encoding="utf-8"))
    detail.update(answer["detail"])
    return Outcome[answer["outcome"]]


def _from_exit(code: int | None) -> Outcome:
    if code is None:
        return Outcome.STALLED
    if code == -signal.SIGABRT:
        return Outcome.TERMINATED
    return Outcome.CRASHED if code < 0 else Outcome.BROKEN


def _right_failure(probe: Probe, got: Outcome, output: str, form: Form) -> Outcome:
    """Accept the end of a stock process only with its evidence; else it ended for another reason."""
    if form is Form.PATCHED and probe.patched is not None:
        return got
    lacks = got is Outcome.TERMINATED and probe.evidence and not re.search(probe.evidence, output)
    return Outcome.BROKEN if lacks else got
