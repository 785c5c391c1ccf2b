"""A patch that changes what extensions compile in from an installed header is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from build.errors import CompileError, NeedsFullBuildError
from build.overlay.headers import check_headers
from build.overlay.layout import installed
from build.overlay.model import Check, Inputs
from tests.build.overlay import little as lt
from tests.build.overlay import little_sources as text
from tests.build.overlay.little import Little

HEADER = "torch/csrc/Kinds.h"
BEFORE = """
#pragma once
#include <cstdint>
#define LIMIT 8
namespace torch {
constexpr int64_t kFew = 3;
using Count = int32_t;
enum class Mode : uint8_t { FIRST = 0, SECOND = 1 };
struct Base { int64_t base; };
struct Plain {
  static int total();
  int64_t value;
};
struct Root { virtual void act(); };
struct Heir : Root {
  int64_t more;
};
// Made by out-of-line functions.
class Kind : public Base {
 public:
  Kind(int64_t size);
  virtual ~Kind();
  virtual int first(int x) const;
  virtual int second(int x);
  int doubled() const { return 2 * small_; }
  void grow(int by = 1);
  static int made;
 private:
  Count small_;
  int32_t other_;
  double exact_;
  struct { int32_t inner; } nested_;
#ifdef FAR_AWAY
  int64_t far_;
#endif
};
template <typename T>
class Box {
 public:
  T get() const { return value_; }
 private:
  T value_;
};
template <typename T>
T twice(T value) { return value + value; }
}
"""

pytestmark = pytest.mark.usefixtures("module_cache")


def judged(
    little: Little, folder: Path, before: str, after: str, *, header: str = HEADER, rebuilt: bool = False
) -> Check:
    """Judge one installed header that a patch changes."""
    return check_headers(replace(changed(little, folder, before, after, header), extensions_rebuilt=rebuilt))


def changed(little: Little, folder: Path, before: str, after: str, header: str) -> Inputs:
    """Return the inputs of a patch that changes one installed header."""
    lt.write(folder / "wheel" / "torch" / "include", {**text.HEADERS, installed(header): before})
    (folder / "wheel" / "torch" / "lib").symlink_to(little.wheel / "torch" / "lib")
    given = lt.inputs(little, folder / "tree", {header: after})
    return replace(given, wheel=folder / "wheel", originals={header: before})


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("aten/src/ATen/Kinds.h", "ATen/Kinds.h"),
        ("torch/csrc/api/include/torch/Kinds.h", "torch/Kinds.h"),
        (HEADER, HEADER),
    ],
)
def test_a_changed_header_comes_before_the_wheel_s(
    header: str, named: str, little: Little, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units include it by another path than the tree's."""
    before, after = "#pragma once\nstruct Kind { long value; };\n", "#pragma once\nstruct Kind { short value; };\n"
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))
    given = changed(little, tmp_path, before, after, header)
    lt.write(given.tree, {lt.NCCL_CPP: f"#include <{named}>\nstatic_assert(sizeof(Kind) == 2);\n"})
    (made,) = lt.compiled(given, lt.NCCL_CPP)
    assert f"tree:{header}" in made.includes
    with pytest.raises(NeedsFullBuildError, match="Kind: byte size: 8, now 2"):
        check_headers(given)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  double exact_;", "  double exact_;\n  int64_t more_;", r"torch::Kind: byte size: 40, now 48"),
        ("  double exact_;\n", "", r"torch::Kind: .*member exact_: double of 8 at 24, now none"),
        ("  int32_t other_;\n  double exact_;", "  double exact_;\n  int32_t other_;", r"other_: .* at 20, now"),
        ("  double exact_;", "  int64_t exact_;", r"member exact_: double of 8 at 24, now long int of 8 at 24"),
        ("int32_t inner;", "float inner;", r"torch::Kind: member nested_"),
        ("struct Base { int64_t base; };", "struct Base { int32_t base; };", r"torch::Base: .*member base"),
        ("using Count = int32_t;", "using Count = int64_t;", r"other than stock's: torch: using Count = int32_t;"),
        ("  virtual int second(int x);\n", "  virtual int second(int x);\n  virtual int third();\n", r"virtual third"),
        ("  virtual int second(int x);\n", "  virtual int second(long x);\n", r"virtual second\(int of 4\)"),
        ("  virtual int second(int x);\n", "", r"torch::Kind: virtual second\(int of 4\): .*, now none"),
        (
            "  virtual int first(int x) const;\n  virtual int second(int x);\n",
            "  virtual int second(int x);\n  virtual int first(int x) const;\n",
            r"torch::Kind: virtual first",
        ),
        ("FIRST = 0, SECOND = 1", "FIRST = 1, SECOND = 0", r"torch::Mode: enumerator FIRST: 0, now 1"),
        ("enum class Mode : uint8_t", "enum class Mode : uint16_t", r"torch::Mode: byte size: 1, now 2"),
        ("FIRST = 0, SECOND = 1", "FIRST = 0", r"torch::Mode: enumerator SECOND: 1, now none"),
        ("return 2 * small_;", "return 3 * small_;", r"torch::Kind: int doubled\(\) const"),
        ("int by = 1", "int by = 2", r"torch::Kind: void grow\(int by = 1\);"),
        ("return value_;", "return value_ + 1;", r"torch::Box: T get\(\) const"),
        ("  T value_;\n", "  T value_;\n  int uses_;\n", r"torch::Box: int uses_;"),
        ("return value + value;", "return 2 * value;", r"torch: template < typename T > T twice"),
        ("using Count", "template <typename T> class Box;\ntemplate <> class Box<int> {};\nusing Count", r"Box < int"),
        ("kFew = 3", "kFew = 4", r"torch: constexpr int64_t kFew = 3;"),
        ("  static int total();", "  static int64_t total();", r"torch::Plain: static int total\(\);"),
        ("  static int total();", "  int total();", r"torch::Plain: static int total\(\);"),
        ("  int64_t value;", "  int64_t value;\n  ~Plain();", r"torch::Plain: special ~Plain\(\): none, now declared"),
        ("struct Heir : Root {", "struct Heir : Root {\n  void act();", r"torch::Heir: virtual act\(\): none, now"),
        ("#define LIMIT 8", "#define LIMIT 9", r"# define LIMIT 8"),
        ("  int64_t far_;\n", "  int64_t far_;\n  int64_t further_;\n", r"torch::Kind: int64_t further_;"),
        ("class Kind : public Base {", "class Kind {", r"torch::Kind"),
        ("// Made by", "#pragma pack(4)\n// Made by", r"torch::Kind: byte size: 40, now 36"),
    ],
)
def test_what_extensions_have_compiled_in(old: str, new: str, said: str, little: Little, tmp_path: Path) -> None:
    assert old in BEFORE
    with pytest.raises(NeedsFullBuildError) as caught:
        judged(little, tmp_path, BEFORE, BEFORE.replace(old, new))
    assert caught.match(rf"{HEADER}: .*")
    assert caught.match(said)
    assert caught.match("--extensions-rebuilt")


