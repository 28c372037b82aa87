"""Translation of `SOW/Topic` to a SOW topic of Raylay: its settings, its errors, and the parts that
do not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from raylay.services.configuration.amps.message_types import definitions, unsupported
from raylay.services.configuration.amps.model import AmpsConfig
from raylay.services.configuration.amps.sow import SowTopicStanza
from raylay.services.configuration.builder import explain
from raylay.services.configuration.sow_topics import SowTopicSettings
from raylay.services.configuration.topology import is_journaled
from raylay.services.errors import ConfigurationError
from raylay.services.messages.documented_units import format_size
from raylay.services.messages.records import RECORD_BYTES_MAX
from raylay.services.messages.topics import TopicRule
from raylay.services.plugins.sow_checks import sow_problems

MILLISECOND_NS = 1_000_000
_ELEMENTS = {
    "keys": ("Key",),
    "hash_indexes": ("HashIndex",),
    "preprocessing": ("Preprocessing",),
    "enrichment": ("Enrichment",),
    "message_type": ("MessageType",),
    "pattern": ("Pattern",),
    "name": ("Name",),
    "recovery_point": ("RecoveryPoint",),
}
"""Elements that stand for a value of the settings."""
_LATER = frozenset(("key_generator",))
"""Settings that another host may have: such a file is right."""


def settings_of(topic: SowTopicStanza) -> dict[str, Any]:
    """Returns the topic as a fabric's file declares it."""
    made: dict[str, Any] = {
        "name": topic.name,
        "message_type": topic.message_type,
        "pattern": topic.pattern or "",
        "keys": topic.keys,
        "key_domain": topic.key_domain or "",
        "durability": topic.durability,
        "recovery_point": topic.recovery_point,
        "expiration": topic.expiration
        if isinstance(topic.expiration, str)
        else _time(topic.expiration),
        "hash_indexes": tuple(index.keys for index in topic.hash_indexes),
        "preprocessing": topic.preprocessing.fields_ if topic.preprocessing else (),
        "enrichment": topic.enrichment.fields_ if topic.enrichment else (),
    }
    if topic.key_generator is not None:
        made["key_generator"] = topic.key_generator.module
        made["key_generator_options"] = {
            entry.name: entry.value for entry in topic.key_generator.options.entries
        }
    if topic.history is not None:
        made["history"] = {
            "window": _time(topic.history.window_ns),
            "granularity": _time(topic.history.granularity_ns),
        }
    return made


def topic_problems(
    topic: SowTopicStanza, config: AmpsConfig
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yields the place in the element and the text of each error in a topic, whichever host it runs
    on."""
    try:
        definition = SowTopicSettings.model_validate(settings_of(topic)).definition()
    except ValidationError as error:
        for path, text in explain(error, SowTopicSettings):
            yield _ELEMENTS.get(str(path[0]) if path else "", ()), f"topic {topic.name}: {text}"
        return
    if _type_is_left_out(topic, config):
        return
    for problem in sow_problems(definition, definitions(config)):
        name, *more = problem.place
        if name not in _LATER:
            place: tuple[str | int, ...] = _ELEMENTS[str(name)]
            if name in ("keys", "hash_indexes"):
                place = (*place, *more)
            elif more:
                place = (*place, "Field", *more)
            yield place, f"topic {topic.name}: {problem.text}"


def not_running(topic: SowTopicStanza, config: AmpsConfig) -> str:
    """Returns why a topic without problems does not run; empty: it does."""
    if _type_is_left_out(topic, config):
        return f"Topic {topic.name} of SOW has a message type that does not run"
    definition = SowTopicSettings.model_validate(settings_of(topic)).definition()
    log = config.transaction_log
    rules = tuple(TopicRule(each.name, each.message_type) for each in (log.topics if log else ()))
    if not is_journaled(definition, rules):
        return (
            f"Topic {topic.name} of SOW is not in the TransactionLog, and state is made from it: "
            "add it there"
        )
    try:
        later = sow_problems(definition, definitions(config))
    except ConfigurationError as error:
        return f"Topic {topic.name} of SOW does not run here: {error}"
    return next((f"Topic {topic.name} of SOW does not run here: {each.text}" for each in later), "")


def size_note(slab_bytes: int) -> str:
    """Returns the note on a SlabSize, which promises room for a message of that size."""
    if slab_bytes > RECORD_BYTES_MAX:
        return (
            f"SlabSize {format_size(slab_bytes)}: no message may have more than "
            f"{RECORD_BYTES_MAX:,} bytes, whatever it is"
        )
    return f"SlabSize needs nothing here: a message may have {RECORD_BYTES_MAX:,} bytes"


def _type_is_left_out(topic: SowTopicStanza, config: AmpsConfig) -> bool:
    stanzas = config.message_types.message_types if config.message_types else ()
    left = {each.name for each in stanzas if unsupported(each)}
    named = {each.name for each in stanzas} - {each.name for each in definitions(config)}
    return topic.message_type in left | named


def _time(value_ns: int) -> str:
    return f"{-(-value_ns // MILLISECOND_NS)}ms"
