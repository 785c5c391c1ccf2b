"""The doctor's words about NCCL: the driver, what torch does not survive, variables that would be refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from multiworld.backends import nccl_environment
from multiworld.backends.nccl_environment import NEEDED, Needed
from multiworld.cli.nccl_checks import (
    Setup,
    Verdict,
    driver,
    facts,
    faults,
    host_id,
    nccl_checks,
    needed_variable,
    old_names,
    patches,
)

#: stock torch with a device, without NVIDIA's bindings
STOCK = Setup(None, "nccl4py cannot be used: No module named 'nccl'", "ProcessGroupNCCL", "", "", "2.6.0")
PATCHED = replace(STOCK, patches="the patched wheel")
BINDINGS = replace(STOCK, no_bindings=None)
WITHOUT_DEVICE = replace(STOCK, why_not="torch sees no CUDA device")


def test_the_driver_and_why() -> None:
    check = driver(STOCK)
    assert (check.verdict, check.name) == (Verdict.NOTE, "nccl")
    assert "takes the driver torch-nccl: nccl4py cannot be used" in check.found
    assert "[nccl]" in check.remedy
    assert driver(PATCHED).verdict is Verdict.OK
    assert driver(BINDINGS).verdict is Verdict.OK
    assert "takes the driver nccl" in driver(BINDINGS).found
    assert "torch sees no CUDA device" in driver(WITHOUT_DEVICE).found


@pytest.mark.parametrize(
    ("setup", "verdict", "words"),
    [
        (STOCK, Verdict.NOTE, "leaves NCCL's group open"),
        (replace(STOCK, group="ProcessGroupNCCL2"), Verdict.NOTE, "if an abort hangs"),
        (BINDINGS, Verdict.OK, "The driver nccl does not use it"),
        (PATCHED, Verdict.OK, "survives all"),
        (replace(PATCHED, group="ProcessGroupNCCL2"), Verdict.NOTE, "if an abort hangs"),
    ],
    ids=["stock", "nccl2", "bindings", "patched", "patched, nccl2"],
)
def test_faults_that_torch_does_not_survive(setup: Setup, verdict: Verdict, words: str) -> None:
    check = faults(setup)
    assert check.verdict is verdict
    assert words in check.found


def test_an_overlay_that_is_not_in_effect_is_no_patch() -> None:
    check = patches(replace(STOCK, overlay="not loaded: made for another build"))
    assert check.verdict is Verdict.NOTE
    assert "not in effect: not loaded: made for another build" in check.found
    assert patches(PATCHED).verdict is Verdict.OK
    assert "stock torch 2.6.0" in patches(STOCK).found


@pytest.mark.parametrize("needed", NEEDED, ids=[needed.name for needed in NEEDED])
def test_a_variable_that_would_be_refused_fails_where_it_would_be(needed: Needed) -> None:
    bad = {needed.name: "3"}
    assert needed_variable(needed, STOCK, bad).verdict is Verdict.FAIL
    assert needed_variable(needed, PATCHED, bad).verdict is Verdict.FAIL
    assert needed_variable(needed, BINDINGS, bad).verdict is Verdict.NOTE
    assert needed_variable(needed, WITHOUT_DEVICE, bad).verdict is Verdict.NOTE
    assert needed_variable(needed, STOCK, {needed.name: needed.value}).verdict is Verdict.OK
    assert needed_variable(needed, STOCK, {}).verdict is Verdict.OK


def test_a_variable_that_would_be_refused_by_its_old_name() -> None:
    (needed,) = [one for one in NEEDED if one.name == "TORCH_NCCL_BLOCKING_WAIT"]
    check = needed_variable(needed, STOCK, {"NCCL_BLOCKING_WAIT": "1"})
    assert (check.verdict, check.found) == (Verdict.FAIL, "1, by its old name NCCL_BLOCKING_WAIT")
    assert nccl_environment.wrong({"NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_BLOCKING_WAIT": "0"}) == []


def test_a_variable_that_is_only_advice_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    (check,) = [check for check in facts(STOCK) if check.name == "CUDA_MODULE_LOADING"]
    assert (check.verdict, check.found) == (Verdict.NOTE, "not set (LAZY)")


def test_old_names() -> None:
    assert old_names({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}).verdict is Verdict.OK
    check = old_names({"NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"})
    assert check.verdict is Verdict.NOTE
    assert "NCCL_ASYNC_ERROR_HANDLING=1 (TORCH_NCCL_ASYNC_ERROR_HANDLING: 2)" in check.found
    assert check.remedy.startswith("unset NCCL_ASYNC_ERROR_HANDLING")


def test_host_id() -> None:
    assert host_id({"NCCL_HOSTID": "one"}).found.startswith("one: ")
    assert "not set" in host_id({}).found


def test_this_machine() -> None:
    """Names are unique, verdicts have their remedies, and nothing is raised, whatever torch is here."""
    checks = nccl_checks()
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    assert {"nccl", "NCCL patches"} <= set(names)
    assert all(check.remedy for check in checks if check.verdict is not Verdict.OK)
