"""docs/architecture.md names what is there: files, folders, and what is defined in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from unit.test_architecture import ROOMS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
GUIDE = ROOT / "CONTRIBUTING.md"
PLACE = re.compile(r"`((?:actors|docs|services|storage|tests)/[\w./-]*)(?:::(\w+))?`")
BARE = re.compile(r"`(_?[A-Z]\w*[a-z]\w*)(?:\.(\w+))?(?:\(\))?`")
"""A class or a type by its name alone, or one of its members."""
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def unknown(text: str) -> Iterator[str]:
    """The places that a text names and that are not there."""
    for place, name in PLACE.findall(text):
        path = ROOT / place
        if not (path.is_dir() if place.endswith("/") else path.exists()):
            yield place
        elif name:
            files = sorted(path.glob("*.py")) if path.is_dir() else [path]
            defined = re.compile(rf"^\s*(?:async def|def|class) {name}\b", re.MULTILINE)
            if not any(defined.search(file.read_text(encoding="utf-8")) for file in files):
                yield f"{place}::{name}"


@cache
def sources() -> dict[str, str]:
    """What of the code defines each class and each named type."""
    found: dict[str, str] = {}
    for room in ("actors", "services", "storage"):
        for file in sorted((ROOT / room).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            for name in re.findall(r"^(?:class )?(_?[A-Z]\w*)\b(?=[(:]| = )", text, re.MULTILINE):
                found[name] = found.get(name, "") + text
    return found


def bare(text: str) -> Iterator[str]:
    """The classes that a text names without their files, and that are nowhere."""
    for name, member in BARE.findall(FENCED.sub("", text)):
        source = sources().get(name)
        if source is None or (
            member and not re.search(rf"^\s+(?:(?:async )?def )?{member}\b", source, re.MULTILINE)
        ):
            yield f"{name}.{member}" if member else name


@pytest.mark.parametrize("page", [PAGE, GUIDE], ids=lambda path: path.name)
def test_the_classes_that_the_page_names_are_there(page: Path) -> None:
    assert not list(bare(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`PublishBatch` stays one block", ["PublishBatch"]),
        ("`Run`, `_WakeSocket`, and a type: `Rooted`", []),
        ("`FeatureRegistry.enlist` and `FeatureRegistry.nothing`", ["FeatureRegistry.nothing"]),
        ("`ROOMS`, `SCM_RIGHTS`, `make docs`, `processed`", []),
        ("```\n`Nothing`\n```\nbehind it `Nowhere`", ["Nowhere"]),
    ],
)
def test_a_class_that_is_nowhere_is_found(text: str, found: list[str]) -> None:
    assert list(bare(text)) == found


@pytest.mark.parametrize("page", [PAGE, GUIDE], ids=lambda path: path.name)
def test_what_the_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(PLACE.findall(text)) >= 5
    assert not list(unknown(text))


def test_every_room_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [room for room in ROOMS if f"services/{room}/" not in text]
    assert not missing, f"not on the page: {missing}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`services/nowhere/`", ["services/nowhere/"]),
        ("`services/messages/ranges.py::PublisherRanges`", []),
        ("`services/messages/ranges.py::Nothing`", ["services/messages/ranges.py::Nothing"]),
        ("`services/replication/instance/::committed`", []),
        ("`services/replication/instance/::nothing`", ["services/replication/instance/::nothing"]),
        ("`storage/nothing.py`", ["storage/nothing.py"]),
    ],
)
def test_a_name_that_is_not_there_is_found(text: str, found: list[str]) -> None:
    assert list(unknown(text)) == found
