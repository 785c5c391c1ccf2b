"""`test RELEASE`: what it refuses, what it remembers of stock, and how it shows what it found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from build import cli, paths, record
from build.errors import BusyError, UsageError
from build.wheeltest import results, suite
from build.wheeltest.results import HARNESS, SIMULATED, Case, Run, fault_table, probe_table, read_junit, run_table
from build.wheeltest.suite import Extent, Plan, prove_release
from tests.build.overlay.little import Little
from tests.build.pipeline import little_release as lr
from tests.build.pipeline.little_release import Place

RELEASE = "2.6.0"


@pytest.fixture
def place(little: Little, tmp_path: Path) -> Place:
    return lr.make(little, tmp_path)


def test_waits_for_a_build_and_does_not_touch_the_last_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_LOCK_TIMEOUT", "0.1")
    folder = tmp_path / RELEASE
    folder.mkdir()
    (folder / "test.log").write_text("the last run\n")
    with paths.locked(folder / "build", "the build"), pytest.raises(BusyError, match=r"the build of 2\.6\.0 is still"):
        prove_release(RELEASE, tmp_path, multiworld=False)
    assert (folder / "test.log").read_text() == "the last run\n"
    with pytest.raises(UsageError, match="holds no wheels"):
        prove_release(RELEASE, tmp_path, multiworld=False)


def _run(form: str, got: str = "ok", exit: int = 0) -> Run:  # noqa: A002 - as pytest calls it
    return Run(form, "probes", exit, (Case("gpuless::send", "passed", "send", "group-leak", got, got),))


def test_stock_is_remembered_while_nothing_changes(
    built_release: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))
    place = built_release
    made = record.read(place.results)
    assert made is not None
    assert results.read_stock(made) == []
    results.write_stock(made, [_run("patched")])
    results.write_stock(made, [_run("stock", exit=1)])
    assert results.read_stock(made) == [], "only a stock wheel that did what it should is remembered"
    results.write_stock(made, [_run("stock", "group leaked"), _run("patched")])
    (known,) = results.read_stock(made)
    assert (known.form, known.recorded, known.cases[0].got) == ("stock", True, "group leaked")
    other = msgspec.structs.replace(made, official=msgspec.structs.replace(made.official, sha256="0" * 64))
    assert results.read_stock(other) == [], "another wheel"
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "catalogue.py").write_text("another")
    with monkeypatch.context() as patch:
        patch.setattr(results, "_DECIDING", (tmp_path / "harness",))
        patch.setattr(paths, "REPO", tmp_path)
        assert results.read_stock(made) == [], "another harness"
    (stored,) = (tmp_path / "cache" / "stock").iterdir()
    stored.write_bytes(stored.read_bytes().replace(b"leaked", b"lacked"))
    assert results.read_stock(made) == [], "a damaged record"


def test_a_record_of_a_first_proof_does_not_stand_for_all_suites(tmp_path: Path) -> None:
    first, suites = (
        suite._needed(Plan(None, tmp_path, multiworld=True, stock=False, extent=extent))  # type: ignore[arg-type]
        for extent in (Extent.FIRST, Extent.SUITES)
    )
    assert first == {"probes", "wheel", SIMULATED}
    assert suites == first | {HARNESS}


@pytest.mark.parametrize("other", ["--whole", "--no-multiworld"])
def test_a_first_proof_goes_with_no_other_extent(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["test", RELEASE, "--first", other]) == UsageError.exit_code
    assert "leave one of them out" in capsys.readouterr().err


def test_what_is_recorded_is_shown_as_that() -> None:
    runs = (msgspec.structs.replace(_run("stock", "group leaked"), recorded=True), _run("patched"))
    console = Console(width=140)
    with console.capture() as seen:
        console.print(probe_table(runs, "probes"), run_table(runs))
    shown = seen.get()
    assert "stock (recorded)" in shown
    assert "green, recorded" in shown
    assert "group leaked" in shown
    assert shown.count("│ probes │") == 2


JUNIT = """<testsuites><testsuite>
<testcase classname="f.test_x" name="test_kill[send]"/>
<testcase classname="f.test_x" name="test_abort[hangs]"><skipped type="pytest.xfail" message="stock: ends"/></testcase>
<testcase classname="f.test_x" name="test_abort[fails]"><failure message="[XPASS(strict)] stock: it ends"/></testcase>
<testcase classname="f.test_x" name="test_frames"><skipped type="pytest.skip" message="left to gloo"/></testcase>
</testsuite></testsuites>"""


def test_faults_that_a_wheel_fails_are_named_and_the_clean_ones_counted(tmp_path: Path) -> None:
    (tmp_path / "stock.xml").write_text(JUNIT)
    stock = Run("stock", SIMULATED, 1, read_junit(tmp_path / "stock.xml"))
    assert stock.counts == {"passed": 1, "failed as expected": 1, "failed": 1, "skipped": 1}
    names = [case.name for case in stock.cases[:3]]
    patched = Run("patched", SIMULATED, 0, tuple(Case(name, "passed") for name in names))
    console = Console(width=140)
    with console.capture() as seen:
        console.print(fault_table((stock, patched), "faults"))
    shown = seen.get()
    assert "test_abort[hangs]" in shown
    assert "stock: ends" in shown
    assert shown.count("FAILS") == 1, "a row that starts to pass on stock"
    assert "test_kill" not in shown
    assert "1 of 3 rows are clean on every wheel" in shown


def test_a_torch_that_the_package_does_not_serve_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The package's requirement would have replaced the torch under test."""
    assert suite._serves_multiworld("2.2.1")
    assert not suite._serves_multiworld("2.1.2")
    assert "needs torch 2.2.1" in capsys.readouterr().out
