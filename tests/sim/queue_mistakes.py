"""Mistakes about queues, planted for good: whose a message is, and who has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from raylay.services.core.queues import Queues, QueueState
from raylay.services.messages.ranges import Range
from raylay.services.messages.records import Command, Run, iterate_records
from raylay.services.messages.stateful import PreparedRun, WritePermission, left_of
from raylay.services.messages.topic_book import QueueTopics
from raylay.services.queues.checkpoint import QueueCheckpoint
from raylay.services.queues.decisions import (
    DeliverLeased,
    DeliverOnce,
    Key,
    LeasedDelivery,
    QueueRecordDraft,
    TransferCandidate,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.drafts import Drafts
from raylay.services.queues.frontend import (
    DeliveryCheck,
    OwnerHandshake,
    QueueFrontend,
    RoutedRequest,
)
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.message import AVAILABLE, FROZEN, QueuedMessage
from raylay.services.queues.records import (
    Acknowledgment,
    Keys,
    pack_acknowledgment,
    read_acknowledgment,
)
from raylay.services.queues.replicated_state import ReplicatedQueueState
from raylay.services.queues.transfer.deferred_requests import DeferredRequests
from raylay.services.queues.transfer.ownership import Ownership
from raylay.services.queues.transfer.transfer_requests import TransferRequests
from raylay.services.replication.instance.self_publisher import SelfPublisher
from sim.queues import Owner, QueueHost, QueueMachines


class LastTransferWins(ReplicatedQueueState):
    """The last one read counts, whatever its generation (rule 1)."""

    __slots__ = ()

    def _moved(self, message: QueuedMessage, register: Ownership) -> None:
        message.register = message.register._replace(generation=0)
        super()._moved(message, register)


class OwnersOnlyHeed(ReplicatedQueueState):
    """An acknowledgment counts only where the message is owned (rule 6)."""

    __slots__ = ()

    def _remove(self, keys: Keys, *arguments: Any) -> None:
        ours = {
            publisher: [
                (sequence, sequence)
                for first, last in ranges
                for sequence in range(first, last + 1)
                if self._is_heeded(publisher, sequence)
            ]
            for publisher, ranges in keys.items()
        }
        super()._remove(ours, *arguments)

    def _is_heeded(self, publisher: int, sequence: int) -> bool:
        message = self.known.get(publisher, {}).get(sequence)
        return message is None or self.is_ours(message)


class DoesNotFreeze(QueueMachine):
    """What is granted may be delivered until the grant is read (rule 5)."""

    __slots__ = ()

    def requested(self, requester: str, count: int, wanted: Sequence[TransferCandidate]) -> None:
        asked = [
            message
            for (publisher, sequence), _, _ in wanted
            if (message := self._known.get(publisher, {}).get(sequence)) is not None
            and message.state == AVAILABLE
        ]
        super().requested(requester, count, wanted)
        for message in asked:
            if message.state == FROZEN:
                self.state.release(message)


class SendsFirst(QueueMachine):
    """At most once: it is sent before its removal is in the journal (rule 8)."""

    __slots__ = ()

    def _draft_sends(self, messages_max: int) -> None:
        super()._draft_sends(messages_max)
        for drafted in self._drafts._open.values():
            for leased, consumers in drafted.receivers:
                for consumer in consumers:
                    self.state.decisions.append(
                        DeliverOnce(consumer, [leased], self.state.folded_txid)
                    )


class LeasesEndEarly(QueueMachine):
    """The owner ends leases when half their time is over (rule 10)."""

    __slots__ = ()

    def tick(self, now_us: int) -> None:
        super().tick(now_us + self._lease_us // 2)


class IgnoresWhoLeft(QueueMachine):
    """What a consumer had that is gone stays its own."""

    __slots__ = ()

    def left(self, consumer: Any, *, begun: Any = None, is_cancel: bool = False) -> None:
        self.state.consumers.discard(consumer)
        self._dispatcher.left(consumer)

    def tick(self, now_us: int) -> None:
        pass


class KeepsWhatItLacks(QueueMachine):
    """Who is asked for what it does not have says nothing (rule 15)."""

    __slots__ = ()

    def _answer(self, requester: str, count: int, wanted: Sequence[TransferCandidate]) -> None:
        pass


class AnswersTheFirstOnly(QueueMachine):
    """What was refused once is never granted (rule 4)."""

    __slots__ = ("_refused_once",)

    def requested(self, requester: str, count: int, wanted: Sequence[TransferCandidate]) -> None:
        before: set[Key] = getattr(self, "_refused_once", set())
        super().requested(requester, count, [each for each in wanted if each.key not in before])
        self._refused = DeferredRequests()
        left = {each.key for each in wanted if self._is_free(*each.key)}
        self._refused_once = before | left

    def _is_free(self, publisher: int, sequence: int) -> bool:
        message = self._known.get(publisher, {}).get(sequence)
        return message is not None and message.state != FROZEN and self.state.is_ours(message)


class _AsksOnce(TransferRequests):
    __slots__ = ("_asked_once",)

    def candidates(
        self, owner: str, now_us: int, most: int, wants: Callable[[QueuedMessage], bool]
    ) -> list[QueuedMessage]:
        before: set[Key] = getattr(self, "_asked_once", set())
        found = super().candidates(
            owner, now_us, most, lambda each: each.key not in before and wants(each)
        )
        self._asked_once = before | {each.key for each in found}
        return found


class AsksOnce(ReplicatedQueueState):
    """What was asked for once is not asked for again (rule 4)."""

    __slots__ = ()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.requests = _AsksOnce()


class TakesOverUnasked(QueueMachine):
    """What is of others is claimed by who asks, though nobody has told it to (rule 13)."""

    __slots__ = ()

    def _may_claim(self, message: QueuedMessage) -> bool:
        return True


class AcknowledgesBarriers(ReplicatedQueueState):
    """Whom a barrier was sent to here takes it from those elsewhere."""

    __slots__ = ()

    def _remove(self, keys: Keys, txid: int, run: Run, reason: str) -> None:
        super()._remove(keys, txid, run, reason or "left")


class ExpiresNothing(QueueMachine):
    """What waits too long stays."""

    __slots__ = ()

    def _expire(self, message: QueuedMessage, why: str = "time_limit") -> None:
        if why != "time_limit":
            super()._expire(message, why)


class CountsNoTries(QueueMachine):
    """Nothing is delivered too often."""

    __slots__ = ()

    def _end_lease(self, message: QueuedMessage, **how: Any) -> None:
        super()._end_lease(message)


class _GivesUpWithoutLetters(Drafts):
    __slots__ = ()

    def letters(self, tag: int) -> tuple[str, list[tuple[int, int]]]:
        reason, txids = super().letters(tag)
        return ("", []) if reason == "forced_expire" else (reason, txids)


class GivesUpWithoutLetters(ReplicatedQueueState):
    """Messages that a consumer gives up leave the queue without letters."""

    __slots__ = ()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.drafts.__class__ = _GivesUpWithoutLetters


def _without(**changes: Any) -> type[ReplicatedQueueState]:
    class Without(ReplicatedQueueState):
        """Of another definition."""

        __slots__ = ()

        def __init__(self, definition: QueueDefinition, *arguments: Any, **named: Any) -> None:
            super().__init__(replace(definition, **changes), *arguments, **named)

    return Without


class ClaimsNothing(Queues):
    """What is sent again is taken as if it were new (rule 3)."""

    def claims(
        self,
        frontend: QueueFrontend,
        publisher: int,
        ranges: Sequence[Range],
        given: str,
        now_us: int,
    ) -> list[Run]:
        return []


class UndoesNoDraft(Queues):
    """Owners are not told which of their drafts have failed (rule 5)."""

    def failed(self, committed_txid: int) -> dict[str, list[int]]:
        super().failed(committed_txid)
        return {}


class TrustingDoor(QueueFrontend):
    """Sends whatever an owner has decided (rule 10)."""

    def decide(self, decision: DeliverLeased | DeliverOnce, now_us: int) -> DeliveryCheck:
        if decision.consumer not in self.consumers:
            return super().decide(decision, now_us)
        super().decide(decision._replace(messages=[]), now_us)  # type: ignore[arg-type]
        for each in decision.messages:
            self._lease(decision, each)
        return DeliveryCheck(decision.messages, [])

    def _lease(self, decision: DeliverLeased | DeliverOnce, each: LeasedDelivery) -> None:
        publisher, sequence = each.key
        of = self._leases.setdefault(publisher, {})
        of[sequence] = decision.consumer, each.number, each.until_us


class LenientDoor(QueueFrontend):
    """Takes what anybody acknowledges, though leasing is strict (rule 6)."""

    def judged(self, said: Acknowledgment, by: int, now_us: int) -> Acknowledgment:
        return said


class ForeignDoor(QueueFrontend):
    """Takes what anybody acknowledges that no other client holds here: another one may hold it at
    another instance."""

    def judged(self, said: Acknowledgment, by: int, now_us: int) -> Acknowledgment:
        return self.without_others(said, by, now_us)


class CutsByItsLeases(Queues):
    """Cuts an acknowledgment to what counts here, and journals it as its client's."""

    def topics(self) -> list[QueueTopics]:
        return [each._replace(state=_Cutting(each.state)) for each in super().topics()]


