"""The protocol between an instance and its own links, over the instance's Unix socket: frames.

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
      held, waited  root; body: a part of the sets as it came from the destination
      connected     epoch: that it logged on with, incarnation, name, client, address, same,
                    generation, placements, names (as in `accepted`); all parts of held and waited
                    have come before
      disconnected  why
      placed        placements: of moved instances, as the destination tells of them
      answered      at: ns when it was answered there; body: persisted (ranges root by root),
                    conflicts (ranges)
      progress      tx: stored_txid, u: caught up, skipped; body: resending (ranges)
      event         event, details
      hand_over     what DirectLinkState has, epoch, peer; body: held, unavailable. The
                    descriptor has come before, by datagram to the path of the Unix socket with
                    DIRECT_SUFFIX behind it: handed_over, destination, start
      keeps         for_good: the answer to `take_over` where it does not hand over its connection
      pong          the answer to `ping`: so answer owners of queues and buffers, too
      counts        sent records, sent bytes, in flight …: for status only

    instance to link
      epoch         epoch, digest, generation, placements, proof: the answer to `dial`; the epoch is
                    on disk; body: what the instance tells of itself
                    (services/protocol/link/description.py)
      aim           addresses: dial these from now on; placements: news of moved instances
      refuse        why: go on to the next server, this one may not be used
      part          of: held (when the digests agreed), notice, mark or unavailable, root; body: a
                    part of these sets
      start         sync, root (of what clients publish here), tx: last_txid, whole; all parts have
                    come before
      incoming      upstream, name, incarnation: the incoming connection that the link may use;
                    upstream 0: there is none; proven: that it may say of this instance that it is
                    an old copy
      told          tx: committed up to here
      notice        tx: last_txid; body: awaited (ranges root by root)
      mode          sync
      take_over     tx: committed up to here; asks for the connection: `hand_over` or `keeps`
                    answers
      beside        stretch: what the filters left out over the connection that it has handed
                    over, body: publisher to ranges
      returned      why: the connection that it has handed over is over
      queue         body: a frame for the destination, where it understands that (queue_requests.py)
      names         body: a frame for the destination, which must not be lost while it is connected
      ping          it has said nothing for a while: `pong` answers
      rotate        begin a new log file; all child processes take it
      stop          go away

Both ends are of one version: they are started from one installation, so nothing is negotiated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.protocol.link.replication import parts, read_part
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkLacks,
    LinkProgress,
    Ranges,
    Rooted,
    ranges_of,
)
from raylay.services.replication.membership.placement import InstancePlacement, to_wire
from raylay.services.replication.values import DirectLinkState, LinkStart

PING, PONG = encode_frame({"c": "ping"}), encode_frame({"c": "pong"})
ROTATE = encode_frame({"c": "rotate"})
"""Frames that ask whether a child process is alive, and that it answers with."""
CONTROL_FRAME_BYTES_MAX = 256 * 1024 * 1024

DIRECT_SUFFIX = ".direct"
"""Suffix that is added to the path of an instance's Unix socket to name the socket for descriptors
of links."""
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
    """Encodes a link's first frame, which tells its destination."""
    return encode_frame(
        {"c": "hello", "destination": destination, "start": start_number, "pid": pid}
    )


def wake(destination: str, start_number: int) -> bytes:
    """Encodes the first and only frame of a link's second connection."""
    return encode_frame({"c": "wake", "destination": destination, "start": start_number})


def carry(destination: str, start_number: int, upstream: int) -> bytes:
    """Encodes the first frame of a connection that continues over an incoming one."""
    return encode_frame(
        {"c": "carry", "destination": destination, "start": start_number, "upstream": upstream}
    )


def carried(destination: str, start_number: int, certificate: list[str] | None = None) -> bytes:
    """Encodes the first frame of a connection that carries another instance's link.

    Args:
        certificate: certificate of the other side of the carrying connection (`PeerCertificate`);
            None: it showed none.
    """
    header: Header = {"c": "carried", "destination": destination, "start": start_number}
    if certificate is not None:
        header["certificate"] = certificate
    return encode_frame(header)


def incoming(upstream: int, name: str, incarnation: int, *, proven: bool = False) -> bytes:
    header: Header = {"c": "incoming", "upstream": upstream, "name": name}
    return encode_frame(header | {"incarnation": incarnation, "proven": proven})


def connected(
    incarnation: int,
    name: str,
    client: str,
    address: str,
    *,
    epoch: int,
    same: bool,
    generation: int = 0,
    placements: Mapping[str, InstancePlacement] | None = None,
    names: bytes = b"",
) -> bytes:
    """Encodes that a link is connected. `same`: whether the digests agreed."""
    header: Header = {
        "c": "connected",
        "epoch": epoch,
        "incarnation": incarnation,
        "name": name,
        "client": client,
        "address": address,
        "same": same,
        "generation": generation,
        "placements": to_wire(placements or {}),
        "names": names,
    }
    return encode_frame(header)


def part_of_logon(command: str, root: int, body: bytes) -> bytes:
    """Encodes a part of `held` or `waited`, as it came from the destination."""
    return encode_frame({"c": command, "root": root}, body)


def placed(placements: Mapping[str, InstancePlacement]) -> bytes:
    return encode_frame({"c": "placed", "placements": to_wire(placements)})


