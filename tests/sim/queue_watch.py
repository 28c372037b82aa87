"""What queues promise that their journals do not show: order, leases, tries and times.

Looked at where it happens: when an owner has decided, and when an acknowledgment comes in. What is
known here is what a person would write down; the machine is only asked what it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from raylay.services.messages.records import Command, Flag, Kind, Run, iterate_records, publisher_id
from raylay.services.queues.decisions import (
    DeliverLeased,
    DeliverOnce,
    LeasedDelivery,
    QueueRecordDraft,
)
from raylay.services.queues.message import DONE
from raylay.services.queues.records import Keys, read_acknowledgment, read_removal, read_transfer
from raylay.services.replication.effects import Append
from sim import sow

if TYPE_CHECKING:
    from sim.queues import Owner, QueueHost

PRIORITY_SORT = 1
"""Messages of this sort go first, where there are priorities."""
BARRIER_SORT = 2
OVERDUE_US = 2_000_000
"""So long after its time a message is gone at the latest, when all is at rest."""


def is_of_sort(body: bytes, sort: int) -> bool:
    """Whether any word of a message is of a sort."""
    return any(sow.sort_of(word) == sort for word in body.split())


class Watch:
    """Of one life of an instance.

    Attributes:
        bounced: how often a decision about a message was sent back.
    """

    def __init__(self, manager: QueueHost) -> None:
        self._manager = manager
        self._world = manager.world
        self._held: dict[tuple[int, int], tuple[int, str, int]] = {}
        """Session, client and end of a lease."""
        self._cancelled: Counter[tuple[int, int]] = Counter()
        self._decided: Counter[tuple[int, int]] = Counter()
        self.bounced: Counter[tuple[int, int]] = Counter()

    def _find(self, law: str, text: str) -> None:
        where = self._manager.instance.name
        self._world.queue_faults.append((law, f"{self._world.now_us} {where}: {text}"))

    def _body(self, key: tuple[int, int]) -> bytes:
        run = self._manager.instance.disk.index[key]
        return next(each.body for each in iterate_records(run.payload) if each.sequence == key[1])

    # -- what an owner decides ---------------------------------------------------------------
    def decided(self, owner: Owner, said: Sequence[Any]) -> None:
        """An owner has decided: it delivers nothing too often, and the first ones first."""
        self._serves(said)
        most = owner.definition.deliveries_max
        for each in said:
            if not isinstance(each, DeliverLeased):
                continue
            first = self._is_first(owner, each) if most else None
            for _, key, _, _ in each.messages:
                self._decided[key] += 1
                if key != first:
                    continue
                # Whatever becomes of its consumer, this one is the oldest that it holds. A delivery
                # that was acknowledged, on the way to a disk that failed, was not in vain.
                owner.decisions[key] += key not in owner.acknowledged
                owner.acknowledged.discard(key)
                if owner.decisions[key] - self.bounced[key] > most:
                    self._find("queue tries", f"{key} is delivered more often than {most} times")
            if owner.definition.priority:
                self._in_order(owner, each)

    def acknowledged(self, owner: Owner, keys: Keys) -> None:
        """An owner hears that these are done with, before that is on the disk."""
        owner.acknowledged.update(key for key in _each(keys) if owner.decisions[key])

    def _is_first(self, owner: Owner, decision: DeliverLeased) -> Any:
        """The key of the message that its consumer has before all others; None: it has older
        ones."""
        assert owner.machine is not None
        held = [
            each for each in owner.machine.state.leases.of(decision.consumer) if each.state != DONE
        ]
        first = min(held, key=lambda each: each.held.number, default=None)
        keys = {key for _, key, _, _ in decision.messages}
        return first.key if first is not None and first.key in keys else None

    def _serves(self, said: Sequence[Any]) -> None:
        """Who has not caught up decides nothing: it may not know whose a message is by now, nor
        what has left. Who bears which incarnation it may say."""
        if self._manager.instance.machine.ready:
            return
        for each in said:
            is_names = (
                isinstance(each, QueueRecordDraft)
                and each.command == Command.TRANSFER
                and not read_transfer(each.body).moves
            )
            if isinstance(each, DeliverLeased | QueueRecordDraft | DeliverOnce) and not is_names:
                self._find("queue readiness", f"{each} is decided before it is ready")

    def _in_order(self, owner: Owner, decision: DeliverLeased) -> None:
        machine, manager = owner.machine, self._manager
        assert machine is not None
        consumer = manager.frontend(owner).consumers.get(decision.consumer)
        if consumer is None or machine.state.dispatcher.is_searching:
            return
        delivered = [self._order(each.key, each.txid) for each in decision.messages]
        if delivered != sorted(delivered):
            self._find("queue priority", f"{decision.messages} are out of order")
        sorts = [sort for sort in range(sow.SORTS) if consumer.filter == f"/sort{sort} = 1"]
        for message in machine.state.found(available=True):
            if message.register.owner != manager.instance.disk.member.name:
                continue
            wanted = not sorts or is_of_sort(self._body(message.key), sorts[0])
            if wanted and self._order(message.key, message.txid) < max(delivered):
                self._find("queue priority", f"{message.key} was to go before {decision.messages}")
                return

    def _order(self, key: tuple[int, int], txid: int) -> tuple[bool, int]:
        return not is_of_sort(self._body(key), PRIORITY_SORT), txid

    def drafted(self, owner: Owner, draft: QueueRecordDraft) -> None:
        """An owner wants messages removed: those whose time, or number of tries, is over."""
        if draft.command != Command.QUEUE_REMOVAL:
            return
        of, now_us = owner.definition, self._world.now_us
        removal = read_removal(draft.body)
        for key in _each(removal.keys):
            if removal.why == "max_deliveries" and self._decided[key] < of.deliveries_max:
                self._find("queue tries", f"{key} was delivered {self._decided[key]} times")
            elif removal.why == "max_cancels" and self._cancelled[key] < of.cancels_max:
                self._find("queue tries", f"{key} was given back {self._cancelled[key]} times")
            elif removal.why == "time_limit":
                came_us = self._manager.instance.disk.received_us[key]
                if now_us - came_us < of.expiration_us:
                    self._find("queue expiry", f"{key} expires before its time")
        self._world.probes[f"queue removal: {removal.why}"] += 1

    def rests(self, owner: Owner) -> None:
        """All is at rest: what is here, and this instance's, and overdue, has left."""
        machine, expiration_us = owner.machine, owner.definition.expiration_us
        if not expiration_us or machine is None:
            return
        name, disk = self._manager.instance.disk.member.name, self._manager.instance.disk
        for message in machine.state.found():
            age_us = self._world.now_us - disk.received_us[message.key]
            if message.register.owner == name and age_us > expiration_us + OVERDUE_US:
                self._find("queue expiry", f"{message.key} is {age_us} us old")

    # -- leases --------------------------------------------------------------------------------
    def leased(self, client: str, session: int, messages: Iterable[LeasedDelivery]) -> None:
        """A consumer is sent these."""
        for each in messages:
            self._held[each.key] = session, client, each.until_us

    def left(self, session: int) -> None:
        """A session is over."""
        self._held = {key: held for key, held in self._held.items() if held[0] != session}

    def folded(self, runs: Iterable[Run]) -> None:
        """What has left a queue is nobody's."""
        for run in runs:
            if self._held and run.kind == Kind.RECORDS and run.flags & Flag.COMMANDS:
                for record in iterate_records(run.payload):
                    if record.command == Command.QUEUE_ACKNOWLEDGMENT:
                        keys = read_acknowledgment(record.body).keys
                    elif record.command == Command.QUEUE_REMOVAL:
                        keys = read_removal(record.body).keys
                    else:
                        continue
                    for key in _each(keys):
                        self._held.pop(key, None)

    def cancelled(self, keys: Iterable[tuple[int, int]]) -> None:
        """A consumer gives these back."""
        for key in keys:
            self._held.pop(key, None)
            self._cancelled[key] += 1

    def staged(self, effects: Iterable[Any], client_name: str) -> None:
        """What of a client's frame is to be journaled: where leasing is strict, it acknowledges
        nothing but what that client holds here.

        Args:
            client_name: of the client; what the instance writes in its stead is its own, too.
        """
        for effect in effects:
            if not isinstance(effect, Append) or not effect.run.flags & Flag.COMMANDS:
                continue
            frontend = self._manager.queues.find(effect.run.topic, effect.run.message_type)
            if frontend is None or not frontend.definition.strict or effect.run.path:
                continue
            is_own = effect.run.publisher != publisher_id(client_name)
            for record in iterate_records(effect.run.payload):
                if record.command == Command.QUEUE_ACKNOWLEDGMENT:
                    self._world.probes["queue acknowledged in part"] += is_own
                    self._judge(client_name, read_acknowledgment(record.body).keys)

    def _judge(self, client_name: str, keys: Keys) -> None:
        now_us, world = self._manager.now_us, self._world
        assert world.queues is not None
        for key in _each(keys):
            held = self._held.get(key)
            if held is None or 0 < held[2] <= now_us:
                # It is no one's here: it may be somebody's elsewhere.
                if key not in world.queues.barriers:
                    self._find("queue strict", f"{client_name} acknowledges {key} and has it not")
            elif held[1] != client_name:
                self._find("queue strict", f"{client_name} acknowledges {key}, which {held[1]} has")
            world.probes["queue acknowledged under strict leasing"] += 1


def _each(keys: Keys) -> Iterator[tuple[int, int]]:
    for publisher, ranges in keys.items():
        for first, last in ranges:
            yield from ((publisher, sequence) for sequence in range(first, last + 1))
