"""Installed headers whose change leaves code outside of the overlay with another class, value or body.

Extensions are compiled against `torch/include`, and bind stock's functions: the overlay is in the scope of torch's own
libraries only. So what they have compiled in of a header must be the same with and without the patch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

from build.console import counted, step
from build.errors import CompileError, NeedsFullBuildError
from build.overlay import declarations, layout
from build.overlay.flags import code_flags, path_flags, said_flags
from build.overlay.model import Check, Inputs
from build.overlay.objects import compile_failure, jobs, override_headers, with_submodules
from build.overlay.toolchain import run_compiler
from build.process import run_together

#: Parts of a type that are named of those that differ.
_SHOWN = 3
_REBUILT = "--extensions-rebuilt"
_WHO = (
    "extensions that include it have stock's form compiled in, and bind stock's functions; so do those that are "
    "compiled anew, unless they are linked to the overlay before torch's libraries"
)
_REMEDY = (
    "keep the header as it is: put what is new into a unit, or beside what is there; or have each extension that "
    f"includes it compiled anew and linked to the overlay first, and say so: {_REBUILT} (docs/any-patch.md)"
)
#: Debug information of all types of a header, used or not, in a program that never runs; the linker relocates it.
_DEBUG = ("-O0", "-g", "-fno-eliminate-unused-debug-types", "-nostdlib", "-no-pie")
_WHOLE_CLASSES = {True: "-fstandalone-debug", False: "-femit-class-debug-always"}
_LINK = ("--unresolved-symbols=ignore-all", "-e0", "--defsym=__dso_handle=0")
_CLASSES = frozenset({"DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type"})
_SCOPES = _CLASSES | {"DW_TAG_namespace", "DW_TAG_compile_unit"}
_MODIFIERS = {
    "DW_TAG_pointer_type": "*",
    "DW_TAG_reference_type": "&",
    "DW_TAG_rvalue_reference_type": "&&",
    "DW_TAG_const_type": " const",
    "DW_TAG_volatile_type": " volatile",
    "DW_TAG_array_type": "[]",
    "DW_TAG_ptr_to_member_type": "::*",
    "DW_TAG_atomic_type": " atomic",
    "DW_TAG_restrict_type": "",
    "DW_TAG_typedef": "",
}
#: Parts of a type by what they are called, e.g. `size` and `member x`, and what debug information says of each.
Layout = Mapping[str, str]


def _name(die: DIE) -> str:
    found = _value(die, "DW_AT_name")
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""


def _value(die: DIE, attribute: str) -> object:
    found = die.attributes.get(attribute)
    return found.value if found else None


def _type(die: DIE) -> str:
    """Return how the type of a member is written; one without a name by all that it has."""
    if "DW_AT_type" not in die.attributes:
        return "void"
    target = die.get_DIE_from_attribute("DW_AT_type")
    if target.tag in _MODIFIERS:
        counts = [str(_value(item, "DW_AT_upper_bound")) for item in target.iter_children()]
        return _type(target) + _MODIFIERS[target.tag] + ",".join(counts)
    if target.tag == "DW_TAG_subroutine_type":
        return f"{_type(target)}({', '.join(_type(item) for item in target.iter_children())})"
    if name := _name(target):
        return f"{name} of {size}" if (size := _value(target, "DW_AT_byte_size")) else name
    return str(sorted(_parts(target)))


def _function(die: DIE) -> str:
    arguments = (item for item in die.iter_children() if item.tag == "DW_TAG_formal_parameter")
    return f"{_name(die)}({', '.join(_type(item) for item in arguments if 'DW_AT_artificial' not in item.attributes)})"


def _parts(die: DIE) -> Iterator[tuple[str, str]]:
    for name in ("byte_size", "alignment"):
        yield name.replace("_", " "), str(_value(die, f"DW_AT_{name}"))
    for number, item in enumerate(die.iter_children()):
        place = _value(item, "DW_AT_data_member_location")
        if item.tag == "DW_TAG_member" and "DW_AT_external" not in item.attributes:
            bits = (_value(item, "DW_AT_data_bit_offset"), _value(item, "DW_AT_bit_size"))
            yield f"member {_name(item) or number}", f"{_type(item)} at {place}" + (f" bits {bits}" if bits[1] else "")
        elif item.tag == "DW_TAG_inheritance":
            yield f"base {_type(item)}", f"at {place}, virtual {_value(item, 'DW_AT_virtuality')}"
        elif item.tag == "DW_TAG_subprogram":
            # A function that has a place in a table, or decides whether objects are passed in registers.
            owner = _name(die)
            if _value(item, "DW_AT_virtuality"):
                yield f"virtual {_function(item)}", f"{_value(item, 'DW_AT_vtable_elem_location')} {_type(item)}"
            elif "DW_AT_artificial" not in item.attributes and _name(item) in {owner, f"~{owner}", "operator="}:
                spelt = _function(item)
                if _name(item) != owner or f"({owner}" in spelt:
                    yield f"special {spelt}", "declared"
        elif item.tag == "DW_TAG_enumerator":
            yield f"enumerator {_name(item)}", str(_value(item, "DW_AT_const_value"))


def _types(die: DIE, scope: str) -> Iterator[tuple[str, dict[str, str]]]:
    for item in die.iter_children():
        name = scope + _name(item)
        if item.tag in _CLASSES | {"DW_TAG_enumeration_type"} and "DW_AT_declaration" not in item.attributes:
            if _name(item):
                yield name, dict(_parts(item))
        elif item.tag == "DW_TAG_typedef":
            yield name, {"type": _type(item)}
        if item.tag in _SCOPES:
            yield from _types(item, f"{name}::" if _name(item) else scope)


def read_types(path: Path) -> dict[str, Layout]:
    """Return the types of a linked program by their full names; those without a name are in what has them."""
    with path.open("rb") as stream:
        info = ELFFile(stream).get_dwarf_info()
        return dict(found for unit in info.iter_CUs() for found in _types(unit.get_top_DIE(), ""))


def differences(before: Mapping[str, Layout], after: Mapping[str, Layout]) -> list[str]:
    """Return one line for each type that is gone or has another layout; more enumerators are none."""
    found = []
    for name, old in before.items():
        new = after.get(name, {})
        parts = [part for part in old.keys() | new.keys() if old.get(part) != new.get(part)]
        parts = sorted(part for part in parts if part in old or not part.startswith("enumerator"))
        if parts:
            said = (f"{part}: {old.get(part, 'none')}, now {new.get(part, 'none')}" for part in parts[:_SHOWN])
            found.append(f"{name}: " + ("; ".join(said) if new else "it is gone"))
    return found


def _probe(inputs: Inputs, header: str, overrides: Path, target: Path) -> dict[str, Layout]:
    """Return the types of a header and of all that it includes; headers in the folder `overrides` come first."""
    source = target.with_suffix(".cpp")
    source.write_text(f"#include <{layout.installed(header)}>\n", encoding="utf-8")
    whole = _WHOLE_CLASSES["clang" in inputs.toolchain.identity]
    flags = (*code_flags(inputs.release), *said_flags(inputs.defines), *_DEBUG, whole)
    line: list[str | Path] = [inputs.toolchain.cxx, *flags, *(f"-Wl,{item}" for item in _LINK)]
    done = run_compiler([*line, *path_flags(inputs, overrides), source, "-o", target], timeout=1800)
    if done.returncode:
        raise compile_failure(inputs, f"{header}, included alone", done)
    return read_types(target)


def _layouts(inputs: Inputs, header: str) -> list[str]:
    """Return the types that have another layout with the patched headers than with the wheel's."""
    with tempfile.TemporaryDirectory(prefix="layouts-") as scratch:
        folders = [Path(scratch) / name for name in ("stock", "patched")]
        for folder in folders:
            folder.mkdir()
        override_headers(inputs, folders[1])
        probes = [partial(_probe, header=header, overrides=folder, target=folder / "probe") for folder in folders]
        tasks = [partial(with_submodules, inputs, probe) for probe in probes]
        before, after = run_together(tasks, jobs(inputs.jobs))
    return differences(before, after)


