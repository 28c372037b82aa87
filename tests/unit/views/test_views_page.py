"""docs/views.md: its file declares what it says, its tables have every key and every aggregate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raylay.services.configuration.topology import problems
from raylay.services.configuration.views import ConflatedTopicSettings, ViewSettings
from raylay.services.configuration.yaml_file import parse
from raylay.services.expressions.functions.aggregates import AGGREGATES

pytestmark = pytest.mark.covers("Views", "`views` of a fabric and of an instance")

PAGE = Path(__file__).parents[3] / "docs" / "views.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_file_declares_it() -> None:
    settings = parse(re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[0])
    assert problems(settings) == []
    delays, named = settings.views_of(settings.instances[0])
    assert delays.grouping == ("/carrier", "/airport") and len(delays.projection) == 5
    slow = settings.conflated_topics[0].definition()
    assert (slow.topic, slow.interval_us) == ("delays", 1_000_000)
    assert named.joins == ("[delays]./carrier = [carriers]./code",)


def test_the_tables_have_every_key_and_every_aggregate() -> None:
    reference = TEXT[TEXT.index("## Reference") :]
    rows = [line.split("|")[1] for line in reference.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    settings = set(ViewSettings.model_fields) | set(ConflatedTopicSettings.model_fields)
    assert told == {name.removesuffix("_ms") for name in settings} | set(AGGREGATES)
