"""The bodies of the records that change a queue, in msgpack: their values, reading and writing.

They are journaled on the topic of the queue's name and type, and replicated like messages, but
delivered to no consumer. All instances that have the queue read the same.

    acknowledgment (command 3), a client's:
      acks   map of publisher to first, last, first, last, … of the messages
      how    `ack`, or `expire`: they are removed, with reason `forced_expire`; where the queue has
             dead letters, their owner removes them, behind their letters
    transfer (command 4), an instance's:
      by     its name
      tag    u64 by which it knows its draft again
      moves  array of [publisher, first, last, generation, owner's name]
      names  map of incarnation to the name of the instance that bears it
    removal (command 7), an instance's:
      by, tag
      gone   as `acks`
      why    see `REASONS`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.bounded_msgpack import unpack_values
from raylay.services.messages.ranges import Range
from raylay.services.messages.records import Command, Record

RANGES_MAX = 4_096
"""The number of ranges in one acknowledgment or removal, and of moves in one transfer. An instance
reads as many in about 2 ms, in its event loop."""
NAMES_MAX = 4_096
NAME_BYTES_MAX = 400
"""The longest name of an instance, in bytes, as in a link's logon."""
KEYS_BYTES_MAX = 136 << 10
"""The largest body of an acknowledgment, a removal or a `queue_cancel`: `RANGES_MAX` publishers
with one range each, of numbers of 9 bytes, and array headers of 5 bytes if a client writes them
so."""
KEYS_VALUES_MAX = 5 * RANGES_MAX
"""The most values in such a body: for each publisher its key, an array and two numbers."""
TRANSFER_BYTES_MAX = 4 << 20
"""The largest body of a transfer: `RANGES_MAX` moves, and `NAMES_MAX` names of `NAME_BYTES_MAX`
each."""
TRANSFER_VALUES_MAX = 8 * RANGES_MAX + 16
"""The most values in such a body: an array of five for each move, and the names."""
U64_MAX = (1 << 64) - 1
HOW = ("ack", "expire")
NOT_LEASED = "not_leased"
"""The reason of refusing an acknowledgment that names messages which its client does not hold where
the acknowledgment comes in."""
UNDONE = ("time_limit", "forced_expire", "max_cancels", "max_deliveries")
"""Reasons why a message has left a queue without being done."""
REASONS = (*UNDONE, "sent", "barrier", "left")
"""The reasons why a message has left a queue without an acknowledgment. `sent` and `barrier`: it
was delivered. `left`: an earlier record, which came before the message, is repeated behind it."""

ACKNOWLEDGED = "acknowledged"
"""The reason why a message has left a queue that a client has acknowledged. No record has it."""

Keys = Mapping[int, Sequence[Range]]
"""Messages, as the ranges of their sequences by publisher."""


class Acknowledgment(NamedTuple):
    """A client's acknowledgment of messages.

    Attributes:
        how: one of `HOW`.
    """

    keys: Keys
    how: str = "ack"


class OwnershipChange(NamedTuple):
    """The ownership of some messages, as a record states it.

    Attributes:
        generation: the generation of the ownership. The higher one counts; with equal generations,
            the lower owner's name. In generation 0 it names the instance that a client gave the
            messages first, and counts more than the beginning of their path.
    """

    publisher: int
    first: int
    last: int
    generation: int
    owner: str


class Transfer(NamedTuple):
    """An instance's statement of new owners of messages.

    Attributes:
        by: the name of the instance that wrote the transfer.
        tag: the tag of the draft at that instance; 0: no draft waits for the record.
        names: the names of the instances that bear incarnations.
    """

    by: str
    tag: int = 0
    moves: Sequence[OwnershipChange] = ()
    names: Mapping[int, str] = {}


class Removal(NamedTuple):
    """Messages that left the queue without an acknowledgment.

    Attributes:
        why: one of `REASONS`.
    """

    by: str
    tag: int
    keys: Keys
    why: str


_pack = msgpack.Packer(use_bin_type=True).pack