def aim(addresses: tuple[str, ...], news: Mapping[str, InstancePlacement]) -> bytes:
    """Encodes new addresses for a link, with the placements that it is to tell its destination."""
    return encode_frame({"c": "aim", "addresses": addresses, "placements": to_wire(news)})


def refuse(why: str) -> bytes:
    """Encodes that the server reached by a link must not be used."""
    return encode_frame({"c": "refuse", "why": why})


def answered(effect: LinkAnswered, at_ns: int) -> bytes:
    return encode_frame(
        {"c": "answered", "at": at_ns},
        _body(effect.persisted, effect.conflicts),
    )


def read_answered(body: bytes) -> tuple[Rooted, Ranges]:
    """Decodes (persisted, conflicts) of an `answered` frame."""
    persisted, conflicts = _values(body)
    return _rooted(persisted), _ranges(conflicts)


def lacks(effect: LinkLacks) -> bytes:
    """Encodes the messages that a link will never send."""
    return encode_frame({"c": "lacks"}, _body(effect.ranges))


def read_lacks(body: bytes) -> Ranges:
    """Decodes a `lacks` frame."""
    return _ranges(_values(body)[0])


def progress(effect: LinkProgress) -> bytes:
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
    """Decodes a `progress` frame."""
    resending = _ranges(_values(body)[0]) if body else {}
    return LinkProgress(header["tx"], resending, header["u"], header["skipped"])


def start_frames(start: LinkStart, held: PublisherRanges | None) -> Iterator[bytes]:
    """Yields the frames that start a connected link, each encoded when it is asked for. `held`:
    messages that the destination holds, where the link does not know them because the digests
    agreed."""
    every = [
        ("held", 0, held or PublisherRanges()),
        *(("notice", root, sets) for root, sets in start.notice.roots.items()),
        *(("mark", root, sets) for root, sets in start.mark.roots.items()),
        ("unavailable", 0, start.unavailable),
    ]
    for name, root, sets in every:
        for part in parts(sets):
            yield encode_frame({"c": "part", "of": name, "root": root}, part)
    yield encode_frame(
        {
            "c": "start",
            "sync": start.sync,
            "root": start.own_root,
            "tx": start.last_txid,
            "whole": start.whole,
        }
    )


class StartReader:
    """Assembles the frames of `start_frames`.

    Owner: the link. Lifecycle: one connection.
    """

    def __init__(self) -> None:
        self.held = PublisherRanges()
        """Messages that the destination holds, where the destination did not tell them itself."""
        self._notice = RootedRanges()
        self._mark = RootedRanges()
        self._unavailable = PublisherRanges()

    def take(self, header: Header, body: bytes) -> None:
        """Takes a `part`."""
        rooted = {"notice": self._notice, "mark": self._mark}.get(header["of"])
        if rooted is not None:
            read_part(body, rooted.of(header["root"]))
        else:
            read_part(body, self.held if header["of"] == "held" else self._unavailable)

    def started(self, header: Header) -> LinkStart:
        """Takes the last frame. Returns the link's start state."""
        return LinkStart(
            header["sync"],
            self._notice,
            self._mark,
            header["root"],
            header["tx"],
            self._unavailable,
            header["whole"],
        )


def handed_over(destination: str, start_number: int) -> bytes:
    return encode_frame({"c": "handed_over", "destination": destination, "start": start_number})


def beside(stretch: int, ranges: PublisherRanges) -> bytes:
    """Encodes the sequences that an instance's filters left out in a stretch of the journal, while
    the instance had the link's connection."""
    return encode_frame({"c": "beside", "stretch": stretch}, msgpack.packb(ranges.to_wire()))


def read_beside(header: Header, body: bytes) -> tuple[int, PublisherRanges]:
    """Decodes a `beside` frame."""
    ranges = PublisherRanges.from_wire(msgpack.unpackb(body, strict_map_key=False))
    return header["stretch"], ranges


def queue(frame: bytes) -> bytes:
    return encode_frame({"c": "queue"}, frame)


def names(frame: bytes) -> bytes:
    return encode_frame({"c": "names"}, frame)


def hand_over(state: DirectLinkState, epoch: int, peer: str) -> bytes:
    header: Header = {
        "c": "hand_over",
        "downstream": state.downstream,
        "tx": state.cursor,
        "number": state.number,
        "root": state.own_root,
        "sync": state.sync,
        "whole": state.whole,
        "epoch": epoch,
        "peer": peer,
    }
    return encode_frame(header, _body(ranges_of(state.held), ranges_of(state.unavailable)))


def read_hand_over(header: Header, body: bytes) -> DirectLinkState:
    """Decodes a `hand_over` frame."""
    held, unavailable = map(_sets, _values(body))
    return DirectLinkState(
        header["downstream"],
        held,
        header["tx"],
        header["number"],
        header["root"],
        header["sync"],
        unavailable,
        header["whole"],
    )


def _sets(ranges: dict[int, list[list[int]]]) -> PublisherRanges:
    sets = PublisherRanges()
    for publisher, pairs in _ranges(ranges).items():
        sets.add_ranges(publisher, pairs)
    return sets


def notice(awaited: Rooted, last_txid: int) -> bytes:
    return encode_frame({"c": "notice", "tx": last_txid}, _body(awaited))


def read_notice(body: bytes) -> Rooted:
    """Decodes the awaited ranges of a `notice` frame."""
    return _rooted(_values(body)[0])
