"""Conflated replays: a bookmark subscription gets of each key, in each interval of the original
timeline, the last message (behaviour.md 4.5).

The timeline is that of the receive times in the log, so that a replay conflates the same messages
however fast it is. At the end of the log the time goes on by the clock: what is pending there is
given when its interval has passed, and messages that come live are conflated with it.

A message that a later one has replaced counts as seen once the later one was given. A client that
subscribes again with what it has may lack the replaced message and have its successor: the message
is replayed, and forgotten when the successor is passed over. As receive times differ between
instances, nothing is given in the first stretch of such a replay before its end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from raylay.services.errors import MessageTypeError, RemoteProtocolError, SowKeyError
from raylay.services.messages.records import Record, Run
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.messages.types.trees import FieldPath
from raylay.services.sow.topic import SowTopic
from raylay.services.subscriptions.conflation import FLUSHED_AT_ONCE, ConflatedChange, Conflator
from raylay.services.subscriptions.conflation_keys import conflation_key, key_in, key_paths
from raylay.services.subscriptions.delivery import DeliveryContent
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import TopicFilter

STAMPS_APART_US_MAX = 10_000
"""Largest difference of the receive times in one delivery, whose time is that of its first
message."""
ENTRY_BYTES = 400
"""Approximate memory of a pending message, besides its bytes."""
RESUMED_US = 2_000_000
"""Stretch of the timeline, besides an interval, in which a message may be far from its successor,
because it came to this instance by other ways than to the former one."""
KeyOf = Callable[[Record], "bytes | None"]


class ReplayKeys:
    """The keys of replayed messages. Immutable.

    Args:
        types: the message types, which parse bodies.
        find: returns the SOW topic that keeps a topic, by name and message type; None: none does.
        paths: paths of the key fields; none: the SOW key.
    """

    __slots__ = ("_find", "_paths", "_types")

    def __init__(
        self,
        types: MessageTypeTable,
        find: Callable[[bytes, bytes], SowTopic | None],
        paths: tuple[FieldPath, ...],
    ) -> None:
        self._types = types
        self._find = find
        self._paths = paths

    def of(self, run: Run) -> KeyOf:
        """Returns the function that makes the keys of a run's messages: None for one that has no
        key, because it cannot be read or lacks a key field of its SOW topic."""
        name, paths = run.message_type.decode("utf-8", "replace"), self._paths
        topic = None if paths else self._find(run.topic, run.message_type)
        try:
            kind = self._types[name]
        except MessageTypeError:
            kind = None
        if kind is None or not (paths or topic is not None):
            return lambda record: None
        parse = kind.parse

        def key_of(record: Record) -> bytes | None:
            try:
                if topic is not None:
                    key = topic.key_of(record)
                else:
                    key = conflation_key(parse(record.body), paths)
            except (MessageTypeError, SowKeyError):
                return None
            return key_in(run.topic, run.message_type, key)

        return key_of


class _Replayed(NamedTuple):
    """A message that is pending."""

    raw: bytes
    is_traced: bool


class ReplayConflation:
    """The pending messages of one bookmark subscription.

    Owner: the subscription. Lifecycle: as long as it.

    Args:
        interval_us: length of an interval.
        keys: the keys of messages.
        steady_us: returns the time by a clock that is never set back.
        resumes: whether the client has messages of the replay.
    """

    __slots__ = (
        "_conflator",
        "_first_txid",
        "_held_until_us",
        "_keys",
        "_resumes",
        "_steady_at_us",
        "_steady_us",
        "_time_us",
    )

    def __init__(
        self,
        interval_us: int,
        keys: ReplayKeys,
        steady_us: Callable[[], int],
        resumes: bool = False,
    ) -> None:
        self._keys = keys
        self._steady_us = steady_us
        self._conflator: Conflator[_Replayed] = Conflator(interval_us, _size_of)
        self._first_txid: dict[bytes, int] = {}
        """Transaction from which on messages of a pending key are not given, by key, the oldest
        first."""
        self._resumes = resumes
        self._held_until_us = 0
        """Time of the replay before which nothing is given."""
        self._time_us = 0
        """Present time of the replay."""
        self._steady_at_us = steady_us()
        """Time by the clock at which that was the replay's time."""

    def __len__(self) -> int:
        return len(self._conflator)

    @property
    def pending_bytes(self) -> int:
        """Returns the memory of all that is pending."""
        return self._conflator.pending_bytes

    @property
    def oldest_txid(self) -> int | None:
        """Returns the transaction before which no message is pending; None: none is at all."""
        return next(iter(self._first_txid.values()), None)

    def take(self, run: Run, records: Iterable[tuple[Record, bool]]) -> list[DeliveryContent]:
        """Takes messages of a run. Returns the deliveries of what became due before them, and of
        messages without a key.

        Args:
            records: messages that pass the filter, each with whether the client has it already.
        """
        self._time_us = max(self._time_us, run.receive_time_us)
        self._steady_at_us = self._steady_us()
        if self._resumes:
            self._resumes = False
            self._held_until_us = self._time_us + self._conflator.interval_us + RESUMED_US
        found: list[DeliveryContent] = []
        if self._time_us >= self._held_until_us:
            found = self._given(self._conflator.due(self._time_us, sys.maxsize))
        key_of, conflator = self._keys.of(run), self._conflator
        for record, is_held in records:
            key = key_of(record)
            if key is None:
                if not is_held:
                    single = _Replayed(record.raw, bool(record.trace))
                    _add(found, single, run.receive_time_us)
            elif is_held:
                if key in conflator:
                    conflator.drop(key)
                    del self._first_txid[key]
            else:
                self._first_txid.setdefault(key, run.first_txid)
                content = _Replayed(record.raw, bool(record.trace))
                conflator.change(key, None, content, self._time_us, "", run.receive_time_us)
        return found

    def due(self, wall_us: int) -> list[DeliveryContent]:
        """Returns the deliveries of what is due at the end of the log, a limited number.

        Args:
            wall_us: present time by the clock that gives receive times.
        """
        steady_us = self._steady_us()
        self._time_us = max(self._time_us + steady_us - self._steady_at_us, wall_us)
        self._steady_at_us = steady_us
        return self._given(self._conflator.due(self._time_us, FLUSHED_AT_ONCE))

    @property
    def wait_us(self) -> int | None:
        """Returns how long it takes until more is due, at the end of the log; None: nothing is
        pending."""
        due_us = self._conflator.next_due_us
        return None if due_us is None else max(0, due_us - self._time_us)

    def all(self) -> list[DeliveryContent]:
        """Returns the deliveries of all that is pending, because the replay ends."""
        return self._given(self._conflator.all())

    def _given(self, changes: Sequence[ConflatedChange[_Replayed]]) -> list[DeliveryContent]:
        found: list[DeliveryContent] = []
        for change in changes:
            del self._first_txid[change.key]
            assert change.now is not None
            _add(found, change.now, change.received_us)
        return found


