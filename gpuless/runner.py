"""Running probes: each in its own process, under a hard deadline, on the imitation built for its torch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuless.catalogue import PROBES
from gpuless.control import read_control
from gpuless.imitation import Native, built
from gpuless.model import Form, Outcome, Probe, ProbeResult, Verdict
from gpuless.subject import Subject, examine

PROGRAMS = Path(__file__).resolve().parent / "probes"

# What every probe gets unless it says otherwise: the mode of the series, a monitor that is on but patient, and no
# flight recorder (with it 2.9's watchdog spends seconds on the traceback of a failed operation).
# The names changed in 2.9 (FR instead of NCCL_TRACE); a release ignores what it does not know.
_BASE = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # 2.9 sleeps four times this long before it aborts, whether it dumps or not.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "100",
    # The C++ stack dumper unwinds all threads, takes seconds, and now and then crashes by itself (2.6.0).
    "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN": "0",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    "TORCH_FR_BUFFER_SIZE": "0",
    "PYTHONWARNINGS": "ignore",
}
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL")  # nothing else of the caller's environment reaches a probe
_OUTPUT_END = 6000  # characters of standard error that are kept


def run_probes(
    python: Path,
    form: Form,
    only: Iterable[str] | None = None,
    done: Callable[[ProbeResult], None] = lambda _: None,
    jobs: int = 2,
) -> tuple[ProbeResult, ...]:
    """Run the probes that are for an interpreter's torch.

    Args:
        python: the interpreter; needs torch (CUDA build) and numpy, nothing of the tooling.
        form: what its torch is: decides what is expected.
        only: ids of the probes to run; default: all that cover the release.
        done: called with each result as it comes.
        jobs: how many probes run at once; most of their time is spent waiting.

    Returns:
        The results, in the catalogue's order.

    Raises:
        EnvironmentUnfitError: no CUDA build of torch there, or no C compiler.
        KeyError: an id in `only` that no probe has.
    """
    subject = examine(python)
    native = built(subject)
    probes = _chosen(subject.release, only)

    def one(probe: Probe) -> ProbeResult:
        result = run_probe(probe, subject, native, form)
        done(result)
        return result

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        return tuple(pool.map(one, probes))


def _chosen(release: str, only: Iterable[str] | None) -> list[Probe]:
    known = {probe.id: probe for probe in PROBES}
    wanted = list(known) if only is None else list(only)
    return [known[name] for name in wanted if known[name].covers(release)]


def run_probe(probe: Probe, subject: Subject, native: Native, form: Form) -> ProbeResult:
    """Run one probe and judge it."""
    with tempfile.TemporaryDirectory(prefix="gpuless-") as name:
        folder = Path(name)
        start = time.monotonic()
        code, output = _execute(probe, subject, native, folder)
        seconds = time.monotonic() - start
        got, detail = _outcome(probe, code, output, folder)
    expected = probe.expected(form, subject.release)
    got = _right_failure(probe, got, output, form)
    verdict = (
        Verdict.NOT_MEASURED if expected is None
        else Verdict.AS_EXPECTED if got is expected
        else Verdict.MISMATCH
    )  # fmt: skip
    return ProbeResult(probe, subject.release, form, got, verdict, seconds, detail, output[-_OUTPUT_END:])


def _execute(probe: Probe, subject: Subject, native: Native, folder: Path) -> tuple[int | None, str]:
    """Return the exit status (None: killed at the deadline) and what the process wrote."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= _BASE | dict(probe.environment) | native.environment
    environment |= _old_names(environment)
    environment |= {
        "GPULESS_CONTROL": str(folder / "control"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(folder / "trace_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / "trace_"),
        "TMPDIR": str(folder),
    }
    arguments = (probe.program, json.dumps(dict(probe.args)), str(folder / "result"))
    command = [str(subject.python), "-I", str(PROGRAMS / "main.py"), *arguments]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        code = _wait(process, probe.timeout)
    return code, (folder / "output").read_text(encoding="utf-8", errors="replace")


def _old_names(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the mode of error handling under the name that releases before 2.2 know alone.

    Later releases read it as well, where the new name is not set; it always is.
    """
    name = "NCCL_ASYNC_ERROR_HANDLING"
    return {name: environment.get(name, environment[f"TORCH_{name}"])}


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:  # the deadline, or Ctrl-C: nothing is left running
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _outcome(probe: Probe, code: int | None, output: str, folder: Path) -> tuple[Outcome, dict[str, object]]:
    detail: dict[str, object] = {"exit": code}
    got = _reported(folder / "result", detail) if code == 0 else _from_exit(code)
    control = read_control(folder / "control")
    if control is None:
        return Outcome.BROKEN, detail | {"error": "the imitation was not loaded"}
    if control.unimplemented:
        detail["not imitated"] = control.last_unimplemented
    if probe.fires and got is not Outcome.BROKEN and not control.fired(probe.fires):
        return Outcome.NOT_INJECTED, detail
    if code != 0:
        detail["last words"] = _last_words(output)
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
    """A stock process's end counts only with its evidence; without, it ended of something else."""
    if form is Form.PATCHED and probe.patched is not None:
        return got
    lacks = got is Outcome.TERMINATED and probe.evidence and not re.search(probe.evidence, output)
    return Outcome.BROKEN if lacks else got


def _last_words(output: str) -> str:
    telling = [line for line in output.splitlines() if "terminat" in line.lower() or "what():" in line]
    return " | ".join(telling[-2:])[-400:]
