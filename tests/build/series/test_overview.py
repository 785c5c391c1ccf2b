from __future__ import annotations

import ast
import re
from html.parser import HTMLParser
from pathlib import Path

from rich.console import Console

from build.commands import patches
from build.commands.patches import page
from build.paths import REPO
from build.series.overview import PatchStatus, Progress, overview

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


def test_every_status(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    found = overview(tmp_path, ["3.0", "0.9"])
    assert [column.release for column in found.columns] == ["0.9", "1.0", "2.0", "2.1", "3.0"]
    assert [column.progress.word for column in found.columns][::4] == ["not needed", "not ported"]
    one, two = ([cell.status for cell in cells] for _, cells in found.rows)
    proven, unproven, upstream = PatchStatus.PROVEN, PatchStatus.UNPROVEN, PatchStatus.UPSTREAM
    assert one == [PatchStatus.NOT_NEEDED, proven, unproven, PatchStatus.NOT_NEEDED, PatchStatus.MISSING]
    assert two == [PatchStatus.NOT_NEEDED, proven, upstream, upstream, upstream]


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    port = '{"patches": [{"verdicts": [{"verdict": "clean"}, {"verdict": "drifted", "method": "human"}]}]}'
    (tmp_path / "2.0").mkdir()
    (tmp_path / "2.0" / "port.json").write_text(port)
    text = page([overview(tmp_path, ["3.0"])])
    assert 'title="1 clean"' in text
    assert "2 hunks:" in text
    assert "1 by hand" in text
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


def test_each_colour_means_one_thing_and_each_bar_has_its_key(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    (tmp_path / "2.0").mkdir()
    verdicts = ", ".join(f'{{"verdict": "{word}"}}' for word in ("clean", "offset", "drifted", "conflict"))
    (tmp_path / "2.0" / "port.json").write_text(f'{{"patches": [{{"verdicts": [{verdicts}]}}]}}')
    text = page([overview(tmp_path, ["3.0"])])
    bar = re.findall(r'<i style="flex:\d+;background:var\((--\w+)\)">', text)
    key = re.findall(r'<li title="[^"]+"><i style="background:var\((--\w+)\)">', text)
    assert bar == key == ["--hunk1", "--hunk2", "--hunk5"]
    colours = dict(re.findall(r"(--\w+): (#\w+)", text.partition("@media")[0]))
    shown = [colours[name] for name in colours if name.startswith("--hunk")]
    shown += [colours[f"--{name}"] for name in {item.colour for item in (*PatchStatus, *Progress)}]
    assert len(shown) == len(set(shown)) == 10


def test_no_column_is_wider_than_a_narrow_screen(tmp_path: Path) -> None:
    """A table may scroll in its card; what is outside of one may not ask for more than the screen has."""
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    text = page([overview(tmp_path, [])])
    fixed = re.findall(r"(?<!max-)(?:min-width|minmax\(|[; ]width): ?(\d+)px", text)
    assert all(int(width) < 300 for width in fixed)
    assert "minmax(330px" not in text


def test_the_table_cuts_nothing_on_a_narrow_terminal(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    console = Console(width=50)
    with console.capture() as seen:
        console.print(patches._table(overview(tmp_path, ["3.0", "10.20.30"])))
    assert "…" not in seen.get()


def test_the_columns_of_all_tables_fold() -> None:
    """rich cuts what has no room, unless told otherwise."""
    sources = [path for name in ("build", "ci", "gpuless", "multiworld") for path in (REPO / name).rglob("*.py")]
    calls = [
        (path, node) for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]
    columns = [(path, call) for path, call in calls if getattr(call.func, "attr", "") == "add_column"]
    assert columns
    assert [str(path) for path, call in columns if "overflow='fold'" not in ast.unparse(call)] == []
    tables = [(path, call) for path, call in calls if getattr(call.func, "id", "") == "Table"]
    titled = [str(path) for path, call in tables if any(isinstance(word, ast.Constant) for word in call.args)]
    assert titled == [], "a header that is given to Table is cut"
