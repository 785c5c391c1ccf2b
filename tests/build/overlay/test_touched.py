"""Which functions of a unit a patch concerns."""

from __future__ import annotations

import pytest

from build.overlay.touched import affected, spared

_OLD = """
#include <a.h>
namespace c10d {
// A comment.
static int helper(int x) {
  return x + 1;
}

int Store::used(
    int x) {
  if (x) {
    return helper(x);
  }
  return 0;
}

int Store::other(int x) { return x; }

int counted() {
  static int count = 0;
  return ++count;
}

constexpr int kLimit = 3;
} // namespace c10d
"""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("a comment", "a comment", {"counted"}),
        ("// A comment.", "// Another one, with a { in it.", {"counted"}),
        ("#include <a.h>", "#include <a.h>\n#include <b.h>", {"counted"}),
        ("return x; }", "return -x; }", {"counted", "other"}),
        ("return x + 1;", "return x + 2;", {"counted", "helper", "used"}),
        ("    return helper(x);", "    return helper(x + 1);", {"counted", "used"}),
        ("\nint counted", "\nint added() {\n  return 1;\n}\n\nint counted", {"counted", "added"}),
        ("kLimit = 3", "kLimit = 4", None),
        ("\nint counted", "\n#define MORE 1\nint counted", None),
        ("\nint counted", "\nusing namespace std;\nint counted", None),
        ("\nint counted", "\nstatic std::vector<int> more;\nint counted", {"counted", "more"}),
        ("\nint counted", "\nstruct helper final : Base {\n};\nint counted", {"counted", "helper", "used", "Base"}),
        ("\nint counted", "\ntemplate <typename T>\nconstexpr bool kRaw<T*> = true;\nint counted", None),
        ("\nint counted", "\ntemplate <typename T>\nstruct Raw<T*> : std::true_type {\n};\nint counted", None),
        ("\nint counted", "\ntemplate <typename T>\nstruct Raw<T*> {\n  int f() {}\n};\nint counted", None),
        ("\nint counted", "\ntemplate <>\nint other<int>(int x) {\n  if (x) f();\n}\nint counted", None),
        ("\nint counted", "\ntemplate <>\nint Any<int>::get(int x) {\n  return 1;\n}\nint counted", None),
        ("\nint counted", "\nint helper(long y);\nint counted", {"counted", "helper", "used", "y"}),
    ],
)
def test_what_a_change_concerns(old: str, new: str, found: set[str] | None) -> None:
    assert affected(_OLD, _OLD.replace(old, new)) == found
    every = {"helper", "used", "other", "counted"}
    assert spared(_OLD, _OLD.replace(old, new)) == (every - found if found is not None else frozenset())


#: What a name in the text alone does not show.
_HARD = """
static int helper(int x) {
  return x + 1;
}

struct Guard {
  int get(int x) const { return helper(x); }
  int size_;
};

struct Closer {
  ~Closer() { drain(); }
};

static int drain() {
  return 3;
}

int by_method(Guard& guard) {
  return guard.get(1);
}

int by_alias() {
  return Alias{}.size_;
}

namespace {
  int indented(int x) {
    return x;
  }
}

int by_indented() {
  return indented(2);
}

int says() {
  return check("see http://pytorch.org", 1);
}

int blank() {
  return check("a b");
}

std::function<void(int)> make() {
  return {};
}

int makes() {
  return make() ? 1 : 0;
}

__attribute__((noinline)) int deep() {
  return 5;
}

int dives() {
  return deep();
}

Opener::Opener() {
  open();
}

static int open() {
  return 8;
}

Holder::~Holder() {
  drop();
}

bool operator==(const Holder& a, const Holder& b) {
  return a.x_ == b.x_;
}

int other(int x) {
  return x;
}

using Alias = Guard;
"""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("x + 1", "x + 2", {"helper", "get", "by_method", "Guard", "by_alias"}),
        ("return helper(x);", "return helper(-x);", None),
        ("  int size_;", "  int size_;\n  int more_;", None),
        ("drain(); }", "drain(); drain(); }", None),
        ("return 3;", "return 4;", None),
        ("    return x;\n", "    x++;\n    return x;\n", None),
        ('pytorch.org", 1', 'pytorch.org", 2', {"says"}),
        ('"a b"', '"a  b"', {"blank"}),
        ("return {};", "return nullptr;", {"make", "makes"}),
        ("return 5;", "return 6;", {"deep", "dives"}),
        ("  open();", "  open(2);", None),
        ("return 8;", "return 9;", None),
        ("drop();", "drop(2);", None),
        ("Holder::~Holder() {\n  drop();\n}", "", None),
        ("a.x_ == b.x_", "true", None),
        ("int other(int x) {\n  return x;", "int other(int x) {\n  return -x;", {"other"}),
    ],
)
def test_what_names_do_not_show(old: str, new: str, found: set[str] | None) -> None:
    assert old in _HARD
    concerned = affected(_HARD, _HARD.replace(old, new))
    assert concerned is None if found is None else concerned is not None and found <= concerned
    assert "other" in spared(_HARD, _HARD.replace(old, new)) if found and "other" not in found else True
