"""The protocol between a link and the instance downstream: frames (services/protocol/frames.py),
one connection.

    link to instance
      logon      v: the version that it speaks, name, group, incarnation, expect (group),
                 destination, epoch, digest (64 bytes: of what its own instance holds),
                 conflation (acks may be held back for so many ms; absent: none is), address
                 (`host:port` under which others reach the replication transport of the link's own
                 instance, or nothing; absent: the link carries no streams), generation (absent: 0),
                 placements, salvages: true of one that brings what a retired data directory holds,
                 announces: true of one that only tells its placements, proof: that it is of the
                 same fabric (proof.py), user_id, pw: who it is (link_credentials.py)
                 body: what the instance tells of itself (description.py); empty where it
                 `salvages` or `announces`
      batch      n: number, m: marked, u: ends the resync, w: bytes of `awaited` at the body's
                 start, z: `zstd` or `zlib` when the rest of the body is compressed, y: publisher,
                 first, last, … of some messages that came by way of the receiver's incarnation
                 and that it did not say it holds
                 body: awaited (ranges root by root), then runs back to back
      carry, carry_end   as below
      placed     placements: news of them
      names      body: names of publishers, 24 bytes each
                 (services/replication/publisher_names.py); where `accepted` has `names`
      queue      asks for messages of a queue: services/protocol/child/queue_requests.py
      beat

    instance to link
      accepted   v: the version that it speaks, name, group, incarnation, client (its address for
                 clients), same: the digest was of what is held here, generation, placements as in
                 the logon, names (64 bytes: digest of the names of publishers that it remembers;
                 absent: it believes none of this link)
      held, waited   more: true until the last of both; body: a part of the sets, msgpack map of
                 publisher to SequenceSet bytes. First all of held (unless same), then all of
                 waited, each part for the root named in its header
      ack        n: batches up to it are stored, at: nanoseconds since 1970; body: msgpack array of
                 held (ranges), persisted (ranges root by root), conflicts (ranges)
      refused    reason, text: the connection ends; placements, where it is of the reason `retired`
      placed     as above; the answer to a logon that announces
      carry_begin   n: of a stream: the link connects it to its own instance, to which it is a link
      carry         n; body: bytes of the stream as they were read, not looked at
      carry_end     n, why: the stream ends
      beat

A carried stream is the connection of a link in the other direction: the whole of this protocol,
from its logon on, between the instance and the link's own instance. One at a time; the next one has
a higher number, and what still comes of an earlier one is passed over.

Placements (services/replication/membership/placement.py) are an array for each instance that was
moved or has another address than before: name, generation, address, address for clients, and of the
latter since when.

`ranges` are a msgpack map of publisher to a flat array: first, last, first, last, …
Numbers are per connection and start at 1. Range sets are cut into parts of about 32 KiB, where
that is needed a publisher's set, too: what parts say of one publisher adds up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgpack

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.bounded_msgpack import unpack_containers, unpack_values
from raylay.services.messages.digests import SUM_BYTES
from raylay.services.messages.ranges import PUBLISHERS, PublisherRanges, Range
from raylay.services.messages.records import GROUP_BYTES_MAX, SEQUENCE_HELD_MAX
from raylay.services.protocol.client.compression import COMPRESSION_TYPES
from raylay.services.protocol.frames import Header, encode_frame, encode_front
from raylay.services.protocol.link.link_credentials import read_said, said
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import AckUpstream, Ranges, Rooted
from raylay.services.replication.membership.placement import (
    GENERATION_MAX,
    InstancePlacement,
    from_wire,
    is_address,
    to_wire,
)

REPLICATION_VERSION = 1
"""The only version of the replication protocol."""
REPLICATION_FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Longest frame: a batch is about 1 MiB, or one run, which a client's frame limits to 16 MiB; the
set of one publisher is limited by its content. A run of one record adds `RUN_HEADER_BYTES` and the
longest path, topic, type and group: less than 4 KiB."""
PART_BYTES = 32 * 1024
"""Length of a part of a range set that is sent in parts: 1,000 publishers with one range each, or a
part of one with many gaps: some milliseconds of work for the reader."""
PART_BYTES_MAX = 2 * PART_BYTES
"""Longest part that is read, of the messages that the other side holds, waits for, or lacks."""
TOLD_PIECES_MAX = 2_000_000
"""Number of stretches and chunks, and of publishers, in all parts of one logon that are read: some
700 MB (services/replication/gap_limit.py)."""
PIECES_OF_PART = 16
"""Number of pieces that every part counts for, however small it is."""
RANGES_BYTES_MIN = 6
"""Fewest bytes that the ranges of a publisher take as an array of numbers, with the publisher's
id."""
AWAITED_RANGES_MAX = 2_000_000
"""Ranges for which one frame asks answers: 350 MB."""
VALUES_OF_RANGE = 7
"""Values that a range takes at most: one of a publisher and a root of its own."""
RANGES_IN_ACK_MAX = 100_000
ACK_BYTES_MAX = 8 * 1024 * 1024
"""Longest ack that is read: the largest number of ranges takes 5 MB when each has a publisher and a
root of its own."""
NAME_BYTES_MAX = 400
"""Longest name of an instance, a group, a destination: it is part of a key of the instance's state,
which has at most 511 bytes. An address may be as long: a host's name has at most 253 characters."""
REFUSAL_CHARACTERS_MAX = 8192

