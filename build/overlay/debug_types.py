"""Layouts of types by debug information: sizes, members, bases, tables of virtual functions, enumerators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

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
    return str(sorted(_layout(target).items()))


def _function(die: DIE) -> str:
    arguments = (item for item in die.iter_children() if item.tag == "DW_TAG_formal_parameter")
    return f"{_name(die)}({', '.join(_type(item) for item in arguments if 'DW_AT_artificial' not in item.attributes)})"


def _member_function(die: DIE, owner: str) -> Iterator[tuple[str, str]]:
    """Yield a function that has a place in a table, or decides whether objects are passed in registers."""
    if _value(die, "DW_AT_virtuality"):
        yield f"virtual {_function(die)}", f"{_value(die, 'DW_AT_vtable_elem_location')} {_type(die)}"
    elif "DW_AT_artificial" not in die.attributes and _name(die) in {owner, f"~{owner}", "operator="}:
        spelt = _function(die)
        if _name(die) != owner or f"({owner}" in spelt:
            yield f"special {spelt}", "declared"


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
            yield from _member_function(item, _name(die))
        elif item.tag == "DW_TAG_enumerator":
            yield f"enumerator {_name(item)}", str(_value(item, "DW_AT_const_value"))


def _layout(die: DIE) -> dict[str, str]:
    return dict(_parts(die))


def _types(die: DIE, scope: str) -> Iterator[tuple[str, dict[str, str]]]:
    for item in die.iter_children():
        name = scope + _name(item)
        if item.tag in _CLASSES | {"DW_TAG_enumeration_type"} and "DW_AT_declaration" not in item.attributes:
            if _name(item):
                yield name, _layout(item)
        elif item.tag == "DW_TAG_typedef":
            yield name, {"type": _type(item)}
        if item.tag in _SCOPES:
            yield from _types(item, f"{name}::" if _name(item) else scope)


def read(path: Path) -> dict[str, Layout]:
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


#: Parts of a type that are named of those that differ.
_SHOWN = 3
