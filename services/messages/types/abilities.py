"""Abilities that a message type may lack (behaviour.md 4.6, 4.7, 6)."""

from __future__ import annotations

from enum import StrEnum


class Ability(StrEnum):
    """An ability of a message type on which some features depend. The value is the words with which
    an error names it."""

    FIELDS = "be read field by field"
    DELTA = "be published or sent as deltas"
    VIEW = "come out of a view"
    ENRICHMENT = "be enriched"
    AGGREGATION = "be aggregated in a subscription"
    SELECT = "be cut down to a list of fields"
    EVENTS = "be sent on event topics"