BEAT = encode_frame({"c": "beat"})

_pack = msgpack.Packer(use_bin_type=True).pack


def pack_rooted(rooted: Rooted) -> bytes:
    """Encodes ranges by root; empty bytes for none."""
    if not rooted:
        return b""
    packed: bytes = _pack(_flat_rooted(rooted))
    return packed


def _flat_rooted(rooted: Rooted) -> dict[int, dict[int, list[int]]]:
    return {root: _flat(ranges) for root, ranges in rooted.items()}


def _flat(ranges: Ranges) -> dict[int, list[int]]:
    return {publisher: list(chain.from_iterable(pairs)) for publisher, pairs in ranges.items()}


def _paired(value: Any) -> Ranges:
    if type(value) is not dict:
        raise RemoteProtocolError("ranges are no map", "bad_ranges")
    found: Ranges = {}
    for publisher, flat in value.items():
        if (
            type(publisher) is not int
            or not 0 <= publisher < PUBLISHERS
            or type(flat) is not list
            or len(flat) % 2
        ):
            raise RemoteProtocolError("ranges of a publisher are no pairs", "bad_ranges")
        pairs: list[Range] = []
        for first, last in zip(flat[::2], flat[1::2], strict=True) if len(flat) != 2 else (flat,):
            if (
                type(first) is not int
                or type(last) is not int
                or not 0 <= first <= last <= SEQUENCE_HELD_MAX
            ):
                raise RemoteProtocolError("a range is no pair of sequences", "bad_ranges")
            pairs.append((first, last))
        if pairs:
            found[publisher] = pairs
    return found


def _paired_rooted(value: Any) -> Rooted:
    if type(value) is not dict:
        raise RemoteProtocolError("ranges root by root are no map", "bad_ranges")
    found: Rooted = {}
    for root, ranges in value.items():
        if type(root) is not int or not 0 <= root < 1 << 64:
            raise RemoteProtocolError("a root is no incarnation", "bad_ranges")
        found[root] = _paired(ranges)
    return found


def _unpacked(data: bytes | memoryview) -> Any:
    try:
        return unpack_containers(data, RANGES_BYTES_MIN)
    except Exception:  # msgpack raises many kinds of errors on bad bytes
        raise RemoteProtocolError("ranges are no msgpack", "bad_ranges") from None


def _unpacked_ranges(data: bytes | memoryview, ranges_max: int) -> Any:
    """Decodes a limited number of ranges: neither many numbers of a byte each nor many empty arrays
    may take much memory."""
    try:
        return unpack_values(
            data,
            VALUES_OF_RANGE * ranges_max + 16,
            2 * ranges_max,
            bytes_each=RANGES_BYTES_MIN,
        )
    except Exception:  # msgpack raises many kinds on bad bytes
        raise RemoteProtocolError(
            f"ranges are no msgpack, or more than {ranges_max:,}", "bad_ranges"
        ) from None


def unpack_rooted(data: bytes | memoryview, ranges_max: int = AWAITED_RANGES_MAX) -> Rooted:
    """Decodes the bytes of `pack_rooted`.

    Raises:
        RemoteProtocolError: the bytes are no ranges, or too many.
    """
    return _paired_rooted(_unpacked_ranges(data, ranges_max)) if len(data) else {}


