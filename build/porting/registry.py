"""Record a port: a new release in `build/releases.toml`, its patches in a series' manifest."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import tomli_w

from build import releases
from build.console import step
from build.errors import ReleaseDataError
from build.official.facts import WheelFacts, read_facts
from build.paths import atomic_write
from build.releases import Release
from build.series import manifest as manifests
from build.series.manifest import ReleaseEntry


def known_release(version: str, like: str, path: Path = releases.RELEASES_TOML) -> Release:
    """Return a release's entry; a new one is made from its official wheel, with the macros and compiler of `like`.

    Raises:
        SourceError: the index does not have the release.
    """
    known = releases.parse(path.read_bytes(), path.name)
    if version in known:
        return known[version]
    step(f"release {version} is new: reading its official wheel")
    # The build ids come later: they are deep in wheels of 770 MB, and the port may still fail.
    text = entry_text(read_facts(version, build_ids=False), known[like])
    _write(path, path.read_bytes().rstrip(b"\n") + b"\n\n" + text.encode())
    return releases.parse(path.read_bytes(), path.name)[version]


def entry_text(facts: WheelFacts, like: Release) -> str:
    """Return the TOML of a release that is not verified by a person yet."""
    reason, version = f"as in {like.version}; the wheel's own pin where it has one", facts.wheel.version
    pins = {item.name: facts.requires.get(item.name, item.version) for item in like.header_packages}
    defines = (msgspec.structs.replace(item, reason=f"as in {like.version}") for item in like.defines)
    entry = {
        "version": version,
        "tag": f"v{version}",
        "commit": facts.commit,
        "cxx_standard": facts.cxx_standard,
        "min_gcc": like.min_gcc,
        "notes": f"Entered by regenerate-patch. Macros and header packages are those of {like.version}: not verified.",
        "defines": [msgspec.to_builtins(item) for item in defines],
        "header_packages": [{"name": name, "version": pin, "reason": reason} for name, pin in pins.items()],
        "wheel": msgspec.to_builtins(facts.wheel),
    }
    return tomli_w.dumps({"release": {version: entry}})


def fill_build_ids(version: str, path: Path = releases.RELEASES_TOML) -> None:
    """Read the build ids of a release that was entered without them: an overlay is bound to them.

    Raises:
        SourceError: the index no longer has the release.
    """
    known = releases.parse(path.read_bytes(), path.name)[version]
    if known.wheel.libtorch_cuda_build_ids:
        return
    ids = read_facts(version).wheel.libtorch_cuda_build_ids
    head = f'[release."{version}".wheel.libtorch_cuda_build_ids]\n'.encode()
    lines = "".join(f'"{python}" = "{value}"\n' for python, value in ids.items()).encode()
    _write(path, path.read_bytes().replace(head, head + lines, 1))


def _write(path: Path, data: bytes) -> None:
    releases.parse(data, path.name)
    with atomic_write(path) as part:
        part.write_bytes(data)
    releases.load.cache_clear()


def set_series(version: str, series: str, path: Path = releases.RELEASES_TOML) -> None:
    """Note in a release's entry that `series` applies to it."""
    known = releases.parse(path.read_bytes(), path.name)[version]
    if series in known.series:
        return
    data = path.read_bytes()
    start = data.index(f'[release."{version}"]'.encode())
    names = ", ".join(f'"{name}"' for name in (*known.series, series))
    line = f"series = [{names}]".encode()
    stop = data.find(b"\n[", start)
    stop = len(data) if stop < 0 else stop
    block, found = re.subn(rb"^series = .*$", line, data[start:stop], flags=re.MULTILINE)
    if not found:
        block = block.replace(b"\n", b"\n" + line + b"\n", 1)
    _write(path, data[:start] + block + data[stop:])


def write_entry(folder: Path, version: str, entry: ReleaseEntry | None) -> None:
    """Write, replace or (None) remove a release's entry in the manifest of `folder`; the rest of it is not changed.

    Raises:
        ReleaseDataError: the manifest would not be valid then; it is not changed.
    """
    path = folder / "manifest.toml"
    text = path.read_text(encoding="utf-8")
    block = tomli_w.dumps({"release": {version: msgspec.to_builtins(entry)}}) if entry else ""
    # An entry ends before the next table that is not its own, or the comment above that.
    name, head = re.escape(version), re.escape(f'[release."{version}"]')
    found = re.search(rf'^{head}\n(?:(?!^\[(?!\[?release\."{name}")|^#).*\n?)*', text, re.MULTILINE)
    if found:
        after = text[found.end() :]
        text = text[: found.start()] + block + ("\n" if block and after else "") + after
    elif entry:
        text = text.rstrip("\n") + "\n\n" + block
    data = (text.rstrip("\n") + "\n").encode("utf-8")
    if manifests.parse(data, f"{folder.name}/manifest.toml").release.get(version) != entry:
        raise ReleaseDataError(f"cannot enter {version} into {path}", remedy="enter it by hand")
    with atomic_write(path) as part:
        part.write_bytes(data)
