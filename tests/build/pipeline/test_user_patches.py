"""`build --patches`, `explain` and `verify` with patches of a user, over a release in miniature."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from build import record
from build.overlay.symbols import needed
from tests.build.overlay import little as lt
from tests.build.overlay import little_sources as text
from tests.build.overlay.little import Little
from tests.build.pipeline import little_release as lr
from tests.build.pipeline.little_release import Place
from tests.build.pipeline.user_patches import AUTHOR, INIT, build, explain, made, patch, run
from tests.build.series.repos import make_repo

(_LISTS,) = text.LISTS.values()
_MODULE = "torch/csrc/Module.cpp"
_NEW = "torch/csrc/cuda/New.cpp"


@pytest.fixture
def place(little: Little, tmp_path: Path) -> Place:
    place = lr.make(little, tmp_path)
    lt.write(place.tree, {INIT: text.INIT})
    return place


def test_units_and_python_files(place: Place) -> None:
    edits = lt.edited(lt.NCCL_CPP, "return 1 +", "return 500 +") | {INIT: f"{text.INIT}more = 7\n"}
    own = patch(place, edits)
    status, output = explain(place, "--patches", own)
    assert status == 0, output
    assert ":: 1 unit, " in output
    assert "no overlay wheel" in output
    status, output = build(place, "--patches", own)
    assert status == 0, output
    found, folder = made(place)
    assert found.overlay == record.NONE
    assert [path.name for path in folder.glob("*.whl")] == [found.patched.name]
    assert ".fix1-" in found.patched.name
    assert run(
        folder / found.patched.name, place.folder / "site", "import torch; print(torch.answer(), torch.more)"
    ) == ("540 7")
    status, output = lr.command(place, "verify", folder / found.patched.name, "--source", place.tree, "--patches", own)
    assert status == 0, output
    assert "the whole wheel: the same bytes" in output
    status, output = lr.command(place, "verify", folder / found.patched.name, "--source", place.tree)
    assert (status, "--patches FILE" in output) == (2, True), output
    other = patch(place, lt.edited(lt.NCCL_CPP, "return 1 +", "return 501 +"))
    status, output = lr.command(place, "verify", folder / found.patched.name, "--patches", other, "--no-rebuild")
    assert (status, "first claim that fails is: patches" in output) == (17, True), output


_AT_LOAD = (
    '#include <cstdlib>\nstatic struct AtLoad { AtLoad() { if (!std::getenv("FINE")) std::abort(); } } at_load;\n'
)


@pytest.mark.parametrize("failure", ["at load", "in Python"])
def test_a_wheel_that_does_not_import_is_not_called_built(place: Place, failure: str) -> None:
    """An initialiser that ends the process was found by whoever installed the wheel."""
    unit = lt.edited(lt.NCCL_CPP, "return 1 +", "return 500 +")
    edits = {lt.NCCL_CPP: _AT_LOAD + unit[lt.NCCL_CPP]} if failure == "at load" else {INIT: f"{text.INIT}1 / 0\n"}
    status, output = build(place, "--patches", patch(place, edits))
    assert (status, "does not import, so it is not called built" in output) == (11, True), output
    assert ("status -6" if failure == "at load" else "ZeroDivisionError") in output
    folder = place.dist / f"{lt.VERSION}-fix1"
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".whl" or path.is_dir()) == []
    assert record.read(folder) is None
    assert place.leftovers() == []


def test_python_files_alone_compile_nothing(place: Place) -> None:
    own = patch(place, {INIT: f"{text.INIT}more = 7\n", "torch/new.py": "x = 1\n"})
    status, output = build(place, "--patches", own)
    assert status == 0, output
    found, folder = made(place)
    assert (found.overlay, found.provenance.units, found.provenance.soname) == (record.NONE, (), "")
    assert not (place.folder / "cache" / "objects").exists()
    program = "import torch, torch.new; print(torch.more, torch.new.x, torch.answer(), torch.__version__)"
    assert run(folder / found.patched.name, place.folder / "site", program) == "7 1 41 9.9.0+cu124.fix1"
    status, output = lr.command(place, "verify", folder / found.patched.name, "--source", place.tree, "--patches", own)
    assert status == 0, output


def test_a_python_file_that_the_wheel_has_otherwise(place: Place) -> None:
    lt.write(place.tree, {INIT: f"{text.INIT}other = 1\n"})
    own = patch(place, {INIT: f"{text.INIT}other = 1\nmore = 7\n"})
    status, output = build(place, "--patches", own)
    assert (status, f"not as in the tree: {INIT}" in output) == (11, True), output


@pytest.mark.headers
def test_a_unit_of_libtorch_python_is_for_one_python(place: Place) -> None:
    new = text.PYTHON[_MODULE].replace("return use_answer()", "return use_answer() + 1000 * Py_IsInitialized()")
    own = patch(place, {_MODULE: f"#include <Python.h>\n{new}"})
    status, output = explain(place, "--patches", own)
    assert (status, "for one Python version" in output) == (0, True), output
    status, output = build(place, "--patches", own)
    assert status == 0, output
    found, folder = made(place)
    tag = f"cp{lt.PYTHON.replace('.', '')}"
    assert f"-{tag}-{tag}-" in found.overlay.name
    assert list(found.provenance.libtorch_cuda_build_ids) == [lt.PYTHON]
    program = "import torch; print(torch.ask_python())"
    assert run(folder / found.patched.name, place.folder / "site", program) == "1041"


def test_a_new_unit_that_the_lists_name(place: Place) -> None:
    lists = _LISTS.replace(f"'{lt.NCCL_CPP}'", f"'{lt.NCCL_CPP}', '{_NEW}'")
    edits = lt.edited(lt.NCCL_CPP, "return 1 +", "return from_new() +")
    edits[lt.NCCL_CPP] = "int from_new();\n" + edits[lt.NCCL_CPP]
    own = patch(place, {**edits, _NEW: "int from_new() { return 700; }\n", "build_variables.bzl": lists})
    status, output = build(place, "--patches", own)
    assert status == 0, output
    found, folder = made(place)
    assert [unit.unit for unit in found.provenance.units][:2] == [_NEW, lt.NCCL_CPP]
    assert run(folder / found.patched.name, place.folder / "site", "import torch; print(torch.answer())") == "740"


def test_stock_code_that_uses_a_hidden_function_comes_along(place: Place) -> None:
    """`Secret::value` is hidden, and nccl.cpp was linked to the stock one: alone, the patch would have no effect."""
    new = text.CUDA[lt.HIDDEN_CPP].replace("return 40", "return 900")
    own = patch(place, {lt.HIDDEN_CPP: new})
    status, output = build(place, "--patches", own)
    assert status == 0, output
    found, folder = made(place)
    assert [unit.unit for unit in found.provenance.units] == [lt.HIDDEN_CPP, lt.NCCL_CPP]
    assert found.provenance.units[0].why == "changed by the patch"
    assert "uses torch::cuda::Secret::value()" in found.provenance.units[1].why
    assert run(folder / found.patched.name, place.folder / "site", "import torch; print(torch.answer())") == "901"
    (place.tree / lt.NCCL_CPP).unlink()
    status, output = build(place, "--patches", own, label="fix2")
    assert (status, "Secret::value() is used by torch::cuda::nccl::answer()" in output) == (9, True), output


def test_an_overlay_that_is_there_already_is_named_with_the_symbols(place: Place) -> None:
    first = patch(place, lt.edited(lt.NCCL_CPP, "return 1 +", "return 500 +"))
    status, output = build(place, "--patches", first, label="fix1")
    assert status == 0, output
    found, folder = made(place)
    site = place.folder / "env" / "lib" / f"python{lt.PYTHON}" / "site-packages"
    with zipfile.ZipFile(folder / found.overlay.name) as archive:
        archive.extractall(site)
    objects = sorted((place.folder / "cache" / "objects").iterdir())
    second = patch(place, lt.edited(lt.NCCL_CPP, "int v = 0, d = 0", "int v = 1, d = 0"))
    there = "libtorch_mw_fix1.so of torch 9.9.0+cu124.fix1 in "
    wheels = (folder / found.patched.name, folder / found.overlay.name)
    runs = [(where, explain(place, "--patches", second, "--beside", where)) for where in (*wheels, site.parents[2])]
    runs.append((wheels[0], build(place, "--patches", second, "--beside", wheels[0], label="fix2")))
    for where, (status, output) in runs:
        assert status == 11, output
        plain = output.replace("\n", " ")
        assert f"{there}{where} is there already" in plain
        for symbol in ("answer", "version"):
            assert f"both would replace torch::cuda::nccl::{symbol}()" in plain
    assert sorted((place.folder / "cache" / "objects").iterdir()) == objects, "a refused overlay was compiled first"
    other = patch(place, lt.edited(lt.RECORDER_CPP, "return x + 1", "return x + 1000"))
    status, output = explain(place, "--patches", other, "--beside", place.folder / "env")
    assert (status, "no unit that the patch changes is in both" in output.replace("\n", " ")) == (11, True), output
    debian = place.folder / "debian" / "lib" / "python3"
    debian.mkdir(parents=True)
    site.rename(debian / "dist-packages")
    status, output = explain(place, "--patches", other, "--beside", place.folder / "debian")
    assert (status, "is there already" in output.replace("\n", " ")) == (11, True), output
    python = patch(place, {INIT: f"{text.INIT}more = 8\n"})
    status, output = explain(place, "--patches", python, "--beside", place.folder / "debian")
    assert (status, "is there already" in output) == (0, False), output
    status, output = explain(place, "--patches", second, "--beside", place.tree)
    assert (status, "nothing is installed there" in output.replace("\n", " ")) == (2, True), output
    status, output = explain(place, "--patches", second, "--beside", place.folder / "no.whl")
    assert (status, "no such file" in output) == (2, True), output


_TESTS = {
    "test/distributed/test_store.py": "a = 1\n",
    "test/odd [name]*.py": "b = 1\n",
    ".github/x.yml": "c: 1\n",
    "functorch/op.py": "d = 1\n",
    "tools/gen.py": "e = 1\n",
}


def test_what_a_patch_changes_of_files_that_are_not_imported(place: Place) -> None:
    """An upstream fix brings its tests: these files are in no imported tree, and must not keep it from applying."""
    lt.write(place.tree, _TESTS)
    changed = {path: text.replace("1", "2") for path, text in _TESTS.items()}
    ignored = {path: text for path, text in changed.items() if path.startswith(("test/", ".github/"))}
    unit = lt.edited(lt.NCCL_CPP, "return 1 +", "return 500 +")
    own = patch(place, {**unit, **ignored, "test/new.py": "f = 1\n"})
    status, output = build(place, "--patches", own)
    assert status == 0, output
    found, folder = made(place)
    assert run(folder / found.patched.name, place.folder / "site", "import torch; print(torch.answer())") == "540"
    assert found.provenance.patches[0].sha256 == hashlib.sha256(own.read_bytes()).hexdigest()
    status, output = explain(place, "--patches", patch(place, ignored))
    assert (status, "changes nothing that is in the wheel" in output) == (8, True), output
    for path, why in (("tools/gen.py", "code is generated from it"), ("functorch/op.py", "no rule of this tool")):
        status, output = explain(place, "--patches", patch(place, {**unit, path: changed[path]}))
        assert (status, f"{path}: {why}" in output.replace("\n", " ")) == (9, True), output


def test_units_of_libtorch_cpu_keep_their_threads(place: Place) -> None:
    """Without -fopenmp they would compile as well, and at::parallel_for would run on one thread."""
    path = "torch/csrc/Parallel.cpp"
    own = patch(place, lt.edited(path, "count += 1", "count += 100"))
    status, output = build(place, "--patches", own)
    assert status == 0, output
    found, folder = made(place)
    program = "import os; os.environ['OMP_NUM_THREADS'] = '3'; import torch; print(torch.count_threads())"
    assert run(folder / found.patched.name, place.folder / "site", program) == "300"
    with zipfile.ZipFile(folder / found.patched.name) as archive:
        overlay = Path(archive.extract("torch/lib/libtorch_mw_fix1.so", place.folder))
    assert "libgomp.so.1" in needed(overlay)


def test_a_removed_unit_is_refused(place: Place) -> None:
    own = patch(place, {lt.NCCL_CPP: None})
    for status, output in (explain(place, "--patches", own), build(place, "--patches", own)):
        assert (status, "compiled code stays in the library" in output.replace("\n", " ")) == (9, True), output
    assert not (place.folder / "cache" / "objects").exists()


def test_a_patch_that_does_not_apply_says_where_and_how_to_port_it(place: Place) -> None:
    own = patch(place, lt.edited(lt.NCCL_CPP, "return 1 +", "return 500 +"))
    own.write_bytes(own.read_bytes().replace(b"-  return 1 +", b"-  return 2 +"))
    for status, output in (explain(place, "--patches", own), build(place, "--patches", own)):
        assert status == 8, output
        plain = output.replace("\n", " ")
        assert f"{lt.NCCL_CPP} hunk 1: its old lines are not in the file (lines " in plain
        assert f"of {own.name})" in plain
        assert f"regenerate-patch -- --patches {own.parent} --from-tree" in plain


def test_commits_of_a_branch_since_the_release(place: Place) -> None:
    path = lt.NCCL_CPP
    git = make_repo(place.folder / "checkout", {path: (place.tree / path).read_bytes(), "other": b"1\n"})
    base = git.resolve("HEAD")
    git.out("tag", f"v{lt.VERSION}", base)
    ours = lt.edited(path, "return 1 +", "return 500 +")[path]
    for content in (ours, ours.replace("return 500", "return 600")):
        (git.folder / path).write_text(content)
        git.out("commit", "--quiet", "-am", "a step", env=AUTHOR)
    git.out("branch", "fix")
    named = f"{git.folder}@fix"
    status, output = build(place, "--from-branch", named)
    assert status == 0, output
    found, folder = made(place)
    assert len(found.provenance.patches) == 2
    assert run(folder / found.patched.name, place.folder / "site", "import torch; print(torch.answer())") == "640"
    for wrong, why in (
        (f"{git.folder}@no", "no"),
        (f"{git.folder}@{base}", "changes no file"),
        ("/nowhere@x", "PATH@REV"),
    ):
        status, output = explain(place, "--from-branch", wrong)
        assert status in (2, 6, 8), output
        assert why in output
        assert "Traceback" not in output
