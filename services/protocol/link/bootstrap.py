"""Frames of a bootstrap: an empty instance copies the log of another one (docs/protocol.md).

They are spoken at the replication transport, whose first frame tells a bootstrap from a link.

    bootstrap         to the source: `v`, `name`, `group`, `incarnation`; body: msgpack of
                      [[topic, type], …] asked for, and the same of what the instance journals;
                      `sow`: name to digest of the SOW topics that it has, where there are any;
                      `user_id`, `pw` and the answer `retry` as for a link (link_credentials.py)
    bootstrap_begin   from it: `name`, `group`, `incarnation`, `first`, `last` transaction id
    bootstrap_lacks   body: publisher to sequences that the source once had or heard of and cannot
                      give, in parts; only where its whole log is asked for
    bootstrap_sow     `t`: name of a SOW topic; body: msgpack of [[key, value], …], entries of its
                      store from before the log begins; only of topics that were asked for and
                      have the same digest, and before the log
    bootstrap_runs    `tx`: the source's log up to here; body: a block of runs
    bootstrap_end     all is sent
    refused           as for a link
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
from xxhash import xxh3_128_digest

from raylay.services.errors import ConfigurationError, RemoteProtocolError
from raylay.services.messages.bounded_msgpack import unpack_containers
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import Header, encode_frame, encode_front
from raylay.services.protocol.link.link_credentials import said
from raylay.services.protocol.link.replication import (
    REPLICATION_VERSION,
    check_version,
    group_of,
    name_of,
    parts,
    u64_of,
)
from raylay.services.replication.membership.bootstrap import BootstrapChoice
from raylay.services.replication.values import Identity

REQUEST = "bootstrap"
BEGIN = "bootstrap_begin"
LACKS = "bootstrap_lacks"
RUNS = "bootstrap_runs"
SOW = "bootstrap_sow"
RULES_MAX = 10_000
SOW_TOPICS_MAX = 500
"""Number of SOW topics in a request: more do not fit into a header. The others begin with the
log."""
SOW_BYTES = 512 * 1024
"""Approximate length of a frame of entries; a single entry may be longer."""

SOW_ENTRY_BYTES_MIN = 20
"""The least that an entry takes: a key of a store has 17 bytes."""

END = encode_frame({"c": "bootstrap_end"})
_END = "bootstrap_end"
_pack = msgpack.Packer(use_bin_type=True).pack


def request(
    identity: Identity,
    wanted: tuple[TopicRule, ...],
    journaled: tuple[TopicRule, ...],
    sow: Mapping[str, bytes] = {},
    who: tuple[str, str] = ("", ""),
) -> bytes:
    """Encodes the first frame.

    Args:
        sow: configuration of each SOW topic as bytes, by its name in the store.
        who: user id and password of the requesting instance.
    """
    header: Header = {
        "c": REQUEST,
        "v": REPLICATION_VERSION,
        "name": identity.name,
        "group": identity.group,
        "incarnation": identity.incarnation,
    }
    if sow:
        header["sow"] = {
            name: _digest(decides) for name, decides in list(sow.items())[:SOW_TOPICS_MAX]
        }
    header |= said(*who)
    rules = [[[rule.name, rule.message_type] for rule in each] for each in (wanted, journaled)]
    return encode_frame(header, _pack(rules))


def read_request(header: Header) -> Identity:
    """Returns the identity of the requesting instance. The requested topics are decoded when it is
    admitted (`read_choice`).

    Raises:
        RemoteProtocolError: with reason `bad_version` or `bad_command`.
    """
    check_version(header)
    return _identity(header)


def read_choice(body: bytes) -> BootstrapChoice:
    """Decodes the requested topics. Compiling their expressions may take 0.1 s: to be called in a
    thread.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    try:
        wanted, journaled = msgpack.unpackb(body)
        return BootstrapChoice(_rules(wanted), _rules(journaled))
    except ConfigurationError as error:
        raise RemoteProtocolError(
            f"a bootstrap asks for topics that cannot be: {error}", "bad_command"
        ) from None
    except (ValueError, TypeError, msgpack.UnpackException):
        raise RemoteProtocolError("a bootstrap asks for no topics", "bad_command") from None


