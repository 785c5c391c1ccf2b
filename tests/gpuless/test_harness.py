"""The harness itself, on a real CUDA build of torch: `MULTIWORLD_TORCH_PYTHON`, else the running interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from build.errors import EnvironmentUnfitError
from build.wheeltest.results import read_junit
from gpuless import measured
from gpuless.__main__ import main, write_junit
from gpuless.catalogue import PROBES
from gpuless.forkserver import fork_server
from gpuless.imitation import IMITATION, built
from gpuless.model import Form, Outcome, Patch, Probe, ProbeResult, Verdict
from gpuless.runner import Runner, run_probes, runner
from gpuless.subject import Subject, examine

_BY_ID = {probe.id: probe for probe in PROBES}
_REPOSITORY = Path(__file__).resolve().parents[2]
#: The program is beside this file, and not among those of the probes.
_SELFTEST = str(Path(__file__).with_name("selftest"))
#: Seconds: enough for a probe to get to what hangs while many other tests run.
_DEADLINE = 8


@pytest.fixture(scope="module")
def ready(subject: Subject) -> Iterator[Runner]:
    with runner(subject.python) as found:
        yield found


def _run(probe: Probe, ready: Runner) -> ProbeResult:
    return ready.run(probe, Form.STOCK)


def _works(subject: Subject) -> Probe:
    return next(probe for probe in PROBES if probe.program == "works" and probe.covers(subject.release))


def _own(program: str, **settings: object) -> Probe:
    probe = Probe(id="test", patch=Patch.BASELINE, title="", program=program)
    return replace(probe, **settings)  # type: ignore[arg-type]


def test_imitation_keeps_its_promises(ready: Runner) -> None:
    result = _run(_own(_SELFTEST, misuses=True), ready)
    assert result.got is Outcome.OK, result.detail


def test_a_probe_that_uses_a_handle_after_its_end_is_no_success(ready: Runner) -> None:
    result = _run(_own(_SELFTEST), ready)
    assert result.got is Outcome.USED_AFTER_FREE
    assert result.detail["used after its end"]


def test_real_process_group_works_without_injection(ready: Runner) -> None:
    result = _run(_works(ready.subject), ready)
    assert result.got is Outcome.OK, (result.detail, result.output)
    assert result.detail["reduced"] == [1.0, 2.0]


def test_injection_fires_and_reaches_the_caller(ready: Runner) -> None:
    result = _run(_BY_ID["remote-error-gather"], ready)
    fired = result.detail["fired"]
    assert isinstance(fired, dict)
    assert sum(fired.values()) >= 1
    assert result.detail["exception"] is not None


def test_probe_whose_injection_never_fires_shows_nothing(ready: Runner) -> None:
    result = _run(replace(_works(ready.subject), fires=("ncclCommRevoke",)), ready)
    assert result.got is Outcome.NOT_INJECTED


def test_failing_program_is_no_outcome_of_torch(ready: Runner) -> None:
    result = _run(_own("works", args={"operations": [], "backend": "unknown", "excess": 1}), ready)
    assert result.got is Outcome.BROKEN
    assert "TypeError" in str(result.detail["error"])


def test_deadline_is_hard(ready: Runner) -> None:
    result = _run(replace(_BY_ID["abort-hangs"], timeout=_DEADLINE), ready)
    assert result.got is Outcome.STALLED
    assert result.seconds < _DEADLINE + 4


def test_probes_share_nothing_but_the_import(ready: Runner) -> None:
    """Each has a control block and injections of its own, although both were forked from one process."""
    failing, sound = _BY_ID["remote-error-gather"], _works(ready.subject)
    for _ in range(2):
        first, second = run_probes(ready, Form.STOCK, [failing, sound], jobs=2)
        assert first.detail["fired"]
        assert second.got is Outcome.OK, second.detail


class _Twice:
    """Gives a mismatch first, and then what is expected."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, probe: Probe, form: Form) -> ProbeResult:
        self.runs += 1
        verdict = Verdict.MISMATCH if self.runs == 1 else Verdict.AS_EXPECTED
        return ProbeResult(probe, "2.6.0", form, Outcome.OK, verdict, 1.0, {}, "")


@pytest.mark.parametrize(("form", "runs"), [(Form.STOCK, 2), (Form.PATCHED, 1)])
def test_only_stock_gets_a_second_try(form: Form, runs: int) -> None:
    seen, fake = list[ProbeResult](), _Twice()
    (result,) = run_probes(fake, form, [_BY_ID["works"]], seen.append)  # type: ignore[arg-type]
    assert fake.runs == runs
    assert seen == [result], "each probe is told once"
    assert result.verdict is (Verdict.AS_EXPECTED if form is Form.STOCK else Verdict.MISMATCH)


