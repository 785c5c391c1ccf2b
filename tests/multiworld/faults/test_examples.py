"""The examples and the code of the quick start, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.multiworld.faults.free_port import free_port

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow  # every process imports torch
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SECONDS = 120


def _run(*arguments: str, cwd: Path = ROOT) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, cwd=cwd, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _said(process: subprocess.Popen[str]) -> str:
    try:
        text, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, text
    return text


@pytest.mark.parametrize(
    ("example", "lines"),
    [
        (
            "leader_native.py",
            ["left: rank 1 is lost, noticed by eof", "right: 300 requests", "back as generation 2", "done"],
        ),
        ("leader_pymultiworld.py", ["left: broken, noticed after", "right: 300 requests answered", "done"]),
    ],
)
def test_example(example: str, lines: list[str]) -> None:
    text = _said(_run(f"examples/{example}"))
    for line in lines:
        assert line in text, text
    assert "Traceback" not in text


def _pair(tmp_path: Path, **changes: str) -> Path:
    """The program of the quick start."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "quickstart.md").read_text(), re.DOTALL)
    program = next(block for block in blocks if "async def main(rank" in block)
    for old, new in {"29500": str(free_port()), **changes}.items():
        assert old in program
        program = program.replace(old, new)
    (tmp_path / "pair.py").write_text(program)
    return tmp_path


def test_quick_start(tmp_path: Path) -> None:
    folder = _pair(tmp_path)
    both = [_run("pair.py", str(rank), cwd=folder) for rank in range(2)]
    said = [_said(process) for process in both]
    assert "tensor([0., 1., 2., 3.])" in said[1]


def test_quick_start_under_torchrun(tmp_path: Path) -> None:
    folder = _pair(tmp_path)
    program = (folder / "pair.py").read_text()
    call = re.search(r'mw\.join\("pair".*?\)', program)
    assert call is not None
    program = program.replace(call.group(), 'mw.join("pair")').replace("int(sys.argv[1])", 'int(os.environ["RANK"])')
    (folder / "pair.py").write_text("import os\n" + program)
    run = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1")
    text = _said(_run(*run, "--master-port", str(free_port()), "pair.py", cwd=folder))
    assert "tensor([0., 1., 2., 3.])" in text