def parts_of(said: Acknowledgment) -> list[Acknowledgment]:
    """Divides an acknowledgment into as many records as it takes, each within the limits."""
    parts: list[Acknowledgment] = []
    keys: dict[int, Sequence[Range]] = {}
    room = RANGES_MAX
    for publisher, ranges in said.keys.items():
        for at in range(0, len(ranges), RANGES_MAX):
            left = ranges[at : at + RANGES_MAX]
            if len(left) > room:
                parts.append(said._replace(keys=keys))
                keys, room = {}, RANGES_MAX
            keys[publisher] = left
            room -= len(left)
            if not room:
                parts.append(said._replace(keys=keys))
                keys, room = {}, RANGES_MAX
    if keys:
        parts.append(said._replace(keys=keys))
    return parts


def pack_acknowledgment(said: Acknowledgment) -> bytes:
    return _packed({"acks": _flat(said.keys), "how": said.how})


def pack_transfer(said: Transfer) -> bytes:
    moves = [list(move) for move in said.moves]
    return _packed({"by": said.by, "tag": said.tag, "moves": moves, "names": dict(said.names)})


def pack_removal(said: Removal) -> bytes:
    return _packed({"by": said.by, "tag": said.tag, "gone": _flat(said.keys), "why": said.why})


def read_acknowledgment(body: bytes) -> Acknowledgment:
    """Decodes the body of an acknowledgment.

    Raises:
        RemoteProtocolError: the body is not valid; with reason `bad_message`.
    """
    said = _read_map(body, "an acknowledgment", ("acks", "how"))
    how = said.get("how", "ack")
    if how not in HOW:
        raise _wrong(f"how is none of {' and '.join(HOW)}")
    return Acknowledgment(_keys(said.get("acks"), "acks"), how)


def read_transfer(body: bytes) -> Transfer:
    """Decodes the body of a transfer.

    Raises:
        RemoteProtocolError: the body is not valid; with reason `bad_message`.
    """
    names = "by", "tag", "moves", "names"
    said = _read_map(body, "a transfer", names, TRANSFER_BYTES_MAX, TRANSFER_VALUES_MAX)
    moves, borne = said.get("moves", []), said.get("names", {})
    if type(moves) is not list or len(moves) > RANGES_MAX:
        raise _wrong(f"moves are no array of at most {RANGES_MAX}")
    if type(borne) is not dict or len(borne) > NAMES_MAX:
        raise _wrong(f"names are no map of at most {NAMES_MAX}")
    for incarnation, name in borne.items():
        if not _is_whole(incarnation, 1) or not _is_name(name):
            raise _wrong("names are no map of incarnations to names of instances")
    return Transfer(_by(said), _tag(said), [_move(move) for move in moves], borne)


def read_removal(body: bytes) -> Removal:
    """Decodes the body of a removal.

    Raises:
        RemoteProtocolError: the body is not valid; with reason `bad_message`.
    """
    said = _read_map(body, "a removal", ("by", "tag", "gone", "why"))
    why = said.get("why")
    if why not in REASONS:
        raise _wrong(f"why is none of {', '.join(REASONS)}")
    return Removal(_by(said), _tag(said), _keys(said.get("gone"), "gone"), why)


def read_keys(body: bytes) -> Keys:
    """Returns the messages that a body names in the form of `acks` in an acknowledgment.

    Raises:
        RemoteProtocolError: the body is not valid; with reason `bad_message`.
    """
    return _keys(_read(body, "the command"), "the body")


def keys_of(keys: Iterable[tuple[int, int]]) -> dict[int, list[Range]]:
    """Returns the messages as ranges, publisher by publisher.

    Args:
        keys: the publisher and sequence of each message, in any order.
    """
    found: dict[int, list[Range]] = {}
    for publisher, sequence in sorted(keys):
        ranges = found.setdefault(publisher, [])
        if ranges and sequence <= ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], sequence
        else:
            ranges.append((sequence, sequence))
    return found


def _packed(said: Mapping[str, Any]) -> bytes:
    packed: bytes = _pack(said)
    return packed


