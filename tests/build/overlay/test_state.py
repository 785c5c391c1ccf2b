"""Functions that reach variables of the overlay's own: little units, compiled for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.overlay.differing import reaching
from build.overlay.flags import COMMON
from build.overlay.symbols import names
from tests.build.overlay import little as lt

_HEAD = """
struct Text { Text(int); int size; };
#define APART __attribute__((noinline))
#define SHARED __attribute__((visibility("default")))
extern int given();
"""
#: What reaches a variable of which stock has another copy.
_STATE = {
    "of its own": "int asked() { static int count; return ++count; }",
    "of the file": "static int count; int asked() { return ++count; }",
    "of the file, with a value": "static int count = 3; int asked() { return ++count; }",
    "of a namespace without name": "namespace { int count; } int asked() { return ++count; }",
    "a pointer": "static int (*way)() = given; void set() { way = nullptr; } int asked() { return way(); }",
    "of a thread": "static thread_local int count; int asked() { return ++count; }",
    "of a thread, with a value": "thread_local int count = 4; int asked() { return ++count; }",
    "hidden": "int count; int asked() { return ++count; }",
    "an element": "static int counts[64]; int asked() { return ++counts[given() & 63]; }",
    "a constant made at load": "static const Text kText(given()); int asked() { return kText.size; }",
    "a constant made once": "int asked() { static const Text kText(given()); return kText.size; }",
    "of an inline function": "inline APART int next() { static int n; return ++n; } int asked() { return next(); }",
    "of a function beside it": (
        "int asked(); int gap() { return 7; } static APART int next() { static int count; return count += given(); }"
        "int asked() { return next() + 1; }"
    ),
    "of a function in the end": (
        "static APART int next() { static int count; return count += given(); } int asked() { return next(); }"
    ),
    "through a table": (
        "static int next() { static int count; return ++count; } static int other() { return 1; }"
        "static int (*const kWays[])() = {other, next}; int asked() { return kWays[given() & 1](); }"
    ),
    "through a table, behind another one": (
        "static int next() { static int count; return ++count; } static int other() { return 1; }"
        "static int (*const kFirst[])() = {other, given}; static int (*const kWays[])() = {other, next};"
        "int first() { return kFirst[given() & 1](); } int asked() { return kWays[given() & 1](); }"
    ),
    "through an address before the table": (
        "static int next() { static int count; return ++count; } static int other() { return 1; }"
        "static int (*const kWays[])() = {other, next}; int (*const* asked())() { return kWays - 1; }"
    ),
    "through an address before the table, in another one": (
        "static int next() { static int count; return ++count; } static int other() { return 1; }"
        "static int (*const kFirst[])() = {other, given}; static int (*const kWays[])() = {other, next};"
        "int first() { return kFirst[given() & 1](); } int (*const* asked())() { return kWays - 1; }"
    ),
    "through an address before the table, in a short one": (
        "static int next() { static int count; return ++count; } static int other() { return 1; }"
        "static int (*const kFirst[])() = {other}; static int (*const kWays[])() = {other, next};"
        "int first() { return kFirst[given()](); } int (*const* asked())() { return kWays - 1; }"
    ),
    "through a virtual function": (
        "struct Base { virtual int next() = 0; }; static int count;"
        "struct Made final : Base { int next() override; }; int Made::next() { return ++count; }"
        "Base* asked() { return new Made; }"
    ),
    "through the part that is seldom run": (
        "static int count; static APART __attribute__((cold)) void fail() { ++count; throw given(); }"
        "int asked() { if (given()) fail(); return 1; }"
    ),
    "through a table of jumps": (
        "static int count; static APART __attribute__((cold)) int fail() { return ++count; }"
        "int asked() { switch (given()) { case 0: return given() + 5; case 1: return given() * 3;"
        "case 2: return fail(); case 3: return given() - 7; case 4: return given() / 9; "
        "case 5: return given() % 11; } return 1; }"
    ),
    "through a table of jumps into such a part": (
        "static int count; [[noreturn]] __attribute__((cold)) void fail(int);"
        "int asked() { switch (given() & 7) { case 0: return given() + 5; case 1: return given() * 3;"
        "case 2: fail(++count); case 3: return given() - 7; case 4: return given() / 9; case 5: return given() % 11;"
        "case 6: return given() << 3; case 7: return given() >> 2; } return 0; }"
    ),
    "where an exception is caught": (
        "static int count; int asked() { try { return given(); } catch (...) { return ++count; } }"
    ),
    "through an address": (
        "static APART int next() { static int count; return ++count; } extern void take(int (*)());"
        "int asked() { take(next); return 1; }"
    ),
}
#: What reaches none.
_NONE = {
    "nothing": "static int count; int other() { return ++count; } int asked() { return given(); }",
    "an exported variable": "SHARED int shared = 1; int asked() { return ++shared; }",
    "an exported function": "static int n; SHARED int shared() { return ++n; } int asked() { return shared(); }",
    "a constant": 'static const char* const kTexts[] = {"a", "b"}; const char* asked() { return kTexts[given() & 1]; }',
    "a table": (
        "static int one() { return 1; } static int two() { return 2; } static int count;"
        "static int (*const kWays[])() = {one, two}; int asked() { return kWays[given() & 1](); }"
        "static int next() { return ++count; } static int (*const kOther[])() = {one, next};"
        "int other() { return kOther[given() & 1](); }"
    ),
    "a variable of the standard library": "#include <iostream>\nint asked() { std::cout << given(); return 1; }",
    "a variable of fmt": (
        "namespace fmt { inline APART int next() { static int id = given(); return id; } }"
        "int asked() { return fmt::next(); }"
    ),
    "parts that do not return": (
        "static int count; [[noreturn]] __attribute__((cold)) void fail(int);"
        "int asked() { if (given()) fail(1); return 1; } int other() { if (given()) fail(++count); return 1; }"
    ),
    "calls that do not return": (
        "static int count; extern void fail() __attribute__((noreturn));"
        "int asked() { if (given()) fail(); if (given() > 1) throw 1; return 1; }"
        "int other() { if (given()) { ++count; fail(); } if (given() > 1) throw 2; return ++count; }"
    ),
}
_SHARED = frozenset({"shared", "_Z6sharedv"})


def _compiled(folder: Path, **units: str) -> list[Path]:
    lt.write(folder, {f"{name}.cpp": _HEAD + text for name, text in units.items()})
    for name in units:
        lt.shell("g++", "-std=c++17", *COMMON, "-c", folder / f"{name}.cpp", "-o", folder / f"{name}.o")
    return [folder / f"{name}.o" for name in units]


@pytest.mark.parametrize("what", _STATE)
def test_a_variable_is_found(what: str, tmp_path: Path) -> None:
    assert "_Z5askedv" in reaching(_compiled(tmp_path, one=_STATE[what]), _SHARED, {})


@pytest.mark.parametrize("what", _NONE)
def test_what_has_no_variable_is_left(what: str, tmp_path: Path) -> None:
    assert "_Z5askedv" not in reaching(_compiled(tmp_path, one=_NONE[what]), _SHARED, {})


def test_another_unit_counts(tmp_path: Path) -> None:
    """It has a variable of its own, or a function that the patch changes."""
    users = {"asked": "int next(); int asked() { return next(); }", "user": "int more(); int user() { return more(); }"}
    made = _compiled(tmp_path, **users, counts="int next() { static int n; return ++n; } int more() { return 2; }")
    assert reaching(made, _SHARED, {}) == {"_Z5askedv", "_Z4nextv"}
    assert reaching(made, _SHARED, {made[2]: ["_Z4morev"]}) == {"_Z5askedv", "_Z4nextv", "_Z4userv", "_Z4morev"}


def test_what_is_hidden_is_not_shared(tmp_path: Path) -> None:
    """Stock exports the name, the overlay does not: then the overlay's own code has the overlay's copy."""
    text = "inline APART int next() { static int n; return ++n; } int asked() { return next(); }"
    hidden, shared = _compiled(tmp_path, hidden=text, shared=f"SHARED {text}")
    assert "_Z5askedv" in reaching([hidden], {"_Z4nextv"}, {})
    assert "_Z5askedv" not in reaching([shared], {"_Z4nextv"}, {})
    assert "_Z5askedv" in reaching([shared], (), {})


def test_what_one_object_hides_is_hidden_for_all(tmp_path: Path) -> None:
    """The linker takes the strictest visibility, and a declaration has one."""
    text = "SHARED APART int next() { static int n; return ++n; } int asked() { return next(); }"
    hides = '__attribute__((visibility("hidden"))) int next(); int user() { return next(); }'
    one, two = _compiled(tmp_path, one=text, two=hides)
    assert "_Z5askedv" not in reaching([one], {"_Z4nextv"}, {})
    assert "_Z5askedv" in reaching([one, two], {"_Z4nextv"}, {})


_CONSTANTS = {
    "of the file": "static const int kTexts[] = {1, 2, 3}; int asked() { return kTexts[given()]; }",
    "hidden": "extern const int kTexts[]; const int kTexts[] = {1, 2, 3}; int asked() { return kTexts[given()]; }",
}


@pytest.mark.parametrize("what", _CONSTANTS)
def test_a_constant_counts_if_wanted(what: str, tmp_path: Path) -> None:
    (made,) = _compiled(tmp_path, one=_CONSTANTS[what])
    name = next(name for name in names(made).defined if "kTexts" in name)
    assert "_Z5askedv" in reaching([made], _SHARED, {made: [name]})
    assert "_Z5askedv" not in reaching([made], _SHARED, {})


def test_a_local_function_counts_in_its_own_object_only(tmp_path: Path) -> None:
    text = "static APART int aid() {{ return given(); }} int {0}() {{ return aid() + 1; }}"
    one, two = _compiled(tmp_path, one=text.format("asked"), two=text.format("user"))
    assert "_Z5askedv" in (found := reaching([one, two], _SHARED, {one: ["_ZL3aidv"]}))
    assert "_Z4userv" not in found
