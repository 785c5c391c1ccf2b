"""Settings of the manual as a site, which `nox -s docs` makes.

The pages are those that a reader of the repository finds; the reference is made from docstrings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "multiworld"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "README"
pages = {
    "The package": "quickstart process-groups from-torch from-torchft elastic supervision fault-model nccl threat-model"
    " metrics migration switchml reference",
    "Wheels": "/patches/nccl/README /patches/nccl/nccl2 any-patch porting full-build wheelhouse cluster"
    " /patches/nccl/*/PORT",
    "Figures": "figures notes/engine notes/speed notes/nccl-speed notes/data-races notes/members-in-one-process"
    " notes/many-units notes/porting-ablation notes/real-ports",
    "The project": "/CONTRIBUTING /CHANGELOG /gpuless/README /patches/switchml/README",
}
folders = "", "docs/", "docs/notes/", "patches/*/", "patches/nccl/*/", "gpuless/"
include_patterns = [f"{folder}*.md" for folder in folders]
html_theme = "furo"
html_title = "multiworld"
html_show_sourcelink = False
html_show_copyright = False
myst_heading_anchors = 4
# The reference is made from the sources alone: neither torch nor the compiled engine is needed.
autodoc_mock_imports = ["torch"]
autodoc_typehints_format = "short"


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the list of all pages to README, where a forge would show it as code."""
    if name == app.config.root_doc:
        for caption, found in pages.items():
            lines = [page if page.startswith("/") else f"/docs/{page}" for page in found.split()]
            options = ":hidden:", ":glob:", ":titlesonly:", f":caption: {caption}", ""
            source[0] += "\n".join(["\n```{toctree}", *options, *lines, "```"])


def add_entry(app: Sphinx, _: Exception | None) -> None:
    """Lead from the name that web servers look for to the first page."""
    Path(app.outdir, "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n')


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
    app.connect("build-finished", add_entry)
