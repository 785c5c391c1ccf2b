"""Probes in a port's report: which defects show on stock, and whether the patched wheels do as wanted."""

from __future__ import annotations

import msgspec
import pytest

from build.porting.prove import probes_of
from build.porting.report import PortReport, not_needed, to_markdown
from build.record import encode
from build.wheeltest import results
from build.wheeltest.results import Case, Run


def _record(**outcomes: tuple[str, str, str, str]) -> results.TestRecord:
    """Return a record of probes: name -> (patch, outcome on stock, patched, overlay); no outcome: not run there."""
    runs = []
    for place, form in enumerate(("stock", "patched", "overlay"), 1):
        cases = (Case(name, "passed", name, row[0], "", row[place]) for name, row in outcomes.items() if row[place])
        runs.append(Run(form, "wheel", 0, (Case("test_binding", "passed"), *cases)))
    return results.TestRecord("2.9.1", "2.9.1+cu128.mw1", "3.11", "", "", True, tuple(runs))


def _report(record: results.TestRecord) -> PortReport:
    return PortReport("nccl", "2.6.0", "2.9.1", (), probes=probes_of(record))


def test_defect_that_shows_on_stock_needs_its_patch() -> None:
    (probe,) = probes_of(_record(send=("group-leak", "group leaked", "ok", "ok")))
    assert probe.fails_on_stock
    assert probe.passes_on_patched
    assert not_needed([probe]) == ()


def test_patch_whose_probes_all_pass_on_stock_is_named() -> None:
    report = _report(
        _record(
            gather=("remote-error", "ok", "ok", "ok"),
            send=("group-leak", "ok", "ok", "ok"),
            recv=("group-leak", "terminated", "ok", "ok"),
        )
    )
    assert not_needed(report.probes) == ("remote-error",)
    text = to_markdown(report).decode()
    assert "**`remote-error` may no longer be needed" in text
    assert "`group-leak` may no longer" not in text
    assert "| group-leak | 2 | 1 | 2 |" in text


@pytest.mark.parametrize("forms", [("group leaked", "ok"), ("ok", "group leaked")])
def test_one_form_that_fails_is_a_failure(forms: tuple[str, str]) -> None:
    (probe,) = probes_of(_record(send=("group-leak", "group leaked", *forms)))
    assert not probe.passes_on_patched
    assert "**group leaked**, wanted ok" in to_markdown(PortReport("nccl", "a", "b", (), probes=(probe,))).decode()


@pytest.mark.parametrize(("patched", "good"), [("terminated", True), ("ok", False)])
def test_other_modes_must_do_what_stock_does(patched: str, good: bool) -> None:
    (probe,) = probes_of(_record(mode_1=("unchanged", "terminated", patched, patched)))
    assert probe.passes_on_patched is good
    assert not probe.fails_on_stock
    assert not_needed([probe]) == ()


def test_probe_that_was_not_run_on_stock_says_nothing_of_need() -> None:
    probes = probes_of(_record(send=("group-leak", "", "ok", "ok")))
    assert not_needed(probes) == ()
    assert (
        "| send | group-leak | not run | ok |" in to_markdown(PortReport("nccl", "a", "b", (), probes=probes)).decode()
    )


def test_other_mode_that_was_not_run_on_stock_is_no_failure() -> None:
    (probe,) = probes_of(_record(mode_1=("unchanged", "", "terminated", "terminated")))
    assert probe.passes_on_patched


def test_report_with_probes_is_read_back() -> None:
    report = _report(_record(send=("group-leak", "group leaked", "ok", "ok")))
    assert msgspec.json.decode(encode(report), type=PortReport) == report
