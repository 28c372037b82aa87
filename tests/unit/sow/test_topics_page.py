"""docs/sow-topics.md: its examples run, its file declares what it says, its table has every key."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from raylay.services.configuration.sow_topics import SowTopicSettings
from raylay.services.configuration.yaml_file import parse

pytestmark = pytest.mark.covers("SOW", "`sow_topics` of a fabric and of an instance")

PAGE = Path(__file__).parents[3] / "docs" / "sow-topics.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_examples_run() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0 and found.attempted >= 9


def test_the_file_declares_it() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    settings = parse(text)
    (orders, ticks) = settings.sow_of(settings.instances[0])
    assert (orders.keys, ticks.pattern, ticks.rules.lifetime_us) == (
        ("/id",),
        "^ticks/",
        3_600_000_000,
    )


def test_the_table_has_every_key() -> None:
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == set(SowTopicSettings.model_fields)
