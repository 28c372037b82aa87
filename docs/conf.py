"""What Sphinx needs to build these pages into a site (`make docs`), without the internet: the
theme brings its own fonts and scripts, and the search runs in the browser over an index."""

from __future__ import annotations

from sphinx.application import Sphinx

project = "Raylay"
copyright = "the authors of Raylay; Apache-2.0"
extensions = ["myst_parser"]
root_doc = "index"
html_theme = "furo"
html_title = "Raylay"
html_copy_source = False
myst_heading_anchors = 4  # so that links to headings work as they do where people read the files

CHAPTERS = {
    "Begin": ["getting-started", "order-service", "coming-from", "scenarios"],
    "Use": [
        "clients",
        "capacity",
        "fabric",
        "message-types",
        "filters",
        "sow",
        "sow-topics",
        "views",
        "queues",
        "actions",
        "events",
        "topology",
        "configuration",
        "pipeline",
    ],
    "Run": [
        "troubleshooting",
        "operations",
        "administration",
        "security",
        "journal",
        "files",
        "tracing",
        "logging",
        "drills",
    ],
    "Look up": [
        "python",
        "settings",
        "shell",
        "glossary",
        "codes",
        "protocol",
        "deviations",
        "architecture",
        "coverage",
    ],
}


def add_chapters(app: Sphinx, name: str, source: list[str]) -> None:
    """Gives the first page its table of contents, which only Sphinx can read."""
    if name == root_doc:
        for title, pages in CHAPTERS.items():
            source[0] += "\n\n```{toctree}\n:hidden:\n"
            source[0] += f":caption: {title}\n\n" + "\n".join(pages) + "\n```\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_chapters)
