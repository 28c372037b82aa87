"""What an instance and its own links say to each other over the instance's Unix socket: frames.

    link to instance
      hello         destination, start (number of this start), pid
      wake          destination, start: on a second connection, over which the instance then sends
                    nothing but WAKE: committed up to this transaction id
      carry         destination, start, upstream: the first frame of a connection of its own, which
                    from then on is a stream over the incoming connection of that number
      carried       destination, start: the first frame of a connection of its own, which from then
                    on is a stream that came over the link's connection: another instance's link
      waits         why: nothing can be dialled now
      dial          asks for what a logon downstream needs
      connected     incarnation, name, client, address, same, generation, placements; body: held
                    (range sets), waited (range sets root by root)
      disconnected  why
      placed        placements: of moved instances, as the destination tells of them
      answered      at: ns when it was answered there; body: persisted (ranges root by root),
                    conflicts (ranges)
      progress      tx: stored_txid, u: caught up, skipped; body: resending (ranges)
      event         event, details
      counts        sent records, sent bytes, in flight …: for status only

    instance to link
      epoch         epoch, digest, generation, placements, proof: the answer to `dial`; the epoch is
                    on disk; body: what the instance tells of itself (description.py)
      aim           addresses: dial these from now on; placements: news of moved instances
      refuse        why: go on to the next server, this one may not be used
      start         sync, root (of what clients publish here), tx: last_txid; body: notice, mark
                    (ranges root by root), held (range sets, when the digests agreed)
      incoming      upstream, name, incarnation: the incoming connection that the link may use;
                    upstream 0: there is none; proven: that it may say of this instance that it is
                    an old copy
      told          tx: committed up to here
      notice        tx: last_txid; body: awaited (ranges root by root)
      mode          sync
      stop          go away

Both ends are of one version: they are started from one installation, so nothing is negotiated.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack

from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkLacks,
    LinkProgress,
    Ranges,
    Rooted,
)
from raylay.services.replication.instance import LinkStart
from raylay.services.replication.placement import Placement, to_wire
from raylay.services.replication.ranges import PublisherRanges

CONTROL_FRAME_BYTES_MAX = 256 * 1024 * 1024

WAKE = struct.Struct("<Q")

_pack = msgpack.Packer(use_bin_type=True).pack


def _body(*values: Any) -> bytes:
    packed: bytes = _pack(values)
    return packed


def _values(body: bytes) -> list[Any]:
    found: list[Any] = msgpack.unpackb(body, strict_map_key=False)
    return found


def _ranges(value: dict[int, list[list[int]]]) -> Ranges:
    return {key: [(first, last) for first, last in pairs] for key, pairs in value.items()}


def _rooted(value: dict[int, dict[int, list[list[int]]]]) -> Rooted:
    return {root: _ranges(ranges) for root, ranges in value.items()}


def hello(destination: str, start_number: int, pid: int) -> bytes:
    """A link says which one it is."""
    return encode_frame(
        {"c": "hello", "destination": destination, "start": start_number, "pid": pid}
    )


def wake(destination: str, start_number: int) -> bytes:
    """The first and only frame of a link's second connection."""
    return encode_frame({"c": "wake", "destination": destination, "start": start_number})


def carry(destination: str, start_number: int, upstream: int) -> bytes:
    """The first frame of a connection that goes on over an incoming one."""
    return encode_frame(
        {"c": "carry", "destination": destination, "start": start_number, "upstream": upstream}
    )


def carried(destination: str, start_number: int) -> bytes:
    """The first frame of a connection that brings another instance's link."""
    return encode_frame({"c": "carried", "destination": destination, "start": start_number})


def incoming(upstream: int, name: str, incarnation: int, *, proven: bool = False) -> bytes:
    """The incoming connection that a link may use."""
    header: Header = {"c": "incoming", "upstream": upstream, "name": name}
    return encode_frame(header | {"incarnation": incarnation, "proven": proven})