def _flat(keys: Keys) -> dict[int, list[int]]:
    return {
        publisher: [number for pair in ranges for number in pair]
        for publisher, ranges in keys.items()
    }


def _wrong(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{text}: docs/protocol.md shows the record", "bad_message")


def _read(
    body: bytes, what: str, bytes_max: int = KEYS_BYTES_MAX, values_max: int = KEYS_VALUES_MAX
) -> dict[Any, Any]:
    """Returns the map that a body contains. An empty array takes 1 byte on the wire and 56 in
    memory, so a body with more values than a valid one can have is not decoded."""
    if len(body) > bytes_max:
        raise _wrong(
            f"the body of {what} has {len(body)} bytes, more than the {bytes_max} bytes that one "
            "may have: send several"
        )
    try:
        said = unpack_values(body, values_max, 2 * RANGES_MAX)
    except Exception as error:  # whatever the bytes bring it to raise
        raise _wrong(
            f"the body of {what} is no msgpack ({type(error).__name__}), or has more than "
            f"{RANGES_MAX} ranges: send several records"
        ) from None
    if type(said) is not dict:
        raise _wrong(f"the body of {what} is no map")
    return said


def _read_map(
    body: bytes,
    what: str,
    names: tuple[str, ...],
    bytes_max: int = KEYS_BYTES_MAX,
    values_max: int = KEYS_VALUES_MAX,
) -> dict[Any, Any]:
    """Returns the map that a record's body contains. Unknown keys are refused: they would be
    journaled, and cost each instance that reads the record."""
    said = _read(body, what, bytes_max, values_max)
    if not said.keys() <= set(names):
        raise _wrong(f"{what} has a key that is none of {', '.join(names)}")
    return said


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= U64_MAX


def _is_name(value: Any) -> bool:
    if type(value) is not str:
        return False
    return 1 <= len(value.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX


def _by(said: Mapping[Any, Any]) -> str:
    by = said.get("by")
    if not _is_name(by):
        raise _wrong("by is no name of an instance")
    assert isinstance(by, str)
    return by


def _tag(said: Mapping[Any, Any]) -> int:
    tag = said.get("tag", 0)
    if not _is_whole(tag, 0):
        raise _wrong("tag is no whole number")
    assert isinstance(tag, int)
    return tag


def _keys(said: Any, what: str) -> Keys:
    if type(said) is not dict:
        raise _wrong(f"{what} is no map of publishers to their sequences")
    found: dict[int, list[Range]] = {}
    count = 0
    for publisher, flat in said.items():
        if not _is_whole(publisher, 1) or type(flat) is not list or len(flat) % 2:
            raise _wrong(f"{what} has no pairs of first and last for a publisher")
        count += len(flat) // 2
        if count > RANGES_MAX:
            raise _wrong(f"{what} has more than {RANGES_MAX} ranges: send several records")
        before = 0
        pairs: list[Range] = []
        for first, last in zip(flat[::2], flat[1::2], strict=True):
            if not (_is_whole(first, before + 1) and _is_whole(last, first)):
                raise _wrong(f"{what} has ranges of a publisher that do not ascend")
            pairs.append((first, last))
            before = last
        found[publisher] = pairs
    return found


def _move(said: Any) -> OwnershipChange:
    if type(said) is not list or len(said) != 5:
        raise _wrong("a move is no array of five")
    publisher, first, last, generation, owner = said
    if not (_is_whole(publisher, 1) and _is_whole(first, 1) and _is_whole(last, first)):
        raise _wrong("a move names no messages")
    if not _is_whole(generation, 0) or not _is_name(owner):
        raise _wrong("a move has no generation from 0, or no owner")
    return OwnershipChange(publisher, first, last, generation, owner)


def read_record(record: Record) -> Acknowledgment | Transfer | Removal | None:
    """Reads a record of a queue. Returns None if the record has no command of queues.

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    if record.command == Command.QUEUE_ACKNOWLEDGMENT:
        return read_acknowledgment(record.body)
    if record.command == Command.TRANSFER:
        return read_transfer(record.body)
    return read_removal(record.body) if record.command == Command.QUEUE_REMOVAL else None