class _Cutting(QueueState):
    def __init__(self, of: QueueState) -> None:
        super().__init__(of._queues, of._frontend)

    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        records = list(iterate_records(run.payload))
        said = [read_acknowledgment(each.body) for each in records]
        counts = [self._frontend.judged(each, run.publisher, steady_us) for each in said]
        return left_of(run, list(zip(records, map(pack_acknowledgment, counts), strict=True)), ())


class ForgettingDoor(QueueFrontend):
    """An owner that begins is not told what consumers have (rule 9)."""

    def owner_came(self, staged_txid: int, now_us: int) -> OwnerHandshake:
        return super().owner_came(staged_txid, now_us)._replace(leases=[])


class FencelessDoor(QueueFrontend):
    """An owner that begins decides before it has read what its predecessor drafted (rule 9)."""

    def owner_came(self, staged_txid: int, now_us: int) -> OwnerHandshake:
        return super().owner_came(staged_txid, now_us)._replace(fence_txid=0)


class WritesLettersLast(Queues):
    """A dead letter is journaled behind the removal of its message."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._late: list[tuple[Any, ...]] = []

    def letters(self, *arguments: Any) -> None:
        self._late.append(arguments)

    def draft(self, *arguments: Any) -> None:
        super().draft(*arguments)
        for each in self._late:
            super().letters(*each)
        self._late.clear()


class CommitsLettersApart(Queues):
    """A commit may end between a letter and its removal: after a crash there is a second letter."""

    def runs(self) -> list[Run]:
        runs = super().runs()
        for run in runs:
            run.with_next = False
        return runs


class LettersFailApart(Queues):
    """Where an append fails, a removal is drafted again without the letters before it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._removals: dict[tuple[str, int], tuple[QueueFrontend, QueueRecordDraft, int]] = {}

    def draft(self, frontend: QueueFrontend, draft: QueueRecordDraft, now_us: int) -> None:
        super().draft(frontend, draft, now_us)
        if draft.command == Command.QUEUE_REMOVAL:
            self._removals[frontend.definition.stored_as, draft.tag] = frontend, draft, now_us

    def failed(self, committed_txid: int) -> dict[str, list[int]]:
        found = super().failed(committed_txid)
        for name, tags in found.items():
            again = [self._removals[name, tag] for tag in tags if (name, tag) in self._removals]
            for frontend, draft, now_us in again:
                tags.remove(draft.tag)
                super().draft(frontend, draft, now_us)
        return found