def _digest(decides: bytes) -> bytes:
    return xxh3_128_digest(decides)


def sow_wanted(header: Header, held: Mapping[str, bytes]) -> list[str]:
    """Returns the SOW topics of a request that have the same configuration here: records that were
    made under another configuration cannot be copied.

    Args:
        held: configuration of each SOW topic here as bytes, by its name in the store.
    """
    asked = header.get("sow")
    if not isinstance(asked, dict):
        return []
    return [name for name, decides in held.items() if asked.get(name) == _digest(decides)]


def sow_frames(name: str, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Yields the frames with entries of a SOW topic's store."""
    part: list[tuple[bytes, bytes]] = []
    part_bytes = 0
    for entry in entries:
        part.append(entry)
        part_bytes += len(entry[0]) + len(entry[1])
        if part_bytes >= SOW_BYTES:
            yield encode_frame({"c": SOW, "t": name}, _pack(part))
            part, part_bytes = [], 0
    if part:
        yield encode_frame({"c": SOW, "t": name}, _pack(part))


def read_sow(header: Header, body: bytes) -> tuple[str, list[tuple[bytes, bytes]]]:
    """Decodes one frame of `sow_frames`.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    name = name_of(header, "t", empty=False)
    try:
        entries = [(key, value) for key, value in unpack_containers(body, SOW_ENTRY_BYTES_MIN)]
    except Exception:  # msgpack raises many kinds of errors on bad bytes
        raise RemoteProtocolError("SOW entries are no msgpack", "bad_command") from None
    if not all(type(key) is bytes and type(value) is bytes for key, value in entries):
        raise RemoteProtocolError("SOW entries are no bytes", "bad_command")
    return name, entries


def _rules(value: Any) -> tuple[TopicRule, ...]:
    if type(value) is not list or len(value) > RULES_MAX:
        raise TypeError("no list of topics")
    rules = []
    for name, message_type in value:
        if type(name) is not str or type(message_type) is not str:
            raise TypeError("no topic")
        rules.append(TopicRule(name, message_type))
    return tuple(rules)


def _identity(header: Header) -> Identity:
    name = name_of(header, "name", empty=False)
    return Identity(name, group_of(header), u64_of(header, "incarnation"))


@dataclass(frozen=True, slots=True)
class BootstrapBegin:
    """The `bootstrap_begin` frame: the source instance, and the first and last transaction id of
    its log."""

    source: Identity
    first_txid: int
    last_txid: int


def begin(found: BootstrapBegin) -> bytes:
    source = found.source
    return encode_frame(
        {
            "c": BEGIN,
            "name": source.name,
            "group": source.group,
            "incarnation": source.incarnation,
            "first": found.first_txid,
            "last": found.last_txid,
        }
    )


def read_begin(header: Header) -> BootstrapBegin:
    """Decodes the frame of `begin`.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    return BootstrapBegin(_identity(header), u64_of(header, "first"), u64_of(header, "last"))


def lacks_frames(lacks: PublisherRanges) -> list[bytes]:
    """Encodes the messages that the source cannot give. Each frame can be decoded by itself."""
    return [encode_frame({"c": LACKS}, part) for part in parts(lacks)]


def runs_front(source_txid: int, size_bytes: int) -> bytes:
    """Encodes a frame with a block of runs, without the block: it is sent behind the result."""
    return encode_front({"c": RUNS, "tx": source_txid}, size_bytes)


def read_runs(header: Header) -> int:
    """Returns the transaction id up to which the source's log has come.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    return u64_of(header, "tx")


def is_end(header: Header) -> bool:
    return bool(header["c"] == _END)
