"""The compiled engine, made once for a run."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from multiworld.matching.protocol import CODES

SOURCES = Path(__file__).parents[3] / "multiworld" / "engine"


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module of the binding, compiled with the checks of libstdc++."""
    made = tmp_path_factory.mktemp("native") / "_engine.abi3.so"
    sources = map(str, sorted(SOURCES.glob("*/*.cc")))
    options = ["-std=c++20", "-O0", "-D_GLIBCXX_ASSERTIONS", "-fPIC", "-shared", "-fvisibility=hidden"]
    subprocess.run(["g++", *options, f"-I{SOURCES}", "-o", str(made), *sources], check=True, timeout=600)
    spec = importlib.util.spec_from_file_location("_engine", made)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import torch

    module.setup(torch.Tensor, torch.nn.Parameter, CODES, torch.strided)
    return module
