"""docs/message-types.md: its examples run, and its table is what the types say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from raylay.services.messages.types.definitions import REFUSED
from raylay.services.messages.types.registry import KINDS

pytestmark = pytest.mark.covers("Message types", "the page's examples")

PAGE = Path(__file__).parents[2] / "docs" / "message-types.md"


def test_the_examples_run() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0 and found.attempted >= 15


def test_every_type_is_told() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert rows == set(KINDS)
    assert all(f"There is no `{name}`" in text for name in REFUSED)
