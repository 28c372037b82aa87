"""The keys by which messages and records are conflated (behaviour.md 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raylay.services.errors import MessageTypeError, RemoteProtocolError
from raylay.services.expressions import values
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.trees import FieldPath, Tree, field_path
from raylay.services.sow.keys import key_text
from raylay.services.sow.topic import SowTopic
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import TopicFilter

_NULL = b"\xff\xff\xff\xff"
"""Mark of a key field without a value, in the place of a text's length."""


def key_in(topic: bytes, message_type: bytes, key: bytes) -> bytes:
    """Returns a key that no record of another topic has."""
    return b"\0".join((topic, message_type, key))


def conflation_key(tree: Tree, paths: Sequence[FieldPath]) -> bytes:
    """Returns the key of a message, made of the texts of its key fields."""
    parts: list[bytes] = []
    for path in paths:
        value: Any = values.scalar(values.follow(tree, path))
        text = value.encode("utf-8", "surrogatepass") if value.__class__ is str else key_text(value)
        parts.append(len(text).to_bytes(4, "little") + text if text else _NULL)
    return b"".join(parts)


def key_paths(
    topics_of: Callable[[TopicFilter], Sequence[SowTopic]], wanted: TopicFilter, terms: FollowTerms
) -> tuple[FieldPath, ...]:
    """Returns the paths of a subscription's key fields; none: SOW keys are meant.

    Args:
        topics_of: returns the SOW topics and views that a subscription wants.

    Raises:
        RemoteProtocolError: the topic needs a key, or another one.
    """
    conflation = terms.conflation
    assert conflation is not None
    if terms.aggregation is not None:
        if conflation.key:
            raise RemoteProtocolError(
                "an aggregated subscription has its groups as keys: leave conflation_key out",
                "not_supported",
            )
        return ()
    topics = topics_of(wanted)
    name = wanted.topic[:200].decode("utf-8", "replace")
    if not conflation.key:
        if not topics and wanted.pattern is None:
            raise RemoteProtocolError(
                f"topic {name!r} has no SOW keys by which messages could be conflated: give "
                "conflation_key with the fields that tell messages apart, such as [/symbol]",
                "bad_command",
            )
        return ()
    for topic in topics:
        keys = topic.definition.keys
        if (terms.oof or terms.delta) and conflation.key != keys:
            option = "oof" if terms.oof else "delta"
            raise RemoteProtocolError(
                f"{option} needs the key of the topic, and conflation_key is another one than "
                f"that of {topic.definition.name}: leave conflation_key out",
                "bad_command",
            )
        if wanted.pattern is None and Ability.FIELDS in topic.type.lacks:
            raise RemoteProtocolError(
                f"messages of type {topic.type.name} have no fields for conflation_key: leave "
                "it out",
                "bad_command",
            )
    try:
        return tuple(field_path(each) for each in conflation.key)
    except MessageTypeError as error:
        raise RemoteProtocolError(f"conflation_key: {error}", "bad_command") from None
