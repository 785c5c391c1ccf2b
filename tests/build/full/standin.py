"""A project that stands in for torch: CMake under setuptools, a submodule, another distribution's library, OpenMP."""

from __future__ import annotations

import subprocess
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from build.full.project import External, Probe, Project, Sources
from build.git import Git
from build.series.model import PatchFile
from build.wheels.archive import WheelWriter
from tests.build.series.repos import DEP3, IDENT, make_patch, make_repo, parsed, write

NAME = "tinytorch"
_SETUP = """
import os, subprocess, sysconfig
from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.bdist_wheel import bdist_wheel

class Build(build_py):
    def run(self):
        here = os.path.dirname(os.path.abspath(__file__))
        subprocess.check_call(["cmake", "-S", here, "-B", "build", f"-DPython_INCLUDE={sysconfig.get_path('include')}"])
        subprocess.check_call(["cmake", "--build", "build", "--target", "install"])
        super().run()

class Binary(Distribution):
    def has_ext_modules(self):
        return True

setup(name="tinytorch", version=os.environ.get("TINY_BUILD_VERSION", "1.0"), packages=["tinytorch"],
      package_data={"tinytorch": ["lib/*", "*.so"]}, cmdclass={"build_py": Build}, distclass=Binary)
"""
_CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(tinytorch LANGUAGES CXX)
find_library(RUNTIME NAMES libtinyruntime.so.1 REQUIRED)
find_path(RUNTIME_INCLUDE NAMES tinyruntime.h REQUIRED)
find_package(OpenMP REQUIRED)
add_library(tiny SHARED src/answer.cpp src/sum.cpp)
target_include_directories(tiny PRIVATE third_party/question ${RUNTIME_INCLUDE})
target_link_libraries(tiny PRIVATE ${RUNTIME} OpenMP::OpenMP_CXX)
add_library(_C MODULE src/module.cpp)
set_target_properties(_C PROPERTIES PREFIX "" BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "/nowhere/on/the/build/machine")
target_include_directories(_C PRIVATE ${Python_INCLUDE})
target_link_libraries(_C PRIVATE tiny)
install(TARGETS tiny DESTINATION ${CMAKE_SOURCE_DIR}/tinytorch/lib)
install(TARGETS _C DESTINATION ${CMAKE_SOURCE_DIR}/tinytorch)
"""
ANSWER = """#include <question.h>
#include <tinyruntime.h>
int tiny_answer() {
  return QUESTION + runtime_offset();
}
"""
_SUM = """extern "C" long tiny_sum(int count) {
  long total = 0;
#pragma omp parallel for reduction(+ : total)
  for (int i = 0; i < count; ++i) total += i;
  return total;
}
"""
_MODULE = """#include <Python.h>
int tiny_answer();
extern "C" long tiny_sum(int);
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(tiny_answer()); }
static PyObject* sum(PyObject*, PyObject*) { return PyLong_FromLong(tiny_sum(10)); }
static PyMethodDef methods[] = {
    {"answer", answer, METH_NOARGS, ""}, {"sum", sum, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};
extern "C" PyObject* PyInit__C() { return PyModule_Create(&module); }
"""
FILES: dict[str, bytes | None] = {
    "setup.py": _SETUP.encode(),
    "CMakeLists.txt": _CMAKE.encode(),
    "pyproject.toml": b'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
    "tinytorch/__init__.py": b"from tinytorch._C import answer, sum\n",
    "src/answer.cpp": ANSWER.encode(),
    "src/sum.cpp": _SUM.encode(),
    "src/module.cpp": _MODULE.encode(),
    ".gitignore": b"/build/\n/tinytorch/lib/\n*.so\n*.egg-info/\n",
}
#: The patch: the answer is too small by one.
FIXED = ANSWER.replace("return QUESTION", "return 1 + QUESTION")
_RUNTIME = b'extern "C" int runtime_offset() { return 40; }\n'
_TEST = "import sys, tinytorch; sys.exit(tinytorch.answer() != 42 or tinytorch.sum() != 45)"
PROBE = Probe("the answer is 42", ("{python}", "-c", _TEST))


@dataclass(frozen=True, slots=True)
class StandIn:
    """The project's repository, and the folder with the wheel of the other distribution."""

    repo: Path
    base: str
    index: Path

    def patch(self, answer: str) -> PatchFile:
        """Return a patch that replaces the file with the answer."""
        return parsed(make_patch(Git(self.repo), {"src/answer.cpp": answer.encode()}), "0001-answer.patch")

    def project(self, label: str, python: str, *patches: PatchFile) -> Project:
        version = f"1.0+{label}"
        return Project(
            name=NAME,
            version=version,
            sources=lambda: Sources(self.repo, self.base, "a repository of the test"),
            tree=self.repo,
            patches=patches,
            python=python,
            externals=(External("tiny-runtime", "1.0"),),
            environment={"TINY_BUILD_VERSION": version},
            disk=1 << 20,
            memory_per_job=1 << 20,
        )


def make(folder: Path) -> StandIn:
    """Make the repository with its submodule, and the wheel of the other distribution."""
    inner = make_repo(folder / "question", {"question.h": b"#define QUESTION 1\n"})
    repo = folder / "repo"
    git = make_repo(repo, {})
    git.out(
        "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.folder), "third_party/question"
    )
    write(repo, FILES)
    git.out("add", "-A")
    git.out("commit", "-q", "-m", f"all\n\n{DEP3}", env=IDENT)
    index = folder / "index"
    _runtime_wheel(folder, index)
    return StandIn(repo, git.line("rev-parse", "HEAD"), index)


def _runtime_wheel(folder: Path, index: Path) -> None:
    source, library = folder / "runtime.cpp", folder / "libtinyruntime.so.1"
    source.write_bytes(_RUNTIME)
    command: list[str | Path] = ["g++", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source]
    subprocess.run(command, check=True, timeout=60)
    index.mkdir()
    info = "tiny_runtime-1.0.dist-info"
    with WheelWriter(index / "tiny_runtime-1.0-py3-none-any.whl", info) as writer:
        writer.add(f"tiny_runtime/lib/{library.name}", library.read_bytes(), 0o755)
        writer.add("tiny_runtime/include/tinyruntime.h", b'extern "C" int runtime_offset();\n')
        writer.add(f"{info}/METADATA", b"Metadata-Version: 2.1\nName: tiny-runtime\nVersion: 1.0\n")
        writer.add(f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")


def unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def with_probe(project: Project, stock: Path | None) -> Project:
    return replace(project, probes=(PROBE,), stock=None if stock is None else lambda: stock)
