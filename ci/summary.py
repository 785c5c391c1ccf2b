"""Count the tests of several JUnit files: `python3 ci/summary.py dist/tests-*.xml dist/2.6.0/*.xml`.

It prints one closing line as pytest does, which CI systems look for: how many passed, failed, were skipped. `.ci/run`
ends with it. The exit status is 0 when tests passed and none failed, 1 when one failed or none passed, 2 when a file
cannot be read. It needs the standard library only.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def count(files: list[Path]) -> Counter[str]:
    """Return how many cases of all files passed, failed, were skipped.

    Raises:
        OSError: a file cannot be read.
        ElementTree.ParseError: a file is no XML.
    """
    found: Counter[str] = Counter()
    for path in files:
        for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314 - written by our own pytest runs
            bad = case.find("failure") is not None or case.find("error") is not None
            found["failed" if bad else "skipped" if case.find("skipped") is not None else "passed"] += 1
    return found


def main(arguments: list[str]) -> int:
    try:
        found = count([Path(item) for item in arguments])
    except (OSError, ElementTree.ParseError) as error:
        print(f"error: a result of tests cannot be read: {error}", file=sys.stderr)  # noqa: T201
        return 2
    line = f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped"
    print(f"{f' {line} ':=^80}")  # noqa: T201
    print(line)  # noqa: T201
    return int(found["failed"] > 0 or found["passed"] == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
