"""Hidden symbols bring their units along, found by text and proven by the object."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from build.errors import CompileError, NeedsFullBuildError
from build.overlay.closure import compile_closure, hidden_needs
from tests.build.overlay import little as lt
from tests.build.overlay.little import HIDDEN_CPP, NCCL_CPP, USER_CPP, Little

EDIT = lt.edited(NCCL_CPP, "return 1 +", "return 100 +")
#: Comes first by name, mentions the symbol in every way but a definition.
DECOY = """
#include <torch/csrc/cuda/Secret.h>
namespace torch::cuda {
int decoy() { return Secret::value(); }
struct Other { static int value(); };
int Other::value() { return 1; }
}
"""

pytestmark = pytest.mark.usefixtures("module_cache")


def test_the_unit_of_a_hidden_symbol_comes_along(little: Little, tmp_path: Path) -> None:
    made = compile_closure(lt.inputs(little, tmp_path / "tree", EDIT))
    assert [item.unit for item in made] == [NCCL_CPP, HIDDEN_CPP]
    assert made[0].why == "changed by the series"
    assert made[1].why == "defines torch::cuda::Secret::value(), which stock does not export"


def test_what_stock_exports_brings_nothing_along(little: Little, tmp_path: Path) -> None:
    made = compile_closure(lt.inputs(little, tmp_path / "tree", lt.edited(USER_CPP, "return", "return 1 +")))
    assert [item.unit for item in made] == [USER_CPP]


def test_what_is_missing_is_what_stock_hides(little: Little, tmp_path: Path) -> None:
    given = lt.inputs(little, tmp_path / "tree", EDIT)
    (made,) = lt.compiled(given, NCCL_CPP)
    assert hidden_needs(given, [made.path]) == {"_ZN5torch4cuda6Secret5valueEv"}


def test_a_unit_that_only_looks_like_it_is_passed_over(little: Little, tmp_path: Path) -> None:
    edits = {**EDIT, "torch/csrc/cuda/AAA.cpp": DECOY}
    made = compile_closure(lt.inputs(little, tmp_path / "tree", edits))
    assert [item.unit for item in made] == [NCCL_CPP, HIDDEN_CPP]


def test_no_unit_defines_it(little: Little, tmp_path: Path) -> None:
    given = lt.inputs(little, tmp_path / "tree", {**EDIT, "torch/csrc/cuda/AAA.cpp": DECOY})
    (given.tree / HIDDEN_CPP).unlink()
    with pytest.raises(CompileError, match=r"needs torch::cuda::Secret::value\(\)") as caught:
        compile_closure(given)
    assert "_ZN5torch4cuda6Secret5valueEv" in caught.value.cause
    assert "AAA.cpp was tried and does not define it" in caught.value.cause
    assert "extra_units" in caught.value.remedy


def test_a_definer_that_does_not_compile_is_named(little: Little, tmp_path: Path) -> None:
    given = lt.inputs(little, tmp_path / "tree", EDIT)
    lt.write(given.tree, {HIDDEN_CPP: "int torch::cuda::Secret::value() { return 1; }\n"})
    with pytest.raises(CompileError) as caught:
        compile_closure(given)
    assert f"{HIDDEN_CPP} was tried and does not compile" in caught.value.cause


def test_a_user_that_does_not_compile_is_named(little: Little, tmp_path: Path) -> None:
    """Its code was linked to the stock `Secret::value`; with the reason, the user of the tool can help."""
    edit = lt.edited(HIDDEN_CPP, "return 40", "return 900")
    given = lt.with_release(lt.inputs(little, tmp_path / "tree", edit), series=())
    lt.write(given.tree, {NCCL_CPP: "#include <not/there.h>\nint torch::cuda::nccl::answer() {\n  return 1;\n}\n"})
    with pytest.raises(NeedsFullBuildError) as caught:
        compile_closure(given)
    assert "Secret::value() is used by torch::cuda::nccl::answer()" in caught.value.cause
    assert f"{NCCL_CPP} was tried and does not compile" in caught.value.cause


def test_units_that_the_release_names_come_along(little: Little, tmp_path: Path) -> None:
    made = compile_closure(lt.inputs(little, tmp_path / "tree", EDIT, extra=USER_CPP))
    assert {item.unit: item.why for item in made}[USER_CPP] == "the test says so"


_OWN = """__attribute__((noinline)) int deep() {
  return 5;
}
static __attribute__((noinline)) int aid(int x) {
  return deep() + ncclGetVersion(&x);
}
int version() {"""


def test_a_stock_function_of_the_unit_itself_is_no_user(little: Little, tmp_path: Path) -> None:
    """The patch renames `aid`, which was linked to the stock `deep`: nothing calls that code any more."""
    (text,) = lt.edited(NCCL_CPP, "int version() {", _OWN).values()
    text = text.replace("return ncclGetVersion", "return aid(d) + ncclGetVersion")
    stock = lt.inputs(little, tmp_path / "stock", {NCCL_CPP: text})
    other = lt.relink_cuda(little, stock.tree, tmp_path / "wheel")
    patch = {NCCL_CPP: text.replace("aid(", "renamed(").replace("return 5", "return 6")}
    made = compile_closure(lt.with_release(lt.inputs(other, tmp_path / "tree", patch), series=()))
    assert [item.unit for item in made] == [NCCL_CPP, HIDDEN_CPP]


def test_the_unit_of_a_hidden_variable_comes_along(little: Little, tmp_path: Path) -> None:
    """A variable is defined without its scope, as `const std::string PREFIX = "x";` in a namespace."""
    (secret,) = lt.edited(
        HIDDEN_CPP, "int Secret::value", "extern const int LIMIT;\nconst int LIMIT = 7;\nint Secret::value"
    ).values()
    stock = lt.inputs(little, tmp_path / "stock", {HIDDEN_CPP: secret})
    other = lt.relink_cuda(little, stock.tree, tmp_path / "wheel")
    text = "#include <torch/csrc/Export.h>\nnamespace torch::cuda { extern const int LIMIT; }\n"
    text += 'extern "C" TORCH_API int use_answer() { return torch::cuda::LIMIT; }\n'
    text += 'extern "C" TORCH_API int use_version() { return 1; }\n'
    made = compile_closure(lt.inputs(other, tmp_path / "tree", {USER_CPP: text}))
    assert [item.unit for item in made] == [USER_CPP, HIDDEN_CPP]


_BUMP = "namespace torch::cuda::nccl { int bump(); }\n"
_STATES = {
    "through a table": (
        "static __attribute__((noinline)) int next() {\n  static int count = 0;\n  return ++count;\n}\n"
        "using Way = int (*)();\nstatic const Way kWays[] = {\n  next,\n};\nint bump() {\n  return kWays[0]();\n}\n"
    ),
    "of the file": "static int count = 0;\nint bump() {\n  return ++count;\n}\n",
    "of a namespace without name": "namespace {\nint count = 0;\n}\nint bump() {\n  return ++count;\n}\n",
    "": "int bump() {\n  return 1;\n}\n",
}


@pytest.mark.parametrize("state", _STATES)
def test_stock_code_does_not_keep_a_function_with_a_variable(little: Little, tmp_path: Path, state: str) -> None:
    """The patch does not concern `bump`, but with two copies of its variable each counts half of the calls."""
    (text,) = lt.edited(NCCL_CPP, "int version() {", _STATES[state] + "int version() {").values()
    (user,) = lt.edited(USER_CPP, "return torch::cuda::nccl::answer", "return torch::cuda::nccl::bump").values()
    stock = lt.inputs(little, tmp_path / "stock", {NCCL_CPP: text, USER_CPP: _BUMP + user})
    other = lt.relink_cuda(little, stock.tree, tmp_path / "wheel")
    patch = {NCCL_CPP: text.replace("int v = 0, d = 0;", "int v = 0, d = 1;")}
    made = compile_closure(lt.with_release(lt.inputs(other, tmp_path / "tree", patch), series=()))
    assert {item.unit for item in made} == {NCCL_CPP, HIDDEN_CPP, *([USER_CPP] if state else [])}


def test_stock_code_does_not_keep_a_function_that_reaches_a_changed_one(little: Little, tmp_path: Path) -> None:
    """The patch changes `Secret::value` only; of its user, `bump` in another unit, only the text stays."""
    bump = "int bump() {\n  return Secret::value();\n}\n"
    (text,) = lt.edited(NCCL_CPP, "int version() {", bump + "int version() {").values()
    (user,) = lt.edited(USER_CPP, "return torch::cuda::nccl::answer", "return torch::cuda::nccl::bump").values()
    stock = lt.inputs(little, tmp_path / "stock", {NCCL_CPP: text, USER_CPP: _BUMP + user})
    other = lt.relink_cuda(little, stock.tree, tmp_path / "wheel")
    edit = lt.edited(HIDDEN_CPP, "return 40", "return 900")
    made = compile_closure(lt.with_release(lt.inputs(other, tmp_path / "tree", edit), series=()))
    assert {item.unit for item in made} == {HIDDEN_CPP, NCCL_CPP, USER_CPP}


_CHANGED = {
    "a constant": ("extern const int kLimit;\nconst int kLimit = 3;\n", "int bump() {\n  return kLimit;\n}\n"),
    "a table": (
        'extern const char* const kLimits[];\nconst char* const kLimits[] = {\n  "3",\n};\n',
        "int bump() {\n  return *kLimits[0];\n}\n",
    ),
}


@pytest.mark.parametrize("what", _CHANGED)
def test_stock_code_does_not_keep_a_function_that_reads_a_changed_constant(
    little: Little, tmp_path: Path, what: str
) -> None:
    """The patch changes a hidden constant of another unit; of its reader `bump`, only the text stays."""
    constant, bump = _CHANGED[what]
    (secret,) = lt.edited(HIDDEN_CPP, "int Secret::value", constant + "int Secret::value").values()
    reader = constant.splitlines()[0].join(["namespace torch::cuda { ", " }\nnamespace torch::cuda::nccl {"])
    (text,) = lt.edited(NCCL_CPP, "int version() {", bump + "int version() {").values()
    text = text.replace("namespace torch::cuda::nccl {", reader, 1)
    (user,) = lt.edited(USER_CPP, "return torch::cuda::nccl::answer", "return torch::cuda::nccl::bump").values()
    stock = lt.inputs(little, tmp_path / "stock", {HIDDEN_CPP: secret, NCCL_CPP: text, USER_CPP: _BUMP + user})
    other = lt.relink_cuda(little, stock.tree, tmp_path / "wheel")
    patch = {HIDDEN_CPP: secret.replace("= 3;", "= 4;").replace('"3"', '"4"')}
    made = compile_closure(lt.with_release(lt.inputs(other, tmp_path / "tree", patch), series=()))
    assert {item.unit for item in made} == {HIDDEN_CPP, NCCL_CPP, USER_CPP}


@pytest.mark.parametrize("inlined", [False, True])
def test_stock_code_does_not_keep_a_function_that_calls_a_changed_one_by_a_macro(
    little: Little, tmp_path: Path, inlined: bool
) -> None:
    """The text of `bump` does not name the function: a header's macro does, and no call may be left of it."""
    how = "static" if inlined else "static __attribute__((noinline))"
    helper = f"{how} int helper() {{\n  return 5;\n}}\nint bump() {{\n  return HELPED;\n}}\n"
    (text,) = lt.edited(NCCL_CPP, "int version() {", helper + "int version() {").values()
    (header,) = lt.edited(lt.NCCL_H, "#pragma once", "#pragma once\n#define HELPED helper()").values()
    (user,) = lt.edited(USER_CPP, "return torch::cuda::nccl::answer", "return torch::cuda::nccl::bump").values()
    stock = lt.inputs(little, tmp_path / "stock", {NCCL_CPP: text, lt.NCCL_H: header, USER_CPP: _BUMP + user})
    other = lt.relink_cuda(little, stock.tree, tmp_path / "wheel")
    lt.write(other.wheel / "torch" / "include", {lt.NCCL_H: header})
    given = lt.inputs(other, tmp_path / "tree", {NCCL_CPP: text.replace("return 5", "return 6")})
    made = compile_closure(lt.with_release(replace(given, stock=stock.tree), series=()))
    assert {item.unit for item in made} == {NCCL_CPP, HIDDEN_CPP, USER_CPP}
