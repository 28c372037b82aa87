"""The language of filters with what is installed: who has no filter loads nothing, and what cannot
be used is told to who asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from raylay.services.errors import ConfigurationError, RemoteProtocolError
from raylay.services.messages.topics import TopicRule
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.plugins.filters import (
    filter_language,
    filter_problem,
    filtered_subscriptions,
)
from raylay.services.subscriptions.matching import nobody

BROKEN = TypeDefinition("mine", "of nobody", {})
LOADED = """
import sys
from raylay.services.core import live
from raylay.services.messages.topics import TopicRule
from raylay.services.plugins.filters import filter_language
from raylay.services.subscriptions.matching import nobody
assert filter_language([TopicRule("orders")]) is None
print([name for name in sys.modules if "services.expressions" in name or "types.registry" in name])
"""


def test_without_a_filter_nothing_of_the_language_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_type_of_the_configuration_is_read() -> None:
    types = [TypeDefinition("mine", "fix", {"field_separator": 124})]
    language = filter_language([TopicRule("orders", "mine", "/55 = 'IBM'")], types)
    assert language is not None
    assert filter_problem("/55 = 'IBM'", "mine", types) == ""
    assert "no message type is called 'mine'" in filter_problem("/55 = 'IBM'", "mine")


@pytest.mark.covers(
    "Filters by content",
    "a subscription with a filter gets what passes",
    note="what an instance cannot use is told to the client",
)
def test_what_cannot_be_used_is_told_where_it_was_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="no kind is called 'of nobody'"):
        filter_language([TopicRule("orders", filter="/a = 1")], [BROKEN])
    with pytest.raises(RemoteProtocolError, match="A-1 cannot filter: message type mine") as told:
        filtered_subscriptions([BROKEN], "A-1", "A", nobody)
    assert told.value.reason == "bad_filter"