@dataclass(slots=True)
class UpstreamLogon:
    """A link's `logon` frame."""

    name: str
    group: str
    incarnation: int
    expect: str
    destination: str
    epoch: int
    digest: bytes
    ack_conflation_ms: int = 0
    description: bytes = b""
    address: str | None = None
    """Address at which others reach the link's instance; empty: not known; None: the link carries
    no streams."""
    generation: int = 0
    placements: dict[str, InstancePlacement] = field(default_factory=dict)
    salvages: bool = False
    announces: bool = False
    proof: bytes = b""
    user_id: str = ""
    password: str = field(default="", repr=False)
    """Password or token; never shown."""
    proven: bool = False
    """Whether the proof was right, in a decoded logon."""


def check_version(header: Header) -> None:
    """Refuses a first frame with another protocol version.

    Raises:
        RemoteProtocolError: with reason `bad_version`.
    """
    version = header.get("v")
    if version != REPLICATION_VERSION:
        raise RemoteProtocolError(
            f"replication version {str(version)[:20]} is not spoken here, which is version "
            f"{REPLICATION_VERSION}: run releases of one version on both sides",
            "bad_version",
        )


def link_logon(logon: UpstreamLogon) -> bytes:
    """Encodes the link's first frame."""
    header: Header = {
        "c": "logon",
        "v": REPLICATION_VERSION,
        "name": logon.name,
        "group": logon.group,
        "incarnation": logon.incarnation,
        "expect": logon.expect,
        "destination": logon.destination,
        "epoch": logon.epoch,
        "digest": logon.digest,
    }
    if logon.ack_conflation_ms:
        header["conflation"] = logon.ack_conflation_ms
    if logon.address is not None:
        header["address"] = logon.address
    header |= _placed_values(logon.generation, logon.placements)
    for key, says in (("salvages", logon.salvages), ("announces", logon.announces)):
        if says:
            header[key] = True
    if logon.proof:
        header["proof"] = logon.proof
    header |= said(logon.user_id, logon.password)
    return encode_frame(header, logon.description)


def read_link_logon(header: Header, body: bytes = b"") -> UpstreamLogon:
    """Decodes the frame of `link_logon`.

    Raises:
        RemoteProtocolError: with reason `bad_version`, `not_logged_on` or `bad_command`.
    """
    if header["c"] != "logon":
        raise RemoteProtocolError(
            f"{header['c'][:64]} came before the logon of a link", "not_logged_on"
        )
    check_version(header)
    name = name_of(header, "name", empty=False)
    group, expect = group_of(header), group_of(header, "expect")
    destination = name_of(header, "destination")
    incarnation, epoch = (u64_of(header, key) for key in ("incarnation", "epoch"))
    digest = header.get("digest")
    conflation_ms = u64_of(header, "conflation", 0)
    address = header.get("address")
    proof = header.get("proof", b"")
    if not (address is None or is_address(address)):
        raise _wrong(header, "address", "empty or of the form host:port")
    if type(digest) is not bytes or len(digest) not in (0, SUM_BYTES):
        raise _wrong(header, "digest", f"none or {SUM_BYTES} bytes")
    if type(proof) is not bytes:
        raise _wrong(header, "proof", "bytes")
    return UpstreamLogon(
        name,
        group,
        incarnation,
        expect,
        destination,
        epoch,
        digest,
        conflation_ms,
        body,
        address,
        _generation(header),
        from_wire(header.get("placements")),
        header.get("salvages") is True,
        header.get("announces") is True,
        proof,
        *read_said(header),
    )


def _wrong(header: Header, key: str, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"`{key}` of {header['c']} is not {what}", "bad_command")


def group_of(header: Header, key: str = "group") -> str:
    """Returns the name of a group in a header; empty: it has none.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    return name_of(header, key, bytes_max=GROUP_BYTES_MAX)


def name_of(
    header: Header, key: str, *, empty: bool = True, bytes_max: int = NAME_BYTES_MAX
) -> str:
    """Returns a name in a header.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    value = header.get(key)
    if type(value) is not str or len(value.encode()) > bytes_max:
        raise _wrong(header, key, f"a text of up to {bytes_max} bytes")
    if not value and not empty:
        raise _wrong(header, key, "a name")
    return value


