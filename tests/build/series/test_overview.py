from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from build.series.overview import PatchStatus, overview
from build.series.page import page

MANIFEST = """
[series]
name = "s"
purpose = "a < b & c"
legacy_from = "3.0"
legacy_reason = "old backend"
[[patch]]
id = "one"
slug = "one"
reason = "because <script>"
applies = ">=1.0"
[[patch]]
id = "two"
slug = "two"
reason = "because"
applies = ">=1.0,<2"
applied_upstream = "2.0"
[release."1.0"]
base_commit = "1111111111111111111111111111111111111111"
patches = ["one", "two"]
verified = "probed"
[release."2.0"]
base_commit = "1111111111111111111111111111111111111111"
derived_from = "1.0"
patches = ["one"]
verified = "ported"
[release."2.1"]
base_commit = "1111111111111111111111111111111111111111"
patches = []
not_applicable = [{ id = "one", reason = "rewritten" }]
"""


def test_every_standing(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    found = overview(tmp_path, ["3.0", "0.9"])
    assert [column.release for column in found.columns] == ["0.9", "1.0", "2.0", "2.1", "3.0"]
    one, two = ([cell.standing for cell in row.cells] for row in found.rows)
    need, unverified, upstream = PatchStatus.NEEDED, PatchStatus.UNVERIFIED, PatchStatus.UPSTREAM
    assert one == [PatchStatus.NOT_APPLICABLE, need, unverified, PatchStatus.NOT_APPLICABLE, PatchStatus.MISSING]
    assert two == [PatchStatus.NOT_APPLICABLE, need, upstream, upstream, upstream]


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    port = '{"patches": [{"verdicts": [{"verdict": "clean"}, {"verdict": "drifted", "method": "human"}]}]}'
    (tmp_path / "2.0").mkdir()
    (tmp_path / "2.0" / "port.json").write_text(port)
    text = page([overview(tmp_path, ["3.0"])])
    assert "1 clean, 1 by hand" in text
    assert "<script>" not in text
    assert "http" not in text

    class Balance(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.cells = 0

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
            if tag not in {"meta", "br"}:
                self.open.append(tag)
            self.cells += tag == "td"

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert balance.cells == 2 * 4
