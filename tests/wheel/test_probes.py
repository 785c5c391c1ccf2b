"""Every probe of the catalogue: its defect shows on the stock wheel and is gone in both patched forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from gpuless.catalogue import PROBES
from gpuless.imitation import Native, built
from gpuless.model import Probe, Verdict
from gpuless.runner import run_probe
from gpuless.subject import Subject as ProbeSubject
from gpuless.subject import examine
from tests.wheel.conftest import Subject


@lru_cache(maxsize=1)
def _prepared(python: Path) -> tuple[ProbeSubject, Native]:
    found = examine(python)
    return found, built(found)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.id)
def test_probe(probe: Probe, subject: Subject, record_property: Callable[[str, object], None]) -> None:
    probed, native = _prepared(subject.python)
    if not probe.covers(probed.release):
        pytest.skip(f"not for {probed.release}")
    result = run_probe(probe, probed, native, subject.probe_form)
    expected = probe.expected(subject.probe_form, probed.release)
    for name, value in (("probe", probe.id), ("patch", probe.patch.value), ("got", result.got.value)):
        record_property(name, value)
    record_property("expected", expected.value if expected else "not measured")
    if result.verdict is Verdict.NOT_MEASURED:
        pytest.skip(f"what stock {probed.release} does was not measured; got {result.got.value}")
    assert result.verdict is Verdict.AS_EXPECTED, (
        f"expected {expected}, got {result.got}\n{result.detail}\n{result.output}"
    )
