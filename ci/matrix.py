"""The jobs of a build: `python3 ci/matrix.py` prints each release with the Pythons to build for, as JSON.

A release is in the matrix when a series has its patches. Standard library only (Python 3.11), so that the job that
computes the matrix installs nothing. With GITHUB_OUTPUT it writes `matrix=…` there, as GitHub's jobs read it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPO = Path(__file__).resolve().parent.parent
#: Pythons that no runner installs any more, or that this project's tooling and tests do not know.
OLDEST = (3, 10)


def rows(repo: Path = REPO, releases: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Return one row for each release and Python, `{"release": …, "python": …}`, the newest release first.

    Args:
        releases: only these; empty for all.

    Raises:
        ValueError: a named release is not known, or has no patches.
    """
    known = tomllib.loads((repo / "build" / "releases.toml").read_text(encoding="utf-8"))["release"]
    ported = {version: entry for version, entry in known.items() if _ported(repo, version, entry)}
    if strange := [version for version in releases if version not in ported]:
        raise ValueError(f"no patches for {', '.join(strange)}; known: {', '.join(ported)}")
    wanted = sorted(releases or ported, key=_key, reverse=True)
    return [{"release": version, "python": python} for version in wanted for python in _pythons(ported[version])]


def _ported(repo: Path, version: str, entry: dict[str, Any]) -> bool:
    """Tell if every series of a release has all its patches for it: a manifest names those that are missing."""
    paths = (repo / "patches" / name / "manifest.toml" for name in entry.get("series", []))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    manifests = [tomllib.loads(text).get("release", {}).get(version) for text in texts]
    return bool(manifests) and all(found and found.get("patches") and not found.get("missing") for found in manifests)


def _pythons(entry: dict[str, Any]) -> list[str]:
    return [python for python in entry["wheel"]["pythons"] if _key(python) >= OLDEST and python[-1].isdigit()]


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", help="only these releases")
    try:
        found = rows(REPO, tuple(parser.parse_args().releases))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    text = json.dumps({"include": found})
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(f"matrix={text}\n")
    print(text)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