def connected(
    incarnation: int,
    name: str,
    client: str,
    address: str,
    held: PublisherRanges | None,
    waited: RootedRanges,
    generation: int = 0,
    placements: Mapping[str, Placement] | None = None,
) -> bytes:
    """The link is connected. `held` is None where the digests agreed."""
    header: Header = {
        "c": "connected",
        "incarnation": incarnation,
        "name": name,
        "client": client,
        "address": address,
        "same": held is None,
        "generation": generation,
        "placements": to_wire(placements or {}),
    }
    return encode_frame(header, _body(held.to_wire() if held is not None else {}, waited.to_wire()))


def read_connected(body: bytes) -> tuple[PublisherRanges, RootedRanges]:
    """(held, waited) of `connected`."""
    held, waited = _values(body)
    return PublisherRanges.from_wire(held), RootedRanges.from_wire(waited)


def placed(placements: Mapping[str, Placement]) -> bytes:
    """The destination told of moved instances."""
    return encode_frame({"c": "placed", "placements": to_wire(placements)})


def aim(addresses: tuple[str, ...], news: Mapping[str, Placement]) -> bytes:
    """Instances were moved: what the link dials from now on, and what it is to tell."""
    return encode_frame({"c": "aim", "addresses": addresses, "placements": to_wire(news)})


def refuse(why: str) -> bytes:
    """The server that the link has reached may not be used."""
    return encode_frame({"c": "refuse", "why": why})


def answered(effect: LinkAnswered, at_ns: int) -> bytes:
    """The destination answered."""
    return encode_frame(
        {"c": "answered", "at": at_ns},
        _body(effect.persisted, effect.conflicts),
    )


def read_answered(body: bytes) -> tuple[Rooted, Ranges]:
    """(persisted, conflicts) of `answered`."""
    persisted, conflicts = _values(body)
    return _rooted(persisted), _ranges(conflicts)


def lacks(effect: LinkLacks) -> bytes:
    """What will never be sent."""
    return encode_frame({"c": "lacks"}, _body(effect.ranges))


def read_lacks(body: bytes) -> Ranges:
    """The inverse of `lacks`."""
    return _ranges(_values(body)[0])


def progress(effect: LinkProgress) -> bytes:
    """How far the link is."""
    return encode_frame(
        {
            "c": "progress",
            "tx": effect.stored_txid,
            "u": effect.caught_up,
            "skipped": effect.skipped,
        },
        _body(effect.resending) if effect.resending else b"",
    )


def read_progress(header: Header, body: bytes) -> LinkProgress:
    """The inverse of `progress`."""
    resending = _ranges(_values(body)[0]) if body else {}
    return LinkProgress(header["tx"], resending, header["u"], header["skipped"])


def start(start_: LinkStart, held: PublisherRanges | None) -> bytes:
    """What a connected link begins with. `held`: what the destination holds, where the link does
    not know it because the digests agreed."""
    return encode_frame(
        {
            "c": "start",
            "sync": start_.sync,
            "root": start_.own_root,
            "tx": start_.last_txid,
            "whole": start_.whole,
        },
        _body(
            start_.notice,
            start_.mark,
            held.to_wire() if held is not None else None,
            start_.unavailable.to_wire(),
        ),
    )


def read_start(header: Header, body: bytes) -> tuple[LinkStart, PublisherRanges | None]:
    """The inverse of `start`."""
    notice, mark, held, unavailable = _values(body)
    return (
        LinkStart(
            header["sync"],
            _rooted(notice),
            _rooted(mark),
            header["root"],
            header["tx"],
            PublisherRanges.from_wire(unavailable),
            header["whole"],
        ),
        None if held is None else PublisherRanges.from_wire(held),
    )


def notice(awaited: Rooted, last_txid: int) -> bytes:
    """Ask the destination."""
    return encode_frame({"c": "notice", "tx": last_txid}, _body(awaited))


def read_notice(body: bytes) -> Rooted:
    """The awaited ranges of `notice`."""
    return _rooted(_values(body)[0])
