"""Lets editors and type checkers find the editable install of this tree; run by the environment's
Python: `.venv/bin/python deploy/type_links.py`.

An editable install is an import hook, which no static tool follows. What they follow is a stub
package, a folder `raylay-stubs` beside the installed packages. Python imports nothing of it, so
that a program runs what it did. Here it is a folder of links into the tree, which is never out of
date.

mypy reads the top of a stub package from no `.py` file, and Pyright (Pylance) warns of a missing
source where it finds a `.pyi` file there. So mypy takes the top from `raylay.pyi` beside the
folder.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOP = "services/api/__init__.py"
LINKS = {
    "raylay.pyi": TOP,
    "raylay-stubs/__init__.py": TOP,
    "raylay-stubs/py.typed": "services/api/py.typed",
    "raylay-stubs/actors": "actors",
    "raylay-stubs/services": "services",
    "raylay-stubs/storage": "storage",
}
"""The links of an environment, and where each leads in the tree."""


def link_types(site: Path) -> None:
    """Writes the links into a folder of installed packages, the `site-packages` of an
    environment."""
    for name, target in LINKS.items():
        link = site / name
        link.parent.mkdir(parents=True, exist_ok=True)
        fresh = link.with_name(f".{link.name}.new")
        fresh.unlink(missing_ok=True)
        # Relative: an environment lies in its tree, and may move with it.
        fresh.symlink_to(os.path.relpath(ROOT / target, link.parent))
        fresh.replace(link)


if __name__ == "__main__":
    link_types(Path(sysconfig.get_path("purelib")))