_BESIDE = (
    ("// Made by", "// Is made by"),
    ("  void grow(int by = 1);", "  void grow(int by = 1);\n  void shrink();\n  int tripled() { return 3; }"),
    ("  T get() const {", "  bool full() const { return true; }\n  T get() const {"),
    ("T twice(T value)", "T thrice(T x) { return x; }\ntemplate <typename T>\nT twice(T value)"),
    ("FIRST = 0, SECOND = 1", "FIRST = 0, SECOND = 1, THIRD = 2"),
    ("  static int made;", "  static int made;\n  static int lost;"),
    ("struct Base {", "struct New { int64_t x; virtual void f(); };\nenum class Hue { RED };\nstruct Base {"),
    ("#define LIMIT 8", "#define LIMIT 8\n#define LOWER 2"),
    ("#define LIMIT 8", '#pragma GCC diagnostic ignored "-Wpacked"\n#define LIMIT 8'),
    ("  int32_t other_;\n  double exact_;", "  int32_t other_; double   exact_;"),
)


def test_what_is_added_beside_it(little: Little, tmp_path: Path) -> None:
    before = after = f"#include <string>\n{BEFORE}"  # the library's own classes are among the types
    for old, new in _BESIDE:
        assert old in after
        after = after.replace(old, new)
    found = judged(little, tmp_path, before, after)
    assert found.detail == "1 changed header as extensions have compiled it in"


def test_extensions_that_are_compiled_anew(little: Little, tmp_path: Path) -> None:
    after = BEFORE.replace("  double exact_;", "  double exact_;\n  int64_t more_;")
    found = judged(little, tmp_path, BEFORE, after, rebuilt=True)
    assert found.passed
    assert f"every extension that includes {HEADER} must be compiled anew" in found.detail


def test_a_header_that_cannot_be_compiled_alone(little: Little, tmp_path: Path) -> None:
    before = BEFORE.replace("struct Base {", "Unknown unknown();\nstruct Base {")
    with pytest.raises(CompileError, match="--extensions-rebuilt") as caught:
        judged(little, tmp_path, before, before.replace("  double exact_;\n", ""))
    assert caught.match(f"{HEADER}, included alone does not compile")


def test_a_header_that_is_not_installed(little: Little, tmp_path: Path) -> None:
    given = lt.inputs(little, tmp_path / "tree", {"torch/csrc/Inner.h": "struct Inner { int x; };\n"})
    assert check_headers(given).detail.startswith("0 changed headers")