def _size_of(content: _Replayed) -> int:
    return len(content.raw) + ENTRY_BYTES


def _add(found: list[DeliveryContent], content: _Replayed, received_us: int) -> None:
    last = found[-1] if found else None
    if (
        last is None
        or abs(last.receive_time_us - received_us) > STAMPS_APART_US_MAX
        or not last.takes_one(0, len(content.raw))
    ):
        last = DeliveryContent(0, received_us)
        found.append(last)
    last.add_one(content.raw, content.is_traced)


def replay_conflation(
    types: MessageTypeTable,
    find: Callable[[bytes, bytes], SowTopic | None],
    topics_of: Callable[[TopicFilter], Sequence[SowTopic]],
    wanted: TopicFilter,
    terms: FollowTerms,
    steady_us: Callable[[], int],
    resumes: bool = False,
) -> ReplayConflation:
    """Returns the conflation of a bookmark subscription.

    Args:
        types, find, steady_us, resumes: as of `ReplayKeys` and `ReplayConflation`.
        topics_of: returns the SOW topics that a subscription wants.

    Raises:
        RemoteProtocolError: `auto`, with reason `not_supported`; or `bad_command` of a key that
            does not go with the topic.
    """
    conflation = terms.conflation
    assert conflation is not None
    if not conflation.interval_us:
        raise RemoteProtocolError(
            "a replay waits for its client by itself, and has no conflation=auto: give an "
            "interval, such as 1s",
            "not_supported",
        )
    paths = key_paths(topics_of, wanted, terms)
    return ReplayConflation(
        conflation.interval_us, ReplayKeys(types, find, paths), steady_us, resumes
    )
