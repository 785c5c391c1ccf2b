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
        ("\nint counted", "\nint helper(long y);\nint counted", {"counted", "helper", "used", "y"}),
    ],
)
def test_what_a_change_concerns(old: str, new: str, found: set[str] | None) -> None:
    assert affected(_OLD, _OLD.replace(old, new)) == found
    every = {"helper", "used", "other", "counted"}
    assert spared(_OLD, _OLD.replace(old, new)) == (every - found if found is not None else frozenset())