def u64_of(header: Header, key: str, default: int | None = None) -> int:
    """Returns a number in a header; without a default it must be there.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    value = header.get(key, default)
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise _wrong(header, key, "a whole number from 0 to 2^64 - 1")
    return value


def _placed_values(generation: int, placements: Mapping[str, InstancePlacement]) -> Header:
    found: Header = {}
    if generation:
        found["generation"] = generation
    if placements:
        found["placements"] = to_wire(placements)
    return found


def _generation(header: Header) -> int:
    generation = header.get("generation", 0)
    if type(generation) is not int or not 0 <= generation < GENERATION_MAX:
        raise RemoteProtocolError("a generation is no number", "bad_command")
    return generation


@dataclass(slots=True)
class LinkAccepted:
    """The `accepted` frame: the answering instance."""

    name: str
    group: str
    incarnation: int
    client: str
    same: bool
    generation: int = 0
    placements: dict[str, InstancePlacement] = field(default_factory=dict)
    names: bytes = b""
    """Digest of the names of publishers that it remembers; empty: it believes none of the link."""


def exchange_frames(
    accepted: LinkAccepted, held: PublisherRanges | None, waited: RootedRanges
) -> Iterator[bytes]:
    """Yields the whole answer to a link's logon, each frame encoded when it is asked for, since
    there may be many. `held` is None where the digests agreed. The sets must not change
    meanwhile."""
    yield encode_frame(
        {
            "c": "accepted",
            "v": REPLICATION_VERSION,
            "name": accepted.name,
            "group": accepted.group,
            "incarnation": accepted.incarnation,
            "client": accepted.client,
            "same": held is None,
            **({"names": accepted.names} if accepted.names else {}),
            **_placed_values(accepted.generation, accepted.placements),
        }
    )
    if held is not None:
        for part in parts(held):
            yield encode_frame({"c": "held", "more": True}, part)
    header: Header = {"c": "waited", "root": 0, "more": True}
    body = b""
    for root, sets in waited.roots.items():
        for part in parts(sets):
            if body:
                yield encode_frame(header, body)
            header["root"], body = root, part
    yield encode_frame({**header, "more": False}, body)


def parts(sets: PublisherRanges) -> Iterator[bytes]:
    """Yields sets as bodies of about `PART_BYTES`, for `read_part`, each encoded when it is asked
    for."""
    part: dict[int, bytes] = {}
    size_bytes = 0
    for publisher, ranges in sets.sets.items():
        for data in ranges.parts(PART_BYTES) if ranges else ():
            if publisher in part or (part and size_bytes + len(data) > PART_BYTES):
                yield _pack(part)
                part, size_bytes = {}, 0
            part[publisher] = data
            size_bytes += len(data) + 16
    if part:
        yield _pack(part)


def read_accepted(header: Header) -> LinkAccepted:
    """Decodes the first frame of `exchange_frames`.

    Raises:
        RemoteProtocolError: with reason `bad_version` or `bad_command`.
    """
    check_version(header)
    name = name_of(header, "name", empty=False)
    group, client = group_of(header), name_of(header, "client")
    incarnation = u64_of(header, "incarnation")
    if not is_address(client):
        raise _wrong(header, "client", "empty or of the form host:port")
    placements = from_wire(header.get("placements"))
    names = header.get("names", b"")
    if type(names) is not bytes or len(names) not in (0, SUM_BYTES):
        raise _wrong(header, "names", f"none or {SUM_BYTES} bytes")
    return LinkAccepted(
        name,
        group,
        incarnation,
        client,
        bool(header.get("same")),
        _generation(header),
        placements,
        names,
    )


def read_part(body: bytes, into: PublisherRanges) -> None:
    """Adds the sets of one `held` or `waited` frame."""
    if body:
        into.adopt(PublisherRanges.from_wire(_unpacked(body)))


class PartReader:
    """Reads the parts in which an instance tells a link the messages that it holds and waits for.

    Invariant: a part above a limit is not decoded.
    Owner: the link's connection. Lifecycle: one logon.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = TOLD_PIECES_MAX

    def read(self, body: bytes, into: PublisherRanges | None = None) -> None:
        """Decodes one part, and adds it to `into`.

        Args:
            into: the set to add to; None: the part is only checked.

        Raises:
            RemoteProtocolError: it is none, or too much is told; with reason `bad_ranges`.
        """
        self._left -= PIECES_OF_PART
        if len(body) > PART_BYTES_MAX or self._left < 0:
            raise RemoteProtocolError(
                f"a part of {len(body):,} bytes of what is held or waited for: at most "
                f"{PART_BYTES_MAX:,}, and {TOLD_PIECES_MAX:,} pieces of all parts together",
                "bad_ranges",
            )
        if not body:
            return
        part = PublisherRanges.from_wire(_unpacked(body), self._left)
        self._left -= len(part.sets) + sum(each.pieces for each in part.sets.values())
        if into is not None:
            into.adopt(part)


