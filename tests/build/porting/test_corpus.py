"""The benchmark on a small corpus: what it promises holds there, and its judgement can say no."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from build.cli import guarded, only
from docs.bench.porting.__main__ import porting
from docs.bench.porting.corpus import Case, generate
from docs.bench.porting.generated import measure, score
from docs.bench.porting.tools import OURS, Result, git_am, ours, set_up

WORDS = ("tensor", "stream", "device", "kernel", "buffer", "handle", "status", "index", "shape", "engine")


def sources() -> dict[str, bytes]:
    """Files that look like sources: functions of calls, with blocks in them."""
    dice = random.Random(7)
    files = {}
    for number in range(12):
        lines = ["#include <vector>", ""]
        for function in range(12):
            a, b = dice.choice(WORDS), dice.choice(WORDS)
            lines.append(f"int {a}_{b}_{number}_{function}(int value) {{")
            for step in range(dice.randint(10, 18)):
                lines.append(f"  {dice.choice(WORDS)}_{dice.choice(WORDS)}({a}, {step * dice.randint(1, 9)});")
                if step % 5 == 4:
                    lines += [f"  if ({b} > {step}) {{", f"    report_{a}({b}, value);", "  }"]
            lines += ["  return value;", "}", ""]
        files[f"src/file{number}.cpp"] = "\n".join(lines).encode()
    return files


def test_the_same_seed_gives_the_same_corpus() -> None:
    def trees(seed: int) -> list[dict[str, bytes]]:
        return [case.new for case in generate(sources(), 10, seed)]

    assert trees(1) == trees(1)
    assert trees(1) != trees(2)


@pytest.mark.patch
@pytest.mark.slow
def test_nothing_is_placed_wrong_and_verdicts_are_right() -> None:
    scores = measure(sources(), 30, 11)
    assert scores.count(OURS, Result.WRONG) == 0, scores.wrong
    assert scores.verdict_share >= 0.9, scores.wrong
    assert scores.factor > 1.2


def test_the_judge_knows_right_wrong_and_left(tmp_path: Path) -> None:
    case = next(c for c in generate(sources(), 40, 3) if c.expected[0].scenario == "nothing near")
    bench = set_up(case, tmp_path)
    expected = case.expected[0]
    good, _ = ours(bench)
    assert score(expected, good) is Result.RIGHT
    assert score(expected, git_am(bench)) is Result.RIGHT
    assert score(expected, dict(case.new)) is Result.LEFT
    assert score(expected, _displaced(case, good)) is Result.WRONG


def _displaced(case: Case, files: dict[str, bytes]) -> dict[str, bytes]:
    """The right result with the added lines at the end of the file."""
    expected = case.expected[0]
    lines = files[expected.path].splitlines(keepends=True)
    marked = [line for line in lines if expected.mark in line]
    kept = [line for line in lines if expected.mark not in line]
    return {**files, expected.path: b"".join([*kept, *marked])}


def test_it_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(only(porting), ["overlay", "--real"]) == 2
    assert "porting runs alone, not with overlay" in capsys.readouterr().err
