"""The binding's declarations of CPython's stable ABI are those of Python.h."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

HEADER = Path(__file__).parents[3] / "multiworld" / "engine" / "bind" / "stable_abi.h"


@pytest.mark.headers
def test_declarations(tmp_path: Path) -> None:
    text = HEADER.read_text()
    functions = re.findall(r"^[\w* ]+?\b\*?((?:Py|_Py)\w+)\([^)]*\);$", text, flags=re.MULTILINE)
    assert len(functions) > 30
    constants = re.findall(r"\b((?:METH|Py_tp)_\w+) = (\w+)", text)
    assert len(constants) == 8
    layouts = ("PyMethodDef", "PyModuleDef", "PyType_Slot", "PyType_Spec")
    source = ["#define Py_LIMITED_API 0x030A0000", "#include <Python.h>", "#include <type_traits>"]
    source += [f"static_assert({name} == {value});" for name, value in constants]
    source += ["static_assert(PYTHON_ABI_VERSION == 3);"]
    prototypes = "\n".join(line for line in text.splitlines() if re.search(r"\b(?:Py|_Py)\w+\(.*\);$", line))
    source += ['extern "C" {', prototypes, "}"]  # a declaration that differs from Python.h's is an error
    sizes = dict(re.findall(r"(\w+)=(\d+)", _sizes(tmp_path, layouts)))
    source += [f"static_assert(sizeof({name}) == {sizes[name]});" for name in layouts]
    compiled = _compile(tmp_path / "theirs.cc", "\n".join(source), ["-fsyntax-only"])
    assert compiled.returncode == 0, compiled.stderr


def _sizes(folder: Path, layouts: tuple[str, ...]) -> str:
    prints = "".join(f'printf("{name}=%zu ", sizeof({name}));' for name in layouts)
    text = f'#include "{HEADER}"\n#include <cstdio>\nint main() {{ {prints} }}\n'
    made = folder / "sizes"
    _compile(folder / "sizes.cc", text, ["-o", str(made)]).check_returncode()
    return subprocess.run([made], capture_output=True, text=True, check=True, timeout=60).stdout


def _compile(file: Path, text: str, options: list[str]) -> subprocess.CompletedProcess[str]:
    file.write_text(text)
    command = ["g++", "-std=c++20", f"-I{sysconfig.get_path('include')}", str(file), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
