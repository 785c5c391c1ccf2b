"""Headers, units, and which units include a header, by the text of a tree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.M)
_HEADERS = (".h", ".hpp", ".cuh", ".inl", ".inc")
_UNITS = (".cpp", ".cc", ".cu", ".mm")
_ROOTS = ("torch", "aten/src/ATen", "c10", "caffe2")
#: Code is generated from these while the release is built; its includes are in their texts.
GENERATORS = ("aten/src/ATen/templates/", "tools/autograd/", "tools/jit/", "torchgen/")
#: Parts of a name that are in no path.
_UP = re.compile(r"\.?\./|//")
#: A header in the text of a generator: by a path, or included; a file name alone is that of a file that is written.
_NAMED = re.compile(rb"""(?:(?<![\w/])(?=\w[\w/]*/)|include *\\?["<][^">\n]*?(?<!\w))([\w/]+\.(?:h|hpp))\b""")
#: Not part of any library of the wheel. Of ATen/{vulkan,metal} and native/miopen it is: these say what torch lacks.
_OUTSIDE_WHEEL = re.compile(
    r"(^|/)(test|tests|benchmark|benchmarks|mps|xpu|hip|ios|android)/|ATen/(native/vulkan|native/metal|miopen)/"
    r"|_test\.cpp$|(^|/)test_"
)
#: A condition of the preprocessor on one macro, which has to be defined; and any other line that nests.
_ONLY_WITH = re.compile(
    r"[ \t]*#[ \t]*(?:ifdef[ \t]+(\w+)|if[ \t]+defined[ \t]*\(?[ \t]*(\w+)[ \t]*\)?)[ \t]*(?://.*)?$"
)
#: What registers names when a unit is loaded, which the link of an overlay refuses (`link`).
_REGISTERS = re.compile(
    r"^[ \t]*(?:(?:static|const|torch::jit::)[ \t]+)*(?:TORCH_LIBRARY(?:_IMPL|_FRAGMENT)?\([\w, ]+|"
    r"C10_REGISTER_(?:TYPED_)?(?:CLASS|CREATOR)\w*\(\w+|C10_DEFINE_(?:bool|u?int\d*|double|string)\(\s*\w+|"
    r"REGISTER_CUDA_HOOKS\(\w+|REGISTER_(?:NATIVE_)?OPERATOR_FUNCTOR\(|"
    r"RegisterOperators(?:[ \t]+const)?[ \t]+\w+(?=[ \t]*[({]))",
    re.M,
)
_NESTS = re.compile(r"[ \t]*#[ \t]*(if|el|endif)")


def outside_wheel(path: str) -> bool:
    """Return whether a unit is in no library of the CUDA wheels: tests, and code for other devices."""
    return bool(_OUTSIDE_WHEEL.search(path))


def alive(source: str, undefined: Collection[str]) -> tuple[str, str]:
    """Return what is left of a unit's text without the blocks under macros that are not defined, and such a macro.

    Only a condition on one macro alone is understood: `#ifdef NAME`, `#if defined(NAME)`.
    """
    found, within, left = "", list[bool](), list[str]()
    for line in source.splitlines():
        only, nests = _ONLY_WITH.match(line), _NESTS.match(line)
        macro = next(filter(None, only.groups()), "") if only else ""
        if nests and nests[1] == "if":
            within.append(macro in undefined)
            found = macro if within[-1] else found
        elif nests and within:
            within.pop()
            within += [False] if nests[1] == "el" else []
        elif not any(within):
            left.append(line)
    return "\n".join(left), found


def registration(source: str) -> str:
    """Return how a unit registers names that a process can have once, by its text without comments; else empty."""
    found = _REGISTERS.search(source)
    return " ".join(found[0].split()) if found else ""


def is_header(path: str) -> bool:
    return path.endswith(_HEADERS)


def installed(path: str) -> str:
    """Return how a header of the tree is named below the wheel's `torch/include`."""
    return path.removeprefix("aten/src/")


def is_unit(path: str) -> bool:
    """Return whether a changed path is a host translation unit that an overlay can recompile."""
    return path.endswith((".cpp", ".cc")) and path.startswith(("torch/csrc/", "aten/src/", "c10/"))


def includers(tree: Path) -> dict[str, set[str]]:
    """Return for each header, as `#include` names it, the files that include it or name it to generate code.

    Of a name, what comes after its last `..` counts: the path of the header ends with that, whatever folder the
    compiler finds it in. One includer too many only requires a reason, one too few breaks a layout.
    """
    by_header: dict[str, set[str]] = defaultdict(set)
    for root in (*_ROOTS, *GENERATORS):
        pattern, more = (_NAMED, (".in", ".py")) if root in GENERATORS else (_INCLUDE, ())
        for path in (tree / root).rglob("*"):
            if path.suffix in (*_HEADERS, *_UNITS, *more) and path.is_file():
                for name in pattern.findall(path.read_bytes()):
                    end = _UP.split(name.decode("utf-8", "replace"))[-1].lstrip("/")
                    by_header[end].add(str(path.relative_to(tree)))
    return by_header


def units_including(by_header: Mapping[str, set[str]], header: str) -> frozenset[str]:
    """Return the units and `GENERATORS` that include `header`, directly or through other headers."""
    seen: set[str] = set()
    todo = [header]
    while todo:
        parts = todo.pop().split("/")  # an `#include` can name it by each end of its path
        ends = ("/".join(parts[place:]) for place in range(len(parts)))
        including = {path for end in ends for path in by_header.get(end, ())}
        for includer in including - seen:
            seen.add(includer)
            if is_header(includer):
                todo.append(includer)
    found = (item for item in seen if item.endswith(_UNITS) or item.startswith(GENERATORS))
    return frozenset(item for item in found if not _OUTSIDE_WHEEL.search(item))
