"""Names in lines of code."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Lines that only make names known; the code that needs the names is further down.
_IMPORT = re.compile(rb"\s*(#\s*include\b|import\b|from\s+\S+\s+import\b|using\s|find_package\s*\()")


def imports_only(lines: Iterable[bytes]) -> bool:
    """Return whether lines do nothing but make names known."""
    return all(_IMPORT.match(line) or not line.strip() for line in lines)


def has_word(data: bytes, name: bytes) -> bool:
    """Return whether a file has a name as a whole word, wherever that is."""
    return name in data and re.search(rb"\b%s\b" % re.escape(name), data) is not None
