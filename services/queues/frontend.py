"""The instance's side of a queue: the part of its owner's decisions that still holds when they
arrive.

The owner of a queue decides in a process of its own, by what it has folded. On the way from there
sessions end, leases run out, and acknowledgments are committed. So a delivery names the session,
the number and end of the lease, and the transaction that the owner had folded; here, where sessions
live and the journal is written, it is sent or sent back (rules 8 to 10 of queues).

    Owner: the instance's loop. No clock, socket or disk: values in, values out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import (
    Command,
    Kind,
    Run,
    publisher_id,
    unnumbered_publisher_id,
)
from raylay.services.queues.decisions import (
    Consumer,
    ConsumerSubscription,
    DeliverLeased,
    DeliverOnce,
    Key,
    LeasedDelivery,
    MessageLease,
    TransferCandidate,
    TransferRequest,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.recent_removals import NOTHING, RecentRemovals
from raylay.services.queues.records import (
    Acknowledgment,
    Keys,
    OwnershipChange,
    Transfer,
    pack_transfer,
    read_acknowledgment,
    read_removal,
    read_transfer,
)

AUTHORS_MAX = 4_096
"""The number of lives of instances whose requests are remembered."""
REQUESTS_MAX = 1_024
"""Request numbers of one life, below the highest, that are told apart. A request with an older
number counts as seen."""
LOOKED_AT_LEAST = 1_024
"""The number of sequences of a client's ranges that are looked up one by one, beside twice the
number of leases. For wider ranges the leases are sorted."""
SWEPT_AT_ONCE = 4_096
"""The number of leases that one `tick` looks at."""
BARRIERS_MAX = 1_000
"""The number of barriers last sent to a consumer that are still recognized as barriers."""


EARLY_MAX = 200_000
"""The number of early ranges, of records whose messages have not come, above which a client
may acknowledge only what is leased here. An owner keeps each range in 60 to 200 bytes. Twice as
many are allowed when the ranges that the owner has not read yet are counted as well."""
EARLY_LINKS_MAX = 10 * EARLY_MAX
"""The number of early ranges above which links that bring acknowledgments are slowed down. They are
not refused: an instance that is cut off from the messages' source still hears of their
acknowledgments from other instances."""
SLOWED_MIN_US, SLOWED_MAX_US = 10_000, 3_000_000
"""The bounds, in microseconds, of the pause in reading after a frame of a connection that brings
early acknowledgments. After a longer pause the connection would be taken for silent."""
SLOWED_RANGES = 25_000
"""The number of early ranges above the limit for which the pause in reading doubles once more."""


class DeliveryCheck(NamedTuple):
    """The part of a decision that holds.

    Attributes:
        send: the messages to send to the consumer now.
        bounced: the keys and lease numbers that are returned to the owner, because no consumer
            holds those messages.
    """

    send: Sequence[LeasedDelivery]
    bounced: list[tuple[Key, int]]


class OwnerHandshake(NamedTuple):
    """The state that an owner is told when it begins.

    Attributes:
        fence_txid: transaction id up to which the owner must have folded before it decides: every
            draft of its predecessor is below, or will never be journaled.
        leases: the leases that consumers hold now.
        consumers: the present consumers.
    """

    fence_txid: int
    leases: list[MessageLease]
    consumers: list[ConsumerSubscription]


def _without(ranges: Iterable[Range], others: Sequence[int]) -> list[Range]:
    """Returns the ranges without these sequences. Both are ascending."""
    left: list[Range] = []
    for first, last in ranges:
        for other in others[bisect_left(others, first) : bisect_right(others, last)]:
            if first < other:
                left.append((first, other - 1))
            first = other + 1
        if first <= last:
            left.append((first, last))
    return left


class QueueFrontend:
    """See the file's docstring.

    Invariants: a message has at most one lease. The lease of a consumer that is not here is over,
        but stays in `_leases` until `tick` or a record meets it.
    Lifecycle: one life of the instance.

    Args:
        definition: the definition of the queue.
        instance: the name of this instance.
        incarnation, life: the incarnation and life of this instance.
        acknowledging: a callback that tells the owner of acknowledgments of this queue which are on
            their way to the disk.
    """

    def __init__(
        self,
        definition: QueueDefinition,
        instance: str,
        incarnation: int,
        life: int = 0,
        acknowledging: Callable[[str, Keys], None] = lambda name, keys: None,
    ) -> None:
        self.definition = definition
        self.topic = definition.name.encode()
        self.message_type = definition.message_type.encode()
        self.consumers: dict[Consumer, ConsumerSubscription] = {}
        self.instance = instance
        self.is_announced = not definition.is_distributed
        """Whether the journal names this instance as the bearer of its incarnation."""
        self.delivered = 0
        """The number of messages that were sent to consumers in this life."""
        self.bounced = 0
        """The number of messages whose delivery was returned to the owner."""
        self._acknowledging = acknowledging
        self.early_size = 0
        """The number of early ranges, of records whose messages have not come, as the owner last
        reported it."""
        self.has_owner = False
        self.behind_us = 0
        """Distance of the queues' steady clock, by which leases end, behind the instance's, in
        microseconds."""
        self._to_read: deque[tuple[int, int]] = deque()
        """The transaction ids of acknowledgments that the owner has not read yet, each with its
        number of ranges that are not leased here."""
        self._unread = 0
        self._incarnation = incarnation
        self._life = life
        self._publishers: dict[Consumer, frozenset[int]] = {}
        """The publisher ids of each consumer's client: its own, and the one under which this
        instance numbers its messages."""
        self._leases: dict[int, dict[int, tuple[Consumer, int, int]]] = {}
        """The leases by publisher and sequence, each as consumer, number and end."""
        self._barriers: dict[Consumer, deque[Key]] = {}
        """The barriers last sent to each consumer. A barrier is never leased; every consumer that
        was sent one acknowledges it."""
        self._removed = RecentRemovals()
        self._to_sweep: list[int] = []
        """The publishers whose leases `tick` looks at next."""
        self._sweeping: tuple[int, list[int]] = (0, [])
        """A publisher, and those sequences of its leases that `tick` has still to look at."""

    # -- the owner -----------------------------------------------------------------------------
    def owner_came(self, staged_txid: int, now_us: int) -> OwnerHandshake:
        """Takes a new owner, whose predecessor's socket is closed. Returns the state to tell it.

        Args:
            staged_txid: the last transaction that is committed or on its way to the disk. The owner
                decides nothing before it has folded this one.
        """
        self.has_owner = True
        self._removed.clear()
        return OwnerHandshake(staged_txid, self.leases(now_us), list(self.consumers.values()))

    def owner_left(self) -> None:
        """Notes that the queue has no owner for now, so no decisions arrive that would have to be
        checked."""
        self.has_owner = False
        self._removed.clear()

    def folded(self, txid: int) -> None:
        """Takes the owner's report of how far it has folded, which comes without a decision too."""
        self._removed.forget(txid)
        while self._to_read and self._to_read[0][0] <= txid:
            self._unread -= self._to_read.popleft()[1]

    def failed(self, committed_txid: int) -> None:
        """Notes that nothing staged behind this transaction id comes to the disk."""
        while self._to_read and self._to_read[-1][0] > committed_txid:
            self._unread -= self._to_read.pop()[1]

    # -- consumers -----------------------------------------------------------------------------
    def subscribed(self, each: ConsumerSubscription) -> None:
        """Adds a consumer, or changes its filter or backlog. A known consumer keeps its leases."""
        self.consumers[each.consumer] = each
        unnumbered = unnumbered_publisher_id(each.client, self._incarnation, self._life)
        self._publishers[each.consumer] = frozenset((publisher_id(each.client), unnumbered))

    def left(self, consumer: Consumer) -> bool:
        """Removes a consumer, and with it its leases. Returns whether the consumer was known."""
        if self.consumers.pop(consumer, None) is None:
            return False
        del self._publishers[consumer]
        self._barriers.pop(consumer, None)
        return True

    def session_left(self, session: int) -> list[Consumer]:
        found = [consumer for consumer in self.consumers if consumer[0] == session]
        for consumer in found:
            self.left(consumer)
        return found

    # -- decisions -----------------------------------------------------------------------------
    def decide(self, decision: DeliverLeased | DeliverOnce, now_us: int) -> DeliveryCheck:
        """Returns the part of a decision that holds now.

        Args:
            now_us: the present time of the instance's steady clock.
        """
        consumer, messages, folded_txid = decision[:3]
        removed = self._removed
        if removed:
            removed.forget(folded_txid)
        if consumer not in self.consumers:
            self.bounced += len(messages)
            return DeliveryCheck([], [(each.key, each.number) for each in messages])
        if type(decision) is DeliverOnce:
            # Their removal is in the journal already: that is why they are sent.
            self.delivered += len(messages)
            if self.definition.barrier and not self.definition.at_most_once:
                sent = self._barriers.setdefault(consumer, deque(maxlen=BARRIERS_MAX))
                sent.extend(each.key for each in messages)
            return DeliveryCheck(messages, [])
        is_behind = removed.is_behind(folded_txid)
        if not is_behind and not removed.touches(messages):
            removed = NOTHING
        bounced = [
            each
            for each in messages
            if 0 < each.until_us <= now_us or (removed and (is_behind or each.key in removed))
        ]
        if bounced:
            back = {(each.key, each.number) for each in bounced}
            messages = [each for each in messages if (each.key, each.number) not in back]
            self.bounced += len(bounced)
        leases = self._leases
        for _, (publisher, sequence), number, until_us in messages:
            of = leases.get(publisher)
            if of is None:
                of = leases[publisher] = {}
            of[sequence] = consumer, number, until_us
        self.delivered += len(messages)
        return DeliveryCheck(messages, [(each.key, each.number) for each in bounced])

    # -- leases --------------------------------------------------------------------------------
    def leases(self, now_us: int) -> list[MessageLease]:
        """Returns the leases that have not ended."""
        return [
            MessageLease((publisher, sequence), consumer, number, until_us)
            for publisher, of in self._leases.items()
            for sequence, (consumer, number, until_us) in of.items()
            if not 0 < until_us <= now_us and consumer in self.consumers
        ]

    def leases_by_consumer(self, now_us: int) -> dict[Consumer, tuple[int, int]]:
        """Returns of each consumer that holds leases their number, and the earliest end of those
        that end, in microseconds; 0: none of them ends."""
        found: dict[Consumer, tuple[int, int]] = {}
        for of in self._leases.values():
            for consumer, _, until_us in of.values():
                if 0 < until_us <= now_us or consumer not in self.consumers:
                    continue
                count, first_us = found.get(consumer, (0, 0))
                if until_us and (not first_us or until_us < first_us):
                    first_us = until_us
                found[consumer] = count + 1, first_us
        return found

    @property
    def lease_count(self) -> int:
        """The number of leases, including those that are over and not yet swept."""
        return sum(map(len, self._leases.values()))

    def cancelled(self, session: int | None, keys: Keys) -> dict[Consumer, list[tuple[Key, int]]]:
        """Ends the leases of messages that a session gives back.

        Args:
            session: the session; None: any session, whichever holds the messages.

        Returns:
            The messages that were leased, by consumer, with the numbers of the leases. The caller
            tells the owner. Messages that the session did not hold are ignored.
        """
        found: dict[Consumer, list[tuple[Key, int]]] = {}
        for publisher, ranges in keys.items():
            for sequence in self._held(publisher, ranges):
                consumer, number, _ = self._leases[publisher][sequence]
                if session in (None, consumer[0]) and consumer in self.consumers:
                    found.setdefault(consumer, []).append(((publisher, sequence), number))
        for cancelled in found.values():
            for key, _ in cancelled:
                self._end_lease(*key)
        return found

    def judged(self, said: Acknowledgment, by: int, now_us: int) -> Acknowledgment:
        """Returns the part of a client's acknowledgment that counts. Where leasing is strict, that
        is what the client holds here now: a message that is not leased here may be leased to
        another client at another instance.

        An acknowledgment is judged only here, on its way in: once it is in the journal it counts
        for all instances. An at-most-once queue leases nothing, so everything counts.

        Args:
            by: the publisher id of the client.

        Returns:
            The same object if all of the acknowledgment counts.
        """
        if not self.definition.strict or self.definition.at_most_once:
            return said
        return self.held_by(said, by, now_us)

    def without_others(self, said: Acknowledgment, by: int, now_us: int) -> Acknowledgment:
        """Returns the part that counts of an acknowledgment of messages that this instance owns.
        Where leasing is strict, messages that another client holds here now are left out. No client
        elsewhere can hold them.

        Args:
            by: the publisher id of the client.
        """
        if not self.definition.strict:
            return said
        kept: dict[int, Sequence[Range]] = {}
        for publisher, ranges in said.keys.items():
            others = []
            for sequence in self._held(publisher, ranges):
                consumer, _, until_us = self._leases[publisher][sequence]
                is_others = by not in self._publishers.get(consumer, (by,))
                if is_others and not 0 < until_us <= now_us:
                    others.append(sequence)
            kept[publisher] = ranges
            if others:
                kept[publisher] = _without(ranges, sorted(others))
        return said._replace(keys={each: ranges for each, ranges in kept.items() if ranges})

    def held_by(self, said: Acknowledgment, by: int, now_us: int = 0) -> Acknowledgment:
        """Returns the part of an acknowledgment that names messages which were delivered to the
        client here, and to no other consumer since. Barriers that the client was sent count:
        acknowledging one changes nothing.

        Args:
            by: the publisher id of the client.
            now_us: the time after which a lease must end in order to count; 0: leases that have
                ended count as well.

        Returns:
            The same object if that is the whole acknowledgment.
        """
        kept: dict[int, Sequence[Range]] = {}
        is_whole = True
        for publisher, ranges in said.keys.items():
            of = self._leases.get(publisher, {})
            mine = [
                at
                for at in self._held(publisher, ranges)
                if by in self._publishers.get(of[at][0], ()) and not 0 < of[at][2] <= now_us
            ]
            count = sum(last - first + 1 for first, last in ranges)
            if len(mine) < count and self._barriers:
                mine = self._and_barriers(mine, publisher, ranges, by)
            if len(mine) == count:
                kept[publisher] = ranges
                continue
            is_whole = False
            if mine:
                found = SequenceSet((at, at) for at in mine)
                kept[publisher] = found.within(min(mine), max(mine))
        return said if is_whole else said._replace(keys=kept)

    def _and_barriers(
        self, mine: list[int], publisher: int, ranges: Iterable[Range], by: int
    ) -> list[int]:
        """Returns these sequences, and those of barriers within the ranges that the client was
        sent."""
        found = set(mine)
        for consumer, sent in self._barriers.items():
            if by in self._publishers[consumer]:
                there = sorted(at for of, at in sent if of == publisher)
                for first, last in ranges:
                    found.update(there[bisect_left(there, first) : bisect_right(there, last)])
        return sorted(found)

    def lets_in(self, said: Acknowledgment) -> bool:
        """Returns whether an acknowledgment may be journaled. Where very many early ranges wait for
        their messages, only an acknowledgment of messages that are leased here may: those messages
        have come."""
        size = self.early_size
        # The ranges that the owner has not read may be of messages that are here.
        few = size < EARLY_MAX and size + self._unread < 2 * EARLY_MAX
        return few or not self._elsewhere(said.keys)

    def slowed_us(self, *, is_link: bool) -> int:
        """Returns the pause in reading, in microseconds, of a connection that has just brought
        acknowledgments of messages that are not leased here. The pause always ends: the awaited
        messages may come over the same connection."""
        over = self.early_size + self._unread - (EARLY_LINKS_MAX if is_link else EARLY_MAX)
        if over <= 0 or not self.has_owner:
            return 0
        return min(SLOWED_MIN_US << min(over // SLOWED_RANGES, 32), SLOWED_MAX_US)

    def _elsewhere(self, keys: Keys) -> int:
        """Returns how many of these ranges are not leased here, wholly or in part."""
        count = 0
        for publisher, ranges in keys.items():
            held = self._held(publisher, ranges)
            if len(held) < sum(last - first + 1 for first, last in ranges):
                count += len(_without(ranges, sorted(held)))
        return count

    def staged(self, said: Acknowledgment, txid: int) -> bool:
        """Notes that an acknowledgment is on its way to the disk under this transaction id. Returns
        whether a message of it is not leased here."""
        count = self._elsewhere(said.keys)
        if count:
            self._unread += count
            self._to_read.append((txid, count))
        if self.has_owner:
            self._acknowledging(self.definition.stored_as, said.keys)
        return count > 0

    def tick(self, now_us: int) -> None:
        """Forgets leases that are over, a limited number in each call, because there may be very
        many."""
        publisher, sequences = self._sweeping
        room, is_new = SWEPT_AT_ONCE, not (sequences or self._to_sweep)
        while room:
            if not sequences:
                if is_new and not self._to_sweep:
                    self._to_sweep, is_new = list(self._leases), False
                if not self._to_sweep:
                    break
                publisher = self._to_sweep.pop()
                sequences = list(self._leases.get(publisher, ()))
                room -= 1
                continue
            part = sequences[-room:]
            del sequences[-room:]
            room -= len(part)
            of = self._leases.get(publisher, {})
            for sequence in part:
                lease = of.get(sequence)
                if lease is not None and (0 < lease[2] <= now_us or lease[0] not in self.consumers):
                    self._end_lease(publisher, sequence)
        self._sweeping = publisher, sequences

    def _held(self, publisher: int, ranges: Iterable[Range]) -> list[int]:
        """Returns the sequences in these ranges that are leased. Other programs choose the number
        and width of the ranges, so the cost is bounded by the number of leases."""
        of = self._leases.get(publisher)
        if of is None:
            return []
        found: list[int] = []
        left = 2 * len(of) + LOOKED_AT_LEAST
        ordered: list[int] | None = None
        for first, last in ranges:
            if first == last:
                if first in of:
                    found.append(first)
                continue
            width = last - first + 1
            if width <= left:
                left -= width
                found += [at for at in range(first, last + 1) if at in of]
                continue
            if ordered is None:
                ordered = sorted(of)
            found += ordered[bisect_left(ordered, first) : bisect_right(ordered, last)]
        return found

    def _end_lease(self, publisher: int, sequence: int) -> None:
        of = self._leases[publisher]
        del of[sequence]
        if not of:
            del self._leases[publisher]

    # -- what was committed --------------------------------------------------------------------
    def fold(self, run: Run) -> bool:
        """Takes in a committed run of the queue's own records. Returns whether it has anything but
        acknowledgments, which the owner knows of since they were staged."""
        is_awaited = False
        if run.kind != Kind.RECORDS:
            return is_awaited
        for at, record in readable_records(run):
            txid = run.first_txid + at
            try:
                if record.command == Command.QUEUE_ACKNOWLEDGMENT:
                    self._gone(read_acknowledgment(record.body).keys, txid)
                    # A barrier waits until all before it have left the queue.
                    is_awaited |= bool(self.definition.barrier)
                    continue
                is_awaited = True
                if record.command == Command.QUEUE_REMOVAL:
                    self._gone(read_removal(record.body).keys, txid)
                elif record.command == Command.TRANSFER:
                    names = read_transfer(record.body).names
                    if names.get(self._incarnation) == self.instance:
                        self.is_announced = True
            except RemoteProtocolError:
                pass  # Nobody can read it: it changes nothing, here and everywhere.
        return is_awaited

    def _gone(self, keys: Keys, txid: int) -> None:
        if self.has_owner:
            self._removed.add(keys, txid)
        if self._leases:
            for publisher, ranges in keys.items():
                for sequence in self._held(publisher, ranges):
                    self._end_lease(publisher, sequence)

    def claims(self, publisher: int, ranges: Iterable[Range], given: str) -> list[OwnershipChange]:
        """Returns the owners of messages that a client sends again and that are new here (rule 3).

        Args:
            given: the instance that the client first gave the messages to; empty: that instance is
                not known.

        Returns:
            The claims to journal directly before the messages. In an at-most-once queue the
            messages stay with the instance that was given them first, because it may have sent
            them: in generation 0, as if they had come from there. A higher generation would take
            back what that instance has granted meanwhile. If the first instance is not known, this
            instance claims the messages: otherwise two instances would both believe for ever that
            they own them.
        """
        if self.definition.kind != "queue":
            return []
        is_known = self.definition.at_most_once and given
        generation, owner = (0, given) if is_known else (1, self.instance)
        return [
            OwnershipChange(publisher, first, last, generation, owner) for first, last in ranges
        ]

    def announcement(self) -> bytes:
        """Returns the body of the transfer that names this instance as the bearer of its
        incarnation; empty: the journal says so already. To be journaled before this instance
        serves."""
        if self.is_announced:
            return b""
        names = {self._incarnation: self.instance}
        return pack_transfer(Transfer(self.instance, 0, (), names))


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request on its way from instance to instance. It is not journaled; the requester repeats it
    while it needs the messages.

    Attributes:
        incarnation, life: the incarnation and life of the requester.
        number: the number of the request in that life.
        name: the name of the requester.
        queue: the name of the queue, as in `QueueDefinition.stored_as`.
        count, wanted: the contents of the `TransferRequest`.
    """

    incarnation: int
    life: int
    number: int
    name: str
    queue: str
    count: int
    wanted: Sequence[TransferCandidate]


class Flood:
    """The distribution of requests: each goes to every instance, over whatever links there are, and
    is heeded once.

    Lifecycle: one life of the instance.

    Args:
        name, incarnation, life: the name, incarnation and life of this instance.
    """

    def __init__(self, name: str, incarnation: int, life: int) -> None:
        self._of = name, incarnation, life
        self._number = 0
        self._seen: OrderedDict[tuple[int, int], tuple[int, set[int]]] = OrderedDict()
        """The request numbers seen, by life: the highest one, and those just below it."""

    def made(self, queue: str, request: TransferRequest) -> RoutedRequest:
        name, incarnation, life = self._of
        self._number += 1
        return RoutedRequest(
            incarnation, life, self._number, name, queue, request.count, request.wanted
        )

    def is_new(self, asked: RoutedRequest) -> bool:
        """Returns whether a request is to be heeded and passed on: another instance made it, and it
        has not come before."""
        of = asked.incarnation, asked.life
        if of == self._of[1:]:
            return False
        highest, below = self._seen.get(of, (0, set()))
        if asked.number in below or asked.number <= highest - REQUESTS_MAX:
            return False
        below.add(asked.number)
        if asked.number > highest:
            highest = asked.number
            if len(below) > 2 * REQUESTS_MAX:
                below = {each for each in below if each > highest - REQUESTS_MAX}
        self._seen[of] = highest, below
        self._seen.move_to_end(of)
        if len(self._seen) > AUTHORS_MAX:
            self._seen.popitem(last=False)
        return True
