"""Offsets of a stream that reads over the network: sets of messages, the same at every instance.

An offset is what had been published up to some moment: for each publisher, the sequences that one
instance held. It covers all topics, because an instance does not tell them apart there. The
messages of a micro-batch are those of its end that are not of its start, so any instance gives the
same ones, in whatever order they came to it.
"""

from __future__ import annotations

import base64
from typing import Any

import msgpack
import zstandard

from raylay.services.errors import ConfigurationError, RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges

SEQUENCE_MAX = (1 << 63) - 1
_HELD = "held"
_OFFSET_BYTES_MAX = 1 << 30


def to_json(held: PublisherRanges) -> dict[str, Any]:
    """Returns an offset for Spark's checkpoint. Equal sets give equal texts, by which Spark sees
    that nothing is new."""
    wire = held.to_wire()
    packed = msgpack.packb({publisher: wire[publisher] for publisher in sorted(wire)})
    return {_HELD: base64.b64encode(zstandard.compress(packed)).decode(), "messages": held.count}


def from_json(offset: dict[str, Any]) -> PublisherRanges:
    """Returns the set of an offset.

    Raises:
        ConfigurationError: it is no offset of a read over the network.
    """
    try:
        packed = zstandard.decompress(
            base64.b64decode(offset[_HELD]), max_output_size=_OFFSET_BYTES_MAX
        )
        return PublisherRanges.from_wire(msgpack.unpackb(packed, strict_map_key=False))
    except (KeyError, TypeError, ValueError, zstandard.ZstdError, RemoteProtocolError) as error:
        raise ConfigurationError(
            f"the checkpoint has no offset of a read over the network ({error}): its query read "
            "journals, or another source; begin a new checkpoint"
        ) from None


def new_in(start: PublisherRanges, end: PublisherRanges) -> PublisherRanges:
    """Returns the messages of `end` that are not in `start`."""
    found = end.copy()
    found.difference_update(start)
    return PublisherRanges({key: each for key, each in found.sets.items() if each})


def lies_before(one: PublisherRanges, other: PublisherRanges) -> bool:
    """Returns whether what was held at one moment lacks something of the other, and has nothing
    else."""
    return not new_in(other, one).sets and bool(new_in(one, other).sets)


def united(one: PublisherRanges, other: PublisherRanges) -> PublisherRanges:
    """Returns the messages that are in either set."""
    found = one.copy()
    found.update(other)
    return found


def first_of_each(held: PublisherRanges) -> PublisherRanges:
    """Returns the sequence 0, which no message has, of every publisher."""
    found = PublisherRanges()
    for publisher in held.sets:
        found.add(publisher, 0, 0)
    return found


def covers(held: PublisherRanges, wanted: PublisherRanges) -> bool:
    """Returns whether all of `wanted` is in `held`."""
    return all(held.covers(publisher, ranges) for publisher, ranges in wanted.sets.items())


def limited(start: PublisherRanges, end: PublisherRanges, most: int) -> PublisherRanges:
    """Returns the end of a micro-batch of at most `most` messages: every publisher's first new
    ones, in proportion to what each has."""
    new = new_in(start, end)
    total = new.count
    if total <= most:
        return end
    found = start.copy()
    seen = given = 0
    for publisher in sorted(new.sets):
        ranges = new.sets[publisher]
        seen += ranges.count
        upto = seen * most // total
        found.add_ranges(publisher, _first(ranges, upto - given))
        given = upto
    return found


def _first(ranges: Any, count: int) -> list[tuple[int, int]]:
    found = []
    for first, last in ranges:
        if count <= 0:
            break
        upto = min(last, first + count - 1)
        found.append((first, upto))
        count -= upto - first + 1
    return found


def portions(
    start: PublisherRanges, end: PublisherRanges, most: int, least_messages: int
) -> list[PublisherRanges]:
    """Divides the new messages of `end` into at most `most` sets of about one size.

    Args:
        least_messages: number of messages below which a set is not divided further.
    """
    new = new_in(start, end)
    total = new.count
    if not total:
        return []
    size = -(-total // max(1, min(most, total // least_messages)))
    found = [PublisherRanges()]
    room = size
    for publisher in sorted(new.sets):
        for begin, last in new.sets[publisher]:
            first = begin
            while first <= last:
                if not room:
                    found.append(PublisherRanges())
                    room = size
                upto = min(last, first + room - 1)
                found[-1].add(publisher, first, upto)
                room -= upto - first + 1
                first = upto + 1
    return found


def told_as_held(
    start: PublisherRanges, end: PublisherRanges, portion: PublisherRanges
) -> PublisherRanges:
    """Returns what a task that reads a portion says it holds: everything of the publishers that
    the offsets know but the portion. So it is not sent what comes behind `end` or, on another
    path, into its gaps: the micro-batch that has them in its end brings them."""
    found = PublisherRanges()
    for publisher in start.sets.keys() | end.sets.keys():
        found.add(publisher, 0, SEQUENCE_MAX)
    for publisher, ranges in portion.sets.items():
        found.remove_ranges(publisher, list(ranges))
    return found
