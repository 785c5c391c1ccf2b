"""Functions of a unit that a patch concerns."""

from __future__ import annotations

import pytest

from build.overlay.touched import affected, read


def spared(old: str, new: str) -> frozenset[str]:
    """Return the functions that a patch surely does not concern."""
    concerned = affected(old, new)
    return frozenset() if concerned is None else frozenset(read(new).functions) - concerned


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

#: `Tensor(` and `op(` stand where a function has its name.
_TABLE = """
static const std::map<std::string, std::function<Tensor(const Tensor&)>> kOps = {
    {"relu", relu_impl},
};

static auto registered = Registry().op("a", [](int x) {
  return work(x);
});

static Table<int(int)> kBraced{
    work,
};

static Registry kLast(
    "b",
    [](int x) { return work(x); });

int swallowed() {
  return 6;
}

int Tensor::work(int x) {
  return x;
}

int Tensor::run(int x) {
  return kOps.at("relu")(x);
}

int registers() {
  return registered.size();
}

int braced() {
  return kBraced(1);
}

int last() {
  return kLast.size();
}

int after() {
  return swallowed();
}

int other(int x = 3) {
  return x;
}
"""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("relu_impl", "gelu_impl", None),
        ("  return work(x);", "  return work(-x);", None),
        ("    work,", "    other,", None),
        ("[](int x) { return work(x); }", "[](int x) { return work(-x); }", None),
        ("return 6", "return 7", None),
        ("  return x;\n}\n\nint Tensor::run", "  return -x;\n}\n\nint Tensor::run", {"registers", "braced", "last"}),
        ("int other(int x = 3) {\n  return x;", "int other(int x = 3) {\n  return -x;", {"other"}),
    ],
)
def test_a_variable_that_looks_like_a_function(old: str, new: str, found: set[str] | None) -> None:
    assert old in _TABLE
    concerned = affected(_TABLE, _TABLE.replace(old, new))
    assert concerned is None if found is None else concerned is not None and found <= concerned
    assert "after" in spared(_TABLE, _TABLE.replace(old, new)) if found == {"other"} else True


_CLASS = """
static int drain(int x) {
  return x;
}

struct Slot {
  int get() {
    return MEMBER;
  }
};

int other(int x) {
  return x + 1;
}
"""


@pytest.mark.parametrize(
    "head",
    [
        "struct Slot {",
        "struct alignas(64) Slot {",
        "class __attribute__((aligned(8))) Slot {",
        "struct [[nodiscard]] Slot : Base {",
        "struct Outer::Slot final {",
    ],
)
def test_a_class_whose_special_members_change(head: str) -> None:
    plain = _CLASS.replace("struct Slot {", head)
    for member in ("~Slot() { drain(1); }", "Slot() { drain(1); }", "int* begin() { return drain(1); }"):
        unit = plain.replace("int get() {\n    return MEMBER;\n  }", member)
        assert affected(unit, unit.replace("return x;", "return -x;")) is None, member
    unit = plain.replace("MEMBER", "drain(items_.begin() - 1)")
    assert "other" in spared(unit, unit.replace("return x;", "return -x;"))


@pytest.mark.parametrize("name", ["begin", "end"])
def test_a_range_based_for_calls_without_a_name(name: str) -> None:
    unit = f"int* Items::{name}() {{\n  return start_;\n}}\nint sum(Items& items) {{\n  for (int x : items) f(x);\n}}\n"
    assert affected(unit, unit.replace("start_", "start_ + 1")) is None
    assert affected(unit, f"int* {name}(Items& items);\n{unit}") is None
    assert spared(unit, unit.replace("f(x)", "f(-x)")) == {name}


def test_a_macro_that_makes_names() -> None:
    functions = "int do_it() {\n  return 1;\n}\nint run() {\n  return DO(it);\n}\n"
    for macro, found in (
        ("#define DO(x) do_##x()\n", None),
        ("#define DO(x) x##_it()\n", None),
        ("#define DO(x, y) x##y()\n", None),
        ("#define DO(x...) do_##x()\n", None),
        ('#define A(x) k##x\n#define DO(x) do_k##x "##"()\n', None),
        ("#define KIND(x) \\\n  kind = k##x;\n", {"do_it"}),
        ("#define DO(...) \\\n  do_##__VA_ARGS__()\n", None),
        ("#define LOG(x, ...) log(x, ##__VA_ARGS__)\n", {"do_it"}),
    ):
        assert affected(macro + functions, macro + functions.replace("return 1", "return 2")) == found


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("a comment", "a comment", set()),
        ("// A comment.", "// Another one, with a { in it.", set()),
        ("#include <a.h>", "#include <a.h>\n#include <b.h>", set()),
        ("return x; }", "return -x; }", {"other"}),
        ("return x + 1;", "return x + 2;", {"helper", "used"}),
        ("    return helper(x);", "    return helper(x + 1);", {"used"}),
        ("\nint counted", "\nint added() {\n  return 1;\n}\n\nint counted", {"added"}),
        ("kLimit = 3", "kLimit = 4", None),
        ("\nint counted", "\n#define MORE 1\nint counted", None),
        ("\nint counted", "\nusing namespace std;\nint counted", None),
        ("\nint counted", "\nstatic std::vector<int> more;\nint counted", {"more"}),
        ("\nint counted", "\nstruct helper final : Base {\n};\nint counted", {"helper", "used", "Base"}),
        ("\nint counted", "\ntemplate <typename T>\nconstexpr bool kRaw<T*> = true;\nint counted", None),
        ("\nint counted", "\ntemplate <typename T>\nstruct Raw<T*> : std::true_type {\n};\nint counted", None),
        ("\nint counted", "\ntemplate <typename T>\nstruct Raw<T*> {\n  int f() {}\n};\nint counted", None),
        ("\nint counted", "\ntemplate <>\nint other<int>(int x) {\n  if (x) f();\n}\nint counted", None),
        ("\nint counted", "\ntemplate <>\nint Any<int>::get(int x) {\n  return 1;\n}\nint counted", None),
        ("\nint counted", "\nint helper(long y);\nint counted", {"helper", "used", "y"}),
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
