"""The settings of the backend `switchml`, and compiling its shim."""

from __future__ import annotations

from pathlib import Path

import pytest

from multiworld import InvalidArgument, switchml
from multiworld.switchml.settings import current

from .stand_in.switch import build_client


def test_settings_come_from_the_program_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_SWITCHML_TIMEOUT", "7")
    monkeypatch.setenv("MULTIWORLD_SWITCHML_FAILURE", "gloo")
    assert (current().timeout, str(current().failure), str(current().missing)) == (7.0, "gloo", "error")
    assert current().seconds(100.0) == 7.0
    try:
        switchml.configure(timeout=3)
        assert current().timeout == 3.0
    finally:
        switchml.configure(timeout=None)
    monkeypatch.delenv("MULTIWORLD_SWITCHML_TIMEOUT")
    assert current().seconds(100.0) == 50.0
    monkeypatch.setenv("MULTIWORLD_SWITCHML_MISSING", "maybe")
    with pytest.raises(InvalidArgument, match="missing cannot be 'maybe'"):
        current()
    for wrong in ({"timeout": 0}, {"timeout": "soon"}, {"library": 3}, {"speed": 1}):
        with pytest.raises(InvalidArgument):
            switchml.configure(**wrong)


def test_compiling_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from multiworld.switchml.__main__ import main

    home = tmp_path / "a home"
    build_client(home)
    target = tmp_path / "made" / "shim.so"
    assert main(["compile", str(home), "--output", str(target)]) == 0
    assert target.is_file()
    (home / "lib" / "libglog.a").rename(home / "lib" / "libgone.a")
    target.unlink()
    assert main(["compile", str(home), "--output", str(target)]) == 1
    assert "-lglog" in capsys.readouterr().err
    assert list(target.parent.iterdir()) == []
    for given, named in (
        ([str(tmp_path)], "SWITCHML_HOME"),
        ([str(home), "--rdma"], "GRPC_HOME is not given"),
        ([str(home), "--dpdk", "--dpdk-home", str(tmp_path)], "DPDK_HOME"),
        ([str(home), "--mlx5"], "does not exist"),
    ):
        assert main(["compile", *given, "--output", str(target)]) == 1
        assert named in capsys.readouterr().err