def batch_front(
    number: int,
    marked: bool,
    caught_up: bool,
    awaited: bytes,
    compression: str,
    body_bytes: int,
    yours: Ranges | None = None,
) -> bytes:
    """Encodes the start of a batch's frame, up to and with `awaited`. `body_bytes`: number of bytes
    that are sent behind it, compressed by `compression`; empty: not compressed."""
    header: Header = {"c": "batch", "n": number}
    if marked:
        header["m"] = True
    if caught_up:
        header["u"] = True
    if awaited:
        header["w"] = len(awaited)
    if compression:
        header["z"] = compression
    if yours:
        header["y"] = [
            number
            for publisher, pairs in yours.items()
            for a, b in pairs
            for number in (publisher, a, b)
        ]
    front = encode_front(header, len(awaited) + body_bytes)
    return front + awaited if awaited else front


@dataclass(slots=True)
class LinkBatch:
    """A `batch` frame, with its runs still as bytes."""

    number: int
    marked: bool
    caught_up: bool
    awaited: Rooted
    compression: str
    block: bytes
    yours: Ranges = field(default_factory=dict)


def read_batch(
    header: Header,
    body: bytes,
    awaited_bytes_max: int = REPLICATION_FRAME_BYTES_MAX,
    awaited_ranges_max: int = AWAITED_RANGES_MAX,
) -> LinkBatch:
    """Decodes a batch's frame.

    Args:
        awaited_bytes_max: limit on the bytes of the awaited ranges.
        awaited_ranges_max: most ranges in the frame's list of awaited messages.

    Raises:
        RemoteProtocolError: with reason `bad_command` or `bad_ranges`.
    """
    number = u64_of(header, "n")
    awaited_bytes = u64_of(header, "w") if "w" in header else 0
    compression = header.get("z")
    if awaited_bytes > len(body):
        raise _wrong(header, "w", f"within the {len(body)} bytes of the body")
    if awaited_bytes > awaited_bytes_max:
        raise RemoteProtocolError(
            f"answers are asked for in {awaited_bytes:,} bytes of ranges: at most "
            f"{awaited_bytes_max:,} from who does not prove to be of the fabric",
            "bad_ranges",
        )
    if compression is not None and compression not in COMPRESSION_TYPES:
        raise _wrong(header, "z", f"one of {', '.join(COMPRESSION_TYPES)}")
    awaited = unpack_rooted(body[:awaited_bytes], awaited_ranges_max) if awaited_bytes else {}
    return LinkBatch(
        number,
        bool(header.get("m")),
        bool(header.get("u")),
        awaited,
        compression or "",
        body[awaited_bytes:] if awaited_bytes else body,
        _read_yours(header["y"]) if "y" in header else {},
    )


def _read_yours(flat: Any) -> Ranges:
    if type(flat) is not list or len(flat) % 3:
        raise RemoteProtocolError("ranges of a batch are no triples", "bad_ranges")
    found: dict[int, list[int]] = {}
    for at in range(0, len(flat), 3):
        if type(flat[at]) is not int:
            raise RemoteProtocolError("a publisher is no number", "bad_ranges")
        found.setdefault(flat[at], []).extend(flat[at + 1 : at + 3])
    return _paired(found)


def lacks_frames(lacks: PublisherRanges, whole: bool) -> list[bytes]:
    """Encodes messages that the sender has removed and the receiver lacks. Each frame can be
    decoded by itself."""
    return [encode_frame({"c": "lacks", "whole": whole}, part) for part in parts(lacks)]


def sent_at_ns(header: Header) -> int:
    """Returns when an ack was sent, in nanoseconds since 1970; 0: not known."""
    at_ns = header.get("at")
    return at_ns if type(at_ns) is int and 0 <= at_ns < 1 << 63 else 0


