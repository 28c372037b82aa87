"""The description of an instance at its link's logon, as bytes: the body of that frame.

A msgpack map. What is missing in it is none, what is unknown in it is passed over: keys, words of
checks, values behind those that an array has here.

    log      what is in the transaction log: [[name, message type], …]
    topics   of the Destination: [[name, message type, filter, [checks not enforced]], …]
    pass     its PassThrough
    servers  names of the instances that it may reach
    sow      [[name, message type, [key, …]], …]
    queues   [[name, message type, kind, underlying topic, filter, domain, initial owner], …]

The names of instance, group and Destination are in the header.
"""

from __future__ import annotations

from typing import Any

import msgpack

from raylay.services.errors import ConfigurationError, RemoteProtocolError
from raylay.services.messages.topics import ExpressionBudget, TopicRule, is_regex
from raylay.services.protocol.frames import UNAUTHENTICATED_FRAME_BYTES_MAX
from raylay.services.replication.membership.validation import (
    CHECKS,
    DestinationTerms,
    InstanceDescription,
    QueueTerms,
    SowTerms,
    enforced,
)

DESCRIPTION_BYTES_MAX = 256 * 1024
"""Longest description: some thousands of topics by name."""
LINK_LOGON_BYTES_MAX = UNAUTHENTICATED_FRAME_BYTES_MAX + DESCRIPTION_BYTES_MAX

_pack = msgpack.Packer(use_bin_type=True).pack


def pack_description(description: InstanceDescription) -> bytes:
    """Encodes a description with one destination.

    Raises:
        ConfigurationError: it is larger than DESCRIPTION_BYTES_MAX.
    """
    (terms,) = description.destinations
    value: dict[str, Any] = {
        "log": [[rule.name, rule.message_type] for rule in description.log],
        "topics": [
            [
                rule.name,
                rule.message_type,
                rule.filter,
                [name for name in CHECKS if name not in enforced(rule)],
            ]
            for rule in terms.topics
        ],
    }
    if terms.pass_through is not None:
        value["pass"] = terms.pass_through
    if terms.servers:
        value["servers"] = terms.servers
    if description.sow:
        value["sow"] = [[sow.name, sow.message_type, sow.keys] for sow in description.sow]
    if description.queues:
        value["queues"] = [
            [q.name, q.message_type, q.kind, q.underlying, q.filter, q.domain, q.initial_owner]
            for q in description.queues
        ]
    packed: bytes = _pack(value)
    if len(packed) > DESCRIPTION_BYTES_MAX:
        raise ConfigurationError(
            f"{description.name}: what Destination {terms.name!r} must tell of its topics, SOW and "
            f"queues has {len(packed)} bytes, at most {DESCRIPTION_BYTES_MAX} are sent: name "
            "topics by fewer regular expressions"
        )
    return packed


def unpack_description(
    name: str, group: str, terms: DestinationTerms, data: bytes
) -> InstanceDescription:
    """Decodes a description.

    Args:
        name, group: name of the instance and of its group.
        terms: the destination, as far as the logon's header tells it.

    Raises:
        RemoteProtocolError: with reason `bad_description`.
    """
    if not data:
        raise _bad("is missing: without one its Destination cannot be validated")
    try:
        value = msgpack.unpackb(data)
    except Exception:  # msgpack raises many kinds of errors on bad bytes
        raise _bad("is no msgpack") from None
    if type(value) is not dict:
        raise _bad("is no map")
    budget = ExpressionBudget()
    topics = tuple(
        TopicRule(
            _pattern(budget, _text(entry, 0), "topic"),
            _text(entry, 1),
            _text(entry, 2),
            exclude_validation=tuple(word for word in _texts(entry, 3) if word in CHECKS),
        )
        for entry in _entries(value, "topics")
    )
    pass_through = value.get("pass")
    if pass_through is not None:
        if type(pass_through) is not str:
            raise _bad("has a PassThrough that is no text")
        _compiled(budget, pass_through, "PassThrough")
    return InstanceDescription(
        name,
        group,
        tuple(
            TopicRule(_pattern(budget, _text(entry, 0), "topic"), _text(entry, 1))
            for entry in _entries(value, "log")
        ),
        (
            DestinationTerms(
                terms.name, terms.group, topics, pass_through, _texts([value.get("servers", [])], 0)
            ),
        ),
        tuple(
            SowTerms(_text(entry, 0), _text(entry, 1), _texts(entry, 2))
            for entry in _entries(value, "sow")
        ),
        tuple(
            QueueTerms(*(_text(entry, at) for at in range(7)))
            for entry in _entries(value, "queues")
        ),
    )


def _bad(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the description in a link's logon {what}", "bad_description")


def _entries(value: dict[Any, Any], key: str) -> list[list[Any]]:
    entries = value.get(key, [])
    if type(entries) is not list or not all(type(entry) is list for entry in entries):
        raise _bad(f"has {key} that are no arrays")
    return entries


def _text(entry: list[Any], at: int) -> str:
    if len(entry) <= at or type(entry[at]) is not str:
        raise _bad("has an entry without a text where one belongs")
    return str(entry[at])


def _texts(entry: list[Any], at: int) -> tuple[str, ...]:
    found = entry[at] if len(entry) > at else None
    if type(found) is not list or not all(type(text) is str for text in found):
        raise _bad("has an entry without a list of texts where one belongs")
    return tuple(found)


def _pattern(budget: ExpressionBudget, rule: str, what: str) -> str:
    if is_regex(rule):
        _compiled(budget, rule, what)
    return rule


def _compiled(budget: ExpressionBudget, pattern: str, what: str) -> None:
    try:
        budget.compile(pattern, what)
    except ConfigurationError as error:
        raise _bad(f"has a bad {error}") from None