def _with_door(kind: type[QueueFrontend]) -> type[Queues]:
    class WithDoor(Queues):
        """With other doors."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            for frontend in self.frontends.values():
                frontend.__class__ = kind

    return WithDoor


class NeedsNothing(QueueHost):
    """The journal is removed as if no owner had to read it again."""

    def floor(self, owner: Owner, floor_txid: int) -> None:
        super().floor(owner, 1 << 62)


class ServesAtOnce(QueueHost):
    """An instance that begins without its disk decides before its peers have brought what they
    have (rule 12)."""

    @property
    def is_serving(self) -> bool:
        return True


class NamesIncarnations(QueueHost):
    """An instance that begins anew is another owner (rule 2)."""

    def owner_name(self, name: str, incarnation: int) -> str:
        return f"{name}@{incarnation}"


class ClockBeginsAnew(QueueHost):
    """The steady clock of a queue begins with the clock on the wall at each start."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.behind_us = 0


class NumbersGoOn(QueueHost):
    """What an instance writes is numbered under its incarnation, behind what its journal has
    (rule 11)."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        disk = self.instance.disk
        author = SelfPublisher("queues", replace(disk.identity(), life=0))
        author._last = max((at for of, at in disk.index if of == author.publisher), default=0)
        self.queues._author = author


class AsksNeighbours(QueueHost):
    """Requests are not passed on (rule 4)."""

    def asked(self, asked: RoutedRequest) -> None:
        links, self.instance.links = self.instance.links, {}
        super().asked(asked)
        self.instance.links = links


class BeginsWithoutEarly(Owner):
    """A queue is made again without what was early then (rule 9)."""

    def snapshot(self, stored: bytes | None) -> QueueCheckpoint:
        found = super().snapshot(stored)
        return replace(found, early=QueueCheckpoint().early)


class BeginsWhereItWas(Owner):
    """A queue is made again from where its owner had read to, and not from its oldest message."""

    def snapshot(self, stored: bytes | None) -> QueueCheckpoint:
        found = super().snapshot(stored)
        return replace(found, after_txid=found.folded_txid)


class GoesByTheWallClock(Owner):
    """Leases end by the clock that somebody sets."""

    @property
    def now_us(self) -> int:
        return self.world.now_us + self.instance.machine.wall_offset_us


class AgesByTheWallClock(ReplicatedQueueState):
    """A message is as old as the clock that somebody sets says."""

    __slots__ = ()

    def clock_set(self, after_txid: int, offset_us: int) -> None:
        pass


MISTAKES: dict[str, tuple[QueueMachines, frozenset[str]]] = {
    "queue: goes by the wall clock": (
        QueueMachines(owner=GoesByTheWallClock),
        frozenset(("queue lease", "queue expiry")),
    ),
    "queue: ages by the wall clock": (
        QueueMachines(state=AgesByTheWallClock),
        frozenset(("queue expiry",)),
    ),
    "queue: last transfer wins": (
        QueueMachines(state=LastTransferWins),
        frozenset(("queue journal", "queue agreement", "queue ownership")),
    ),
    "queue: owners only heed": (
        QueueMachines(state=OwnersOnlyHeed),
        frozenset(("queue journal", "queue consumed")),
    ),
    "queue: does not freeze": (
        QueueMachines(machine=DoesNotFreeze),
        frozenset(("queue ownership",)),
    ),
    "queue: sends first": (
        QueueMachines(machine=SendsFirst),
        frozenset(("queue at most once",)),
    ),
    "queue: leases end early": (
        QueueMachines(machine=LeasesEndEarly),
        frozenset(("queue lease",)),
    ),
    "queue: ignores who left": (
        QueueMachines(machine=IgnoresWhoLeft),
        frozenset(("queue stuck",)),
    ),
    "queue: keeps what it lacks": (
        QueueMachines(machine=KeepsWhatItLacks),
        frozenset(("queue consumed",)),
    ),
    "queue: takes over unasked": (
        QueueMachines(machine=TakesOverUnasked),
        frozenset(("queue ownership",)),
    ),
    "queue: acknowledges barriers": (
        QueueMachines(state=AcknowledgesBarriers),
        frozenset(("queue barrier",)),
    ),
    "queue: barriers are overtaken": (
        QueueMachines(state=_without(barrier="")),
        frozenset(("queue barrier",)),
    ),
    "queue: forgets priorities": (
        QueueMachines(state=_without(priority="")),
        frozenset(("queue priority",)),
    ),
    "queue: expires nothing": (
        QueueMachines(machine=ExpiresNothing),
        frozenset(("queue expiry",)),
    ),
    "queue: expires early": (
        QueueMachines(state=_without(expiration_us=10_000)),
        frozenset(("queue expiry",)),
    ),
    "queue: counts no tries": (
        QueueMachines(machine=CountsNoTries),
        frozenset(("queue tries",)),
    ),
    "queue: lenient door": (
        QueueMachines(queues=_with_door(LenientDoor)),
        frozenset(("queue strict",)),
    ),
    "queue: takes foreign acknowledgments": (
        QueueMachines(queues=_with_door(ForeignDoor)),
        frozenset(("queue strict",)),
    ),
    "queue: cuts by its leases": (
        QueueMachines(queues=CutsByItsLeases),
        frozenset(("queue split",)),
    ),
    "queue: claims nothing": (
        QueueMachines(queues=ClaimsNothing),
        frozenset(("queue agreement", "queue ownership")),
    ),
    "queue: undoes no draft": (
        QueueMachines(queues=UndoesNoDraft),
        frozenset(("queue stuck", "liveness", "queue consumed")),
    ),
    "queue: trusting door": (
        QueueMachines(queues=_with_door(TrustingDoor)),
        frozenset(("queue removal", "queue lease")),
    ),
    "queue: forgetting door": (
        QueueMachines(queues=_with_door(ForgettingDoor)),
        frozenset(("queue lease",)),
    ),
    "queue: no fence": (
        QueueMachines(queues=_with_door(FencelessDoor)),
        frozenset(("queue ownership", "queue removal")),
    ),
    "queue: needs nothing": (
        QueueMachines(manager=NeedsNothing),
        frozenset(("queue journal", "queue stuck")),
    ),
    "queue: answers the first only": (
        QueueMachines(machine=AnswersTheFirstOnly),
        frozenset(("queue consumed",)),
    ),
    "queue: asks once": (
        QueueMachines(state=AsksOnce),
        frozenset(("queue consumed",)),
    ),
    "queue: serves at once": (
        QueueMachines(manager=ServesAtOnce),
        frozenset(("queue readiness",)),
    ),
    "queue: names incarnations": (
        QueueMachines(manager=NamesIncarnations),
        frozenset(("queue consumed",)),
    ),
    "queue: clock begins anew": (
        QueueMachines(manager=ClockBeginsAnew),
        frozenset(("queue expiry",)),
    ),
    "queue: numbers go on": (
        QueueMachines(manager=NumbersGoOn),
        frozenset(("store",)),
    ),
    "queue: asks neighbours": (
        QueueMachines(manager=AsksNeighbours),
        frozenset(("queue consumed",)),
    ),
    "queue: letters fail apart": (
        QueueMachines(queues=LettersFailApart),
        frozenset(("queue dead letters",)),
    ),
    "queue: commits letters apart": (
        QueueMachines(queues=CommitsLettersApart),
        frozenset(("queue dead letters",)),
    ),
    "queue: writes letters last": (
        QueueMachines(queues=WritesLettersLast),
        frozenset(("queue dead letters",)),
    ),
    "queue: gives up without letters": (
        QueueMachines(state=GivesUpWithoutLetters),
        frozenset(("queue dead letters",)),
    ),
    "queue: begins without early": (
        QueueMachines(owner=BeginsWithoutEarly),
        frozenset(("queue journal", "queue removal")),
    ),
    "queue: begins where it was": (
        QueueMachines(owner=BeginsWhereItWas),
        frozenset(("queue journal",)),
    ),
}
"""What is under test then, and the laws that must see it."""
