"""The rules at enqueue, while a message's bytes are at hand: whether it belongs to the queue, its
priority, whether it is a barrier, and when it expires."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from operator import lt
from typing import NamedTuple

from raylay.services.errors import (
    ConfigurationError,
    CorruptRecord,
    ExpressionError,
    MessageTypeError,
)
from raylay.services.expressions import values
from raylay.services.expressions.compiler import compiled_value
from raylay.services.expressions.expression import Expression, ExpressionUse, expression, refusal
from raylay.services.expressions.functions.registry import EvalContext, Functions
from raylay.services.messages.lossless_text import text_of
from raylay.services.messages.readable import UNREADABLE, told
from raylay.services.messages.records import (
    EXPIRATION_S_MAX,
    RECORD_HEADER_BYTES,
    Record,
    Run,
    decode_record,
)
from raylay.services.messages.topic_pattern import TopicPattern
from raylay.services.messages.topics import TOPIC_CACHE_MAX, TopicKey, is_regex
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.entry import PRIORITY_MAX

OF_QUEUE = ExpressionUse("an expression of a queue", frozenset(("message",)), deterministic=True)
"""The use of expressions by a queue. They must be deterministic: all instances must get the same
result, whenever they read the message."""
_RECORD = struct.Struct("<I20xI8xQ")
"""The fields read of a record (services/messages/records.py): its length, expiration in seconds,
and sequence."""


class EnqueueCandidate(NamedTuple):
    """A message of a run that belongs to the queue.

    Attributes:
        priority: the priority of the message; None: the queue has no priorities.
        expires_us: the time at which the message expires, in microseconds since 1970; 0: never.
    """

    at: int
    sequence: int
    priority: int | None
    is_barrier: bool
    expires_us: int


class EnqueueRules:
    """See the file's docstring.

    Args:
        types: the message types by which bodies are read. Used only if the definition has an
            expression.

    Raises:
        ConfigurationError: an expression of the definition is none; with its column.
        MessageTypeError: there is no such message type.
    """

    __slots__ = (
        "_barrier",
        "_expiration_us",
        "_filter",
        "_knows",
        "_message_type",
        "_model",
        "_pattern",
        "_priority",
        "_reads",
        "_topic",
        "_type",
    )

    def __init__(
        self, definition: QueueDefinition, types: MessageTypeTable, functions: Functions
    ) -> None:
        def read(text: str, what: str) -> Expression | None:
            try:
                return expression(text, OF_QUEUE, functions) if text else None
            except ExpressionError as error:
                raise ConfigurationError(
                    f"queue {definition.name}: {what}: {refusal(text, error)}"
                ) from None

        self._filter = read(definition.filter, "filter")
        self._barrier = read(definition.barrier, "barrier")
        priority = read(definition.priority, "priority")
        self._priority = compiled_value(priority.tree) if priority else None
        self._reads = bool(definition.filter or definition.barrier or definition.priority)
        self._type = types[definition.message_type] if self._reads else None
        self._message_type = definition.message_type.encode()
        self._topic = definition.topic.encode()
        self._pattern = TopicPattern(definition.topic) if is_regex(definition.topic) else None
        self._knows: dict[TopicKey, bool] = {}
        self._expiration_us = definition.expiration_us
        self._model = definition.expiration_model

    def takes(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether messages of this topic and type may be in the queue."""
        if message_type != self._message_type:
            return False
        if self._pattern is None:
            return topic == self._topic
        found = self._knows.get((topic, message_type))
        if found is None:
            if len(self._knows) >= TOPIC_CACHE_MAX:
                self._knows.clear()
            found = self._pattern.search(topic.decode("utf-8", "replace"))
            self._knows[topic, message_type] = found
        return found

    def plain(self, run: Run) -> list[int] | None:
        """Returns the sequences of a run's messages, where the queue needs nothing else of them.

        Returns:
            None: a message has to be read (for a filter, a barrier, a priority or an
            expiration), or the records of the run are not sound.
        """
        if self._reads or self._expiration_us:
            return None
        found: list[int] = []
        payload, offset, unpack = run.payload, 0, _RECORD.unpack_from
        try:
            for _ in range(run.count):
                length, expiration_s, sequence = unpack(payload, offset)
                if expiration_s and self._model != "queue":
                    return None
                found.append(sequence)
                offset += length
        except struct.error:
            return None
        # One check for the whole run.
        is_sound = offset == len(payload) and found[0] >= run.first_sequence
        return found if is_sound and found[-1] <= run.last_sequence and _ascend(found) else None

    def each(self, run: Run, received_us: int) -> Iterator[EnqueueCandidate]:
        """Yields the messages of a run that belong to the queue. `at` is the number of records
        before each.

        Args:
            received_us: the time at which the run was received, by the clock by which messages
                expire.
        """
        payload, offset, unpack = run.payload, 0, _RECORD.unpack_from
        priority: int | None = None
        is_barrier = False
        last, end = run.first_sequence - 1, len(payload)
        for at in range(run.count):
            if offset + RECORD_HEADER_BYTES > end:
                self._pass_over(run, at, "the run ends before them")
                return
            length, expiration_s, sequence = unpack(payload, offset)
            if offset + length > end or length < RECORD_HEADER_BYTES:
                self._pass_over(run, at, "a record has lengths that do not fit")
                return
            if not last < sequence <= run.last_sequence:
                self._pass_over(run, at, f"sequence {sequence} stands where it does not belong")
                return
            last = sequence
            if self._reads:
                try:
                    record = decode_record(payload, offset, verify=False)
                except CorruptRecord as error:
                    self._pass_over(run, at, str(error))
                    return
                found = self._read(record)
                if found is None:
                    offset += length
                    continue
                priority, is_barrier = found
            period_us = self._period_us(expiration_s)
            expires_us = received_us + period_us if period_us else 0
            yield EnqueueCandidate(at, sequence, priority, is_barrier, expires_us)
            offset += length

    def _pass_over(self, run: Run, readable: int, why: str) -> None:
        """Notes that the rest of a run is unreadable and does not enter the queue. So it is at
        every instance, since all read the same bytes."""
        UNREADABLE.note(run, told(run, readable, why))

    def _read(self, record: Record) -> tuple[int | None, bool] | None:
        """Returns the priority of a message, and whether it is a barrier; None: it does not belong
        to the queue. A body that cannot be read passes no filter."""
        assert self._type is not None
        has_priority = self._priority is not None
        try:
            tree = self._type.parse(record.body)
        except MessageTypeError:
            return None if self._filter else (0 if has_priority else None, False)
        beside = around(record)
        if self._filter is not None and not self._filter.matches(tree, beside):
            return None
        is_barrier = self._barrier is not None and self._barrier.matches(tree, beside)
        if self._priority is None:
            return None, is_barrier
        return _whole(values.number(self._priority(tree, beside))), is_barrier

    def _period_us(self, expiration_s: int) -> int:
        """Returns the lifetime of a message from its receipt, in microseconds; 0: for ever. An
        `expiration_s` of 0 means that the message has no lifetime of its own; the highest number,
        that it never expires."""
        queue_us = self._expiration_us
        if not expiration_s or self._model == "queue":
            return queue_us
        own_us = 0 if expiration_s == EXPIRATION_S_MAX else expiration_s * 1_000_000
        if self._model == "latest":
            return max(own_us, queue_us) if own_us and queue_us else 0
        if self._model == "earliest":
            return min(own_us or queue_us, queue_us or own_us)
        return own_us


def _ascend(sequences: list[int]) -> bool:
    return all(map(lt, sequences, sequences[1:]))


def around(record: Record) -> EvalContext:
    """Returns the context of a queue's expression: what it may read of a message besides the
    body."""
    return EvalContext(
        topic=record.topic,
        size_bytes=len(record.body),
        correlation_id=text_of(record.correlation),
        bookmark=record.bookmark,
    )


def _whole(found: float | None) -> int:
    """Returns a priority as documented: an unsigned number of 64 bits. NULL and NaN become 0, the
    lowest."""
    if found is None or found != found:
        return 0
    return int(min(max(found, 0), PRIORITY_MAX))
