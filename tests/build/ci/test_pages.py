"""The Markdown pages: lines of prose fit a narrow window, and relative links lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from build.git import Git
from build.paths import REPO

#: `regenerate-patch` writes PORT.md.
PAGES = [REPO / name for name in Git(REPO).out("ls-files", "*.md").decode().split() if not name.endswith("PORT.md")]
_CODE = re.compile(r"^```.*?^```$|^    .*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges make them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_a_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$|^    .*?$|^\|.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 100] == []
    for link in re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", text)):
        path, _, heading = link.partition("#")
        if "://" not in link:
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not heading or heading in headings(target), link
