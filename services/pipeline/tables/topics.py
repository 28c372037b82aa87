"""The option `topic`: checks that a journal has, or can have, such a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from raylay.services.config.instance import INSTANCE_FILE, InstanceConfig
from raylay.services.errors import ConfigurationError
from raylay.services.messages.topic_sets import may_overlap
from raylay.services.pipeline.journals import (
    JournalPlace,
    JournalStretch,
    StretchReader,
    segment_index,
)
from raylay.services.pipeline.tables.columns import Batches
from raylay.services.pipeline.tables.predicates import Predicate
from raylay.services.subscriptions.matching import topic_filter

TOPICS_NAMED_MAX = 10
"""Most topics that an error names."""


def check_held(topic: str, found: list[JournalPlace]) -> None:
    """Refuses a topic of which none of these journals holds a message.

    Raises:
        ConfigurationError: none does; the error names the topics that there are.
        RemoteProtocolError: the topic is no valid regular expression.
    """
    wanted = topic_filter(topic, "")
    seen: set[str] = set()
    for place in found:
        for held in _topics_held(place):
            if wanted.matches(held.encode(), b""):
                return
            seen.add(held)
    more = f" and {len(seen) - TOPICS_NAMED_MAX} more" if len(seen) > TOPICS_NAMED_MAX else ""
    raise ConfigurationError(f"{not_held(topic, _names(found), seen)}{more}")


def not_held(topic: str, where: str, held: Iterable[str]) -> str:
    """Returns the words for a topic of which there is no message.

    Args:
        where: the instances that were looked at.
        held: topics of which they hold messages; as many as `TOPICS_NAMED_MAX` are named.
    """
    few = ", ".join(sorted(held)[:TOPICS_NAMED_MAX]) or "none at all"
    return f"no message of topic {topic} is journaled at {where}: the journaled topics are {few}"


def check_journaled(topic: str, found: list[JournalPlace]) -> None:
    """Refuses a topic that these instances, by their configuration, do not journal. A journal
    without a configuration may hold any topic.

    Raises:
        ConfigurationError: none does; the error names the topics that they journal.
        RemoteProtocolError: the topic is no valid regular expression.
    """
    topic_filter(topic, "")
    rules: dict[str, None] = {}
    for place in found:
        home = Path(place.journal).parent
        if not (home / INSTANCE_FILE).is_file():
            return
        for rule in InstanceConfig.load(home).topics:
            if may_overlap(rule.name, topic):
                return
            rules[rule.name] = None
    raise ConfigurationError(
        f"topic {topic} is not journaled at {_names(found)}, only "
        f"{', '.join(rules) or 'nothing'}: add it to the fabric's topics"
    )


def _names(found: list[JournalPlace]) -> str:
    return ", ".join(place.instance for place in found)


def _topics_held(place: JournalPlace) -> Iterator[str]:
    """Yields the topics of a journal's messages, some of them more than once."""
    files = place.files()
    ends = [file.first_txid - 1 for file in files[1:]] + [1 << 62]
    for file, last_txid in zip(files, ends, strict=True):
        index = segment_index(file) if file is not files[-1] else None
        if index is not None and index.topics is not None:
            yield from (topic.decode("utf-8", "replace") for topic, _ in index.topics)
            continue
        stretch = JournalStretch(place, file.first_txid, file.first_txid, last_txid)
        reader = StretchReader(stretch, "skip")
        batches = Batches(
            place.instance,
            file.first_txid,
            file.first_txid,
            last_txid,
            ["topic"],
            Predicate(),
            reader.damaged,
            verify=False,
            on_corrupt="skip",
        )
        try:
            for blocks in reader.blocks(to_the_end=False):
                rows = batches.batch(blocks)
                if rows is not None:
                    yield from rows["topic"].unique().to_pylist()
        finally:
            reader.close()
