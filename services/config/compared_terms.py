"""The terms of SOW topics and queues that are compared when a link connects, taken from what an
instance runs.

Without those of the drills: a peer that is not marked for drills has none, and nothing of it is
amiss there. Without event topics: each instance keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TypeVar

from raylay.services.messages.event_topics import EVENTS
from raylay.services.messages.topics import RESERVED
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.membership.validation import QueueTerms, SowTerms
from raylay.services.sow.definition import SowTopicDefinition

Terms = TypeVar("Terms", SowTerms, QueueTerms)


def sow_terms(topics: Iterable[SowTopicDefinition]) -> tuple[SowTerms, ...]:
    own = (RESERVED, EVENTS)
    return tuple(_terms(SowTerms, each) for each in topics if not each.name.startswith(own))


def queue_terms(queues: Iterable[QueueDefinition]) -> tuple[QueueTerms, ...]:
    return tuple(_terms(QueueTerms, each) for each in queues if not each.name.startswith(RESERVED))


def _terms(kind: type[Terms], definition: SowTopicDefinition | QueueDefinition) -> Terms:
    return kind(**{each.name: getattr(definition, each.name) for each in fields(kind)})
