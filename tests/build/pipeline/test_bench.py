"""The benchmarks measure what they say, and a missed limit is a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from build.errors import ProbeError
from build.wheeltest.environments import Form
from docs.bench.figures import Figure, Verdict, of_ratios, of_samples, write
from docs.bench.imports import figures
from docs.bench.overlay import Cost, cost
from multiworld.lab.bench.report import Load, LoadMeter
from tests.build import forked
from tests.build.overlay import little as lt
from tests.build.overlay.little import Little
from tests.build.pipeline import little_release as lr
from tests.build.pipeline.little_release import Place


def test_a_child_is_measured() -> None:
    code = """
import resource, time
held = bytearray(200_000_000)
time.sleep(0.3)
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_maxrss * 1024, used.ru_utime + used.ru_stime)
"""
    taken = cost([sys.executable, "-c", code])
    peak, cpu = map(float, taken.output.split())  # as the child sees it, shortly before its end
    assert taken.seconds >= 0.3
    assert 200_000_000 < peak <= taken.peak < 1.5 * peak
    assert 0 < cpu <= taken.cpu


def test_the_memory_of_who_measures_does_not_count() -> None:
    held = bytearray(300_000_000)
    held[::4096] = b"x" * len(held[::4096])
    assert 1_000_000 < cost([sys.executable, "-c", "pass"]).peak < 100_000_000


def test_a_child_that_fails_is_no_sample() -> None:
    with pytest.raises(ProbeError) as caught:
        cost([sys.executable, "-c", "raise SystemExit('no torch here')"])
    assert "no torch here" in caught.value.cause


def test_verdicts() -> None:
    assert of_samples("x", [1.0, 9.0, 2.0], 2.0, "s") == Figure(
        "x", 2.0, 1.0, 9.0, 2.0, "s", "3 runs, least to greatest"
    )
    assert of_samples("x", [1.0, 2.0, 9.0], 2.0, "s").verdict is Verdict.KEPT
    assert of_samples("x", [1.0, 2.1, 9.0], 2.0, "s").verdict is Verdict.MISSED
    assert of_ratios("x", [0.9, 1.2, 1.3, 0.8, 1.1] * 3, [1.0] * 15, 1.05).verdict is Verdict.OPEN


def test_on_a_busy_machine_nothing_is_missed() -> None:
    quiet, busy = Load(0.1, 2), Load(1.5, 2)
    missed, kept = of_samples("x", [3.0], 2.0, "s"), of_samples("x", [1.0], 2.0, "s")
    assert [missed.verdict_under(load) for load in (quiet, busy)] == [Verdict.MISSED, Verdict.NOT_JUDGED]
    assert [kept.verdict_under(load) for load in (quiet, busy)] == [Verdict.KEPT] * 2
    assert "not judged" in str(busy)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_what_others_take_is_counted_and_what_we_take_is_not() -> None:
    def burn(process: subprocess.Popen[bytes] | None, seconds: float) -> None:
        used = time.process_time if process is None else lambda: _cpu_seconds(process.pid)
        until = used() + seconds
        while used() < until:
            pass

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            meter, start = LoadMeter(), time.monotonic()
            burn(other, 0.5)
            with_other = meter.read().others * (time.monotonic() - start)
        finally:
            other.kill()
    assert with_other >= 0.4
    meter, start = LoadMeter(), time.monotonic()
    everything = meter._now()[1]
    burn(None, 0.5)
    others = meter.read().others * (time.monotonic() - start)
    assert others <= meter._now()[1] - everything - 0.4


def test_ratios_are_of_pairs_and_the_interval_holds_the_median() -> None:
    """A machine that slows down from round to round changes both alike."""
    theirs = [1.0 + n for n in range(15)]
    slower = of_ratios("x", [1.2 * value for value in theirs], theirs, 1.05)
    assert (round(slower.low, 9), round(slower.value, 9), round(slower.high, 9)) == (1.2, 1.2, 1.2)
    assert slower.verdict is Verdict.MISSED
    noisy = of_ratios("x", [value * (1.0 + 0.01 * (n % 5 - 2)) for n, value in enumerate(theirs)], theirs, 1.05)
    assert noisy.low <= noisy.value <= noisy.high
    assert noisy.low < noisy.high
    assert noisy.verdict is Verdict.KEPT


def test_each_form_is_compared_with_stock() -> None:
    def costs(factor: float) -> list[Cost]:
        return [Cost(n * factor, n, 0, f"{n}\n") for n in (1.0, 2.0, 3.0)]

    found = figures({Form.STOCK: costs(1.0), Form.PATCHED: costs(1.0), Form.OVERLAY: costs(1.5)})
    assert len(found) == 6
    assert [item.name for item in found if item.verdict is not Verdict.KEPT] == [
        "import torch, overlay: time relative to stock"
    ]


def test_figures_as_json(tmp_path: Path) -> None:
    write([of_samples("x", [1.0], 2.0, "s"), of_samples("y", [3.0], 2.0, "s")], tmp_path / "f.json", Load(2.0, 2))
    kept, missed = json.loads((tmp_path / "f.json").read_text())
    assert (kept["name"], kept["value"], kept["limit"], kept["verdict"]) == ("x", 1.0, 2.0, "kept")
    assert missed["verdict"] == "not judged"


def _bench(place: Place, *arguments: str | Path) -> tuple[int, str]:
    """Run the benchmarks over the miniature."""
    return forked.run(list(map(str, arguments)), lr.environment(place, {}), lr.TIMEOUT, "docs.bench")


def test_the_making_of_wheels_is_measured(built_release: Place, tmp_path: Path) -> None:
    """All of `bench overlay`, over the release in miniature; the wheel that is written again has the same bytes."""
    place = built_release
    place.go.touch()
    arguments: list[str | Path] = ["--repeats", "1", "--source", place.tree, "--dist", place.dist]
    arguments += ["--json", tmp_path / "figures.json"]
    status, output = _bench(place, "overlay", *arguments)
    assert status in (0, ProbeError.exit_code), output  # whether a limit is kept is the machine's affair
    rows = {row["name"]: row for row in json.loads((tmp_path / "figures.json").read_text())}
    assert len(rows) == 6
    assert rows[f"compile and link {lt.VERSION}, nothing cached"]["value"] > 0
    assert rows["peak memory of that"]["value"] > 10
    assert rows["overlay wheel"]["value"] * 1e6 == next(place.results.glob("multiworld*")).stat().st_size
    assert place.leftovers() == []
    assert [path.name for path in place.results.iterdir() if path.name.startswith(".")] == []


def test_what_cannot_be_measured(tmp_path: Path, little: Little) -> None:
    place = lr.make(little, tmp_path)
    cases = (["overlay", "--dist", str(place.dist)], "holds no build"), (["speed"], "unknown benchmark: speed")
    for arguments, said in cases:
        status, output = _bench(place, *arguments)
        assert status == 2
        assert said in output