def root_of(header: Header) -> int:
    """Returns the root of a part of `waited`.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    return u64_of(header, "root")


def read_lacks(header: Header, body: bytes) -> tuple[PublisherRanges, bool]:
    """Decodes one frame of `lacks_frames`.

    Raises:
        RemoteProtocolError: with reason `bad_ranges`.
    """
    if len(body) > PART_BYTES_MAX:
        raise RemoteProtocolError(
            f"a part of what is lacking has {len(body):,} bytes: at most {PART_BYTES_MAX:,}",
            "bad_ranges",
        )
    lacks = PublisherRanges()
    read_part(body, lacks)
    return lacks, header.get("whole") is True


def ack_frames(ack: AckUpstream, at_ns: int) -> list[bytes]:
    """Encodes an ack; several frames where it has very many ranges. Each can be decoded by
    itself."""
    header: Header = {"c": "ack", "n": ack.number, "at": at_ns}
    if not ack.held and not ack.conflicts and len(ack.persisted) == 1:
        ((root, answered),) = ack.persisted.items()
        if len(answered) == 1:
            ((publisher, pairs),) = answered.items()
            if len(pairs) == 1:
                # Of one message, or one batch: the usual case.
                return [encode_frame(header, _pack([{}, {root: {publisher: pairs[0]}}, {}]))]
    parts_of = (ack.held, *ack.persisted.values(), ack.conflicts)
    count = sum([len(pairs) for part in parts_of for pairs in part.values()])
    if count <= RANGES_IN_ACK_MAX:
        held, conflicts = ack.held and _flat(ack.held), ack.conflicts and _flat(ack.conflicts)
        value = [held, ack.persisted and _flat_rooted(ack.persisted), conflicts]
        return [encode_frame(header, _pack(value) if count else b"")]
    frames = [encode_frame(header, _pack([part, {}, {}])) for part in _cut(ack.held)]
    for root, ranges in ack.persisted.items():
        frames += [encode_frame(header, _pack([{}, {root: part}, {}])) for part in _cut(ranges)]
    frames += [encode_frame(header, _pack([{}, {}, part])) for part in _cut(ack.conflicts)]
    return frames


def _cut(ranges: Ranges) -> Iterator[dict[int, list[int]]]:
    for publisher, pairs in ranges.items():
        for start in range(0, len(pairs), RANGES_IN_ACK_MAX):
            yield _flat({publisher: pairs[start : start + RANGES_IN_ACK_MAX]})


def read_ack(header: Header, body: bytes) -> tuple[int, Ranges, Rooted, Ranges]:
    """Decodes (number, held, persisted, conflicts) of an ack.

    Raises:
        RemoteProtocolError: with reason `bad_command` or `bad_ranges`.
    """
    number = u64_of(header, "n")
    if not body:
        return number, {}, {}, {}
    if len(body) > ACK_BYTES_MAX:
        raise RemoteProtocolError(
            f"an ack has {len(body):,} bytes of ranges: at most {ACK_BYTES_MAX:,}", "bad_ranges"
        )
    value = _unpacked_ranges(body, RANGES_IN_ACK_MAX)
    if type(value) is not list or len(value) != 3:
        raise RemoteProtocolError("an ack has no three maps of ranges", "bad_ranges")
    held, persisted, conflicts = value
    return (
        number,
        held if held == {} else _paired(held),
        _paired_rooted(persisted),
        conflicts if conflicts == {} else _paired(conflicts),
    )


def refusal(
    reason: str, text: str, placements: Mapping[str, InstancePlacement] | None = None
) -> bytes:
    header: Header = {"c": "refused", "reason": reason, "text": text[:REFUSAL_CHARACTERS_MAX]}
    return encode_frame(header | _placed_values(0, placements or {}))


def names_frame(part: bytes) -> bytes:
    """Encodes whom publisher ids belong to: a part of `PublisherNames`."""
    return encode_frame({"c": "names"}, part)


def placed(placements: Mapping[str, InstancePlacement]) -> bytes:
    return encode_frame({"c": "placed", "placements": to_wire(placements)})


def read_placed(header: Header) -> dict[str, InstancePlacement]:
    """Returns the placements of a frame; none where it has none.

    Raises:
        RemoteProtocolError: with reason `bad_placements`.
    """
    return from_wire(header.get("placements"))
