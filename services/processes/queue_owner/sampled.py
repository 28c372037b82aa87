"""The sampled messages that are in a queue, with what their spans need.

Nothing here is asked while there is none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raylay.services.messages.ranges import Range
from raylay.services.queues.decisions import Consumer, Key, LeasedDelivery, MessageLease
from raylay.services.telemetry.tracing import OUTSTANDING_MAX_DEFAULT, TracedMessage


class SampledMessage:
    """A sampled message of the queue.

    Attributes:
        message: the message, with the context of its spans.
        txid: the transaction id of the message in this instance's journal.
        register: the ownership of the message: generation and owner.
        asked_ns: the time since when this instance has requested the message, in nanoseconds since
            1970; 0: it has not.
        granted_ns: the time since when the message is granted to another instance, in nanoseconds
            since 1970; 0: it is not.
        lease: the lease of the message; None: no consumer holds it.
    """

    __slots__ = ("asked_ns", "granted_ns", "lease", "leased_ns", "message", "register", "txid")

    def __init__(
        self, message: TracedMessage, txid: int, register: tuple[int, str] = (0, "")
    ) -> None:
        self.message = message
        self.txid = txid
        self.register = register
        self.asked_ns = 0
        self.granted_ns = 0
        self.lease: MessageLease | None = None
        self.leased_ns = 0

    @property
    def key(self) -> Key:
        return self.message.publisher, self.message.sequence


class SampledMessages:
    """See the file's docstring. Bounded: above `messages_max` the oldest is forgotten (its spans
    are then missing, nothing else). Falsy when it is empty.

    Owner: the spans of a queue's owner.
    """

    __slots__ = ("_by_txid", "_leased", "_messages_max", "_of", "forgotten")

    def __init__(self, messages_max: int = OUTSTANDING_MAX_DEFAULT) -> None:
        self._of: dict[int, dict[int, SampledMessage]] = {}
        self._by_txid: dict[int, SampledMessage] = {}
        self._leased: dict[SampledMessage, None] = {}
        """The leased messages in the order of their leases. Since a queue's leases are all of one
        length, they end in this order."""
        self._messages_max = messages_max
        self.forgotten = 0

    def __bool__(self) -> bool:
        return bool(self._by_txid)

    def __len__(self) -> int:
        return len(self._by_txid)

    def add(self, mark: SampledMessage) -> None:
        """Adds a sampled message that came into the queue. A known one is left as it is."""
        publisher, sequence = mark.key
        of = self._of.setdefault(publisher, {})
        if sequence in of:
            return
        of[sequence] = self._by_txid[mark.txid] = mark
        if len(self._by_txid) > self._messages_max:
            self.remove(next(iter(self._by_txid.values())))
            self.forgotten += 1

    def remove(self, mark: SampledMessage) -> None:
        publisher, sequence = mark.key
        of = self._of[publisher]
        del of[sequence], self._by_txid[mark.txid]
        if not of:
            del self._of[publisher]
        self._leased.pop(mark, None)

    # -- which ---------------------------------------------------------------------------------
    def get(self, key: Key) -> SampledMessage | None:
        return self._of.get(key[0], {}).get(key[1])

    def among(self, publisher: int, ranges: Sequence[Range]) -> list[SampledMessage]:
        """Returns the sampled messages of a publisher's ascending ranges. The cost is bounded by
        the sampled messages and the ranges, however wide they are."""
        of = self._of.get(publisher)
        if of is None:
            return []
        width = sum(last - first for first, last in ranges) + len(ranges)
        if width <= len(of):
            return [of[at] for first, last in ranges for at in range(first, last + 1) if at in of]
        found: list[SampledMessage] = []
        waiting = iter(sorted(of))
        sequence = next(waiting, None)
        for first, last in ranges:
            while sequence is not None and sequence <= last:
                if sequence >= first:
                    found.append(of[sequence])
                sequence = next(waiting, None)
        return found

    def of(self, messages: Iterable[LeasedDelivery]) -> list[tuple[SampledMessage, LeasedDelivery]]:
        by_txid = self._by_txid
        return [(by_txid[each[0]], each) for each in messages if each[0] in by_txid]

    # -- leases --------------------------------------------------------------------------------
    def leased(self, mark: SampledMessage, lease: MessageLease, since_ns: int) -> None:
        self._leased.pop(mark, None)
        self._leased[mark] = None
        mark.lease, mark.leased_ns = lease, since_ns

    def freed(self, mark: SampledMessage) -> None:
        self._leased.pop(mark, None)
        mark.lease = None

    def ended(self, now_us: int) -> list[SampledMessage]:
        found: list[SampledMessage] = []
        for mark in self._leased:
            assert mark.lease is not None
            if not 0 < mark.lease.until_us <= now_us:
                break
            found.append(mark)
        return found

    def held(self, consumer: Consumer | None = None) -> list[SampledMessage]:
        """Returns the messages that a consumer holds; with None, those that any consumer holds."""
        return [
            mark
            for mark in self._leased
            if mark.lease is not None and consumer in (None, mark.lease.consumer)
        ]