def _differing(inputs: Inputs, header: str) -> list[str]:
    """Return what a header has otherwise, from its text if that tells, else from debug information."""
    new = (inputs.tree / header).read_text(encoding="utf-8", errors="surrogateescape")
    if (found := declarations.differing(inputs.originals[header], new)) is not None:
        return found
    if inputs.extensions_rebuilt:
        return ["its types were not compared"]
    step(f"comparing the types of {header} with the official wheel's")
    try:
        return _layouts(inputs, header)
    except CompileError as error:
        raise CompileError(error.what, cause=error.cause, remedy=f"{error.remedy}; or {_REMEDY}") from None


def check_headers(inputs: Inputs) -> Check:
    """Compare the installed headers that the patches change with those of the wheel.

    Raises:
        NeedsFullBuildError: a layout, a table of virtual functions, an inlined body or a value differs, and neither
            does the series' manifest declare the header safe, nor are extensions said to be rebuilt.
        CompileError: a header cannot be compiled alone, so that its types cannot be compared.
    """
    changed = [path for path in sorted(inputs.changed) if layout.is_header(path) and path not in inputs.safe_headers]
    installed = [path for path in changed if (inputs.include / layout.installed(path)).is_file()]
    found = {path: lines for path in installed if (lines := _differing(inputs, path))}
    if found and not inputs.extensions_rebuilt:
        cause = "\n".join([*(f"{path}: {line}" for path in found for line in found[path]), _WHO])
        what = "the patch changes what extensions have compiled in of installed headers"
        raise NeedsFullBuildError(what, cause=cause, remedy=_REMEDY)
    said = [f"every extension that includes {path} must be compiled anew: {'; '.join(found[path])}" for path in found]
    same = f"{counted(len(installed) - len(found), 'changed header')} as extensions have compiled it in"
    return Check("extensions see no other layout, body or value", True, "; ".join([*said, same]))