def test_a_deadline_and_an_end_leave_no_process(ready: Runner) -> None:
    with runner(ready.subject.python) as own, ThreadPoolExecutor(1) as pool:
        server = own._server.process.pid
        hanging = pool.submit(own.run, replace(_BY_ID["abort-hangs"], timeout=100), Form.STOCK)
        while not (running := _children(server)):
            time.sleep(0.05)
        assert own.run(replace(_BY_ID["abort-hangs"], timeout=_DEADLINE), Form.STOCK).got is Outcome.STALLED
        own.end()
        with pytest.raises(EnvironmentUnfitError, match="the server that starts the probes has ended"):
            hanging.result(timeout=30)
    assert not any(Path("/proc", pid, "exe").exists() for pid in [*running, str(server)])


def _children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()


def test_a_torch_that_cannot_be_imported_is_named(ready: Runner, tmp_path: Path) -> None:
    """It ends the run with its own words, and hangs nobody."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ImportError: libtorch is broken' >&2; exit 1\n")
    python.chmod(0o755)
    with fork_server(python, {}) as server, pytest.raises(EnvironmentUnfitError) as caught:
        server.run(_works(ready.subject), {}, tmp_path)
    assert "libtorch is broken" in caught.value.cause


def test_results_as_junit_are_those_of_the_table(ready: Runner, tmp_path: Path) -> None:
    release, works = ready.subject.release, _works(ready.subject)
    result = ready.run(works, Form.STOCK)
    shown = [result, replace(result, got=Outcome.CRASHED, verdict=Verdict.MISMATCH, output="\x00bad\x1b")]
    write_junit(shown, release, tmp_path / "x.xml")
    cases = read_junit(tmp_path / "x.xml")
    assert [case.result for case in cases[:2]] == ["passed", "failed"]
    assert (cases[1].probe, cases[1].expected, cases[1].got) == (works.id, "ok", "crashed")
    assert {case.result for case in cases[2:]} <= {"skipped"}
    assert len(cases) == 2 + sum(not probe.covers(release) for probe in PROBES)


def test_wrong_end_of_the_process_is_not_the_defect(ready: Runner) -> None:
    subject = ready.subject
    dying = next((p for p in PROBES if p.stock.get(subject.release) is Outcome.TERMINATED), None)
    if dying is None:
        pytest.skip(f"no termination measured on stock {subject.release}")
    result = _run(replace(dying, evidence="words that no PyTorch ever wrote"), ready)
    if result.got is Outcome.OK:
        pytest.skip("a patched wheel: nothing terminates")
    assert result.got is Outcome.BROKEN


def test_imitation_is_built_once(subject: Subject, native: Path) -> None:
    before = (native / IMITATION).stat().st_mtime_ns
    again = built(subject)
    assert again == native
    assert (again / IMITATION).stat().st_mtime_ns == before


def test_two_builds_at_once_share_one_result(subject: Subject, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from gpuless.subject import examine; from gpuless.imitation import built;"
        "print(built(examine(pathlib.Path(sys.argv[1]))))"
    )
    environment = {**os.environ, "MULTIWORLD_CACHE": str(tmp_path), "PYTHONPATH": str(_REPOSITORY)}
    command = [sys.executable, "-c", code, str(subject.python)]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=120)[0].strip().splitlines()[-1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers[0] == answers[1]
    assert not list((tmp_path / "gpuless").glob(".part-*"))


def test_without_compiler_says_so(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(EnvironmentUnfitError, match="no C compiler found"):
        built(subject)


def test_broken_compiler_leaves_nothing_behind(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "false")
    with pytest.raises(EnvironmentUnfitError, match="does not compile"):
        built(subject)
    assert [p for p in (tmp_path / "gpuless").iterdir() if p.suffix != ".lock"] == []


def test_interpreter_without_torch_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    with pytest.raises(EnvironmentUnfitError, match="has no torch"):
        examine(python)
    assert main(["--python", str(python)]) == EnvironmentUnfitError.exit_code
    assert "has no torch" in capsys.readouterr().err


def test_ids_are_unique_and_every_measured_one_exists() -> None:
    assert len(_BY_ID) == len(PROBES)
    assert set(measured.measured()) <= set(_BY_ID)


def test_measured_releases_are_ones_the_probe_covers() -> None:
    wrong = [(p.id, release) for p in PROBES for release in p.stock if not p.covers(release)]
    assert wrong == []


def test_no_outcome_of_the_harness_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "MEASURED", tmp_path / "measured.json")
    results = [
        ProbeResult(_BY_ID["works"], "2.6.0", Form.STOCK, got, Verdict.MISMATCH, 1.0, {}, "")
        for got in (Outcome.BROKEN, Outcome.OK)
    ]
    assert measured.record(results) == ("works",)
    assert measured.measured() == {"works": {"2.6.0": Outcome.OK}}
    with pytest.raises(ValueError, match="stock"):
        measured.record([replace(results[1], form=Form.PATCHED)])


def test_every_patch_has_probes_that_fail_on_stock() -> None:
    for patch in set(Patch) - {Patch.UNCHANGED, Patch.BASELINE}:
        failing = [p for p in PROBES if p.patch is patch and set(p.stock.values()) - {Outcome.OK}]
        assert failing, patch
