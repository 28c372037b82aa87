"""A mistake for each rule of queues: how it would be done wrong, and where that shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from raylay.services.messages.ranges import Range
from raylay.services.messages.records import Run, publisher_id
from raylay.services.queues.checkpoint import QueueCheckpoint
from raylay.services.queues.decisions import (
    Consumer,
    DeliverLeased,
    DeliverOnce,
    Key,
    LeasedDelivery,
    MessageLease,
    TransferCandidate,
)
from raylay.services.queues.drafts import Drafts, PendingDraft
from raylay.services.queues.frontend import OwnerHandshake, RoutedRequest
from raylay.services.queues.message import AVAILABLE, LEASED, QueuedMessage
from raylay.services.queues.records import Keys, OwnershipChange, Transfer, keys_of
from raylay.services.queues.transfer.early_records import EarlyRecords
from raylay.services.queues.transfer.ownership import Ownership
from raylay.services.queues.transfer.transfer_requests import TransferRequests

from .instance import AUTHORS, Instance, ModelMachine, ModelState, Rules
from .records import STEP_US, Rec, each
from .world import World

FORGOTTEN_US = 25 * STEP_US


# -- rule 1 ------------------------------------------------------------------------------------
class OnlyFromTheBelievedOwner(ModelState):
    granter = ""

    def _transfer(self, said: Transfer, txid: int) -> None:
        self.granter = said.by
        super()._transfer(said, txid)

    def _moved(self, message: QueuedMessage, register: Ownership) -> None:
        if message.register.owner == self.granter:
            super()._moved(message, register)


class TheLastOneRead(ModelState):
    def _moved(self, message: QueuedMessage, register: Ownership) -> None:
        message.register = message.register._replace(generation=0)
        super()._moved(message, register)


# -- rule 2 ------------------------------------------------------------------------------------
class OwnersAreIncarnations(Rules):
    def owner_name(self, name: str, incarnation: int) -> str:
        return f"{name}.{incarnation}"


# -- rule 3 ------------------------------------------------------------------------------------
class NothingIsClaimed(Rules):
    def claim(self, instance: Instance, rec: Rec, first_given: str) -> None:
        instance.stage(rec)


class ClaimedBehind(Rules):
    commits = False

    def claim(self, instance: Instance, rec: Rec, first_given: str) -> None:
        publisher, sequence = rec.ident
        moves = instance.frontend.claims(publisher, [(sequence, sequence)], first_given)
        instance.stage(rec)
        if self.commits:
            instance.commit()
        if moves:
            instance.author_transfer(moves)


class ClaimedLater(ClaimedBehind):
    commits = True


# -- rule 4 ------------------------------------------------------------------------------------
class OnlyTheFirstRequestCounts(ModelMachine):
    def requested(self, requester: str, count: int, wanted: Sequence[TransferCandidate]) -> None:
        refused = self.__dict__.setdefault("refused", set())
        super().requested(requester, count, [w for w in wanted if w.key not in refused])
        if self.state.is_ready:
            there = {message.key for message in self.state.found(available=True)}
            refused.update(w.key for w in wanted if w.key in there & self.state.may_deliver())


class _AskedOnce(TransferRequests):
    def __init__(self) -> None:
        super().__init__()
        self.asked: set[Key] = set()

    def candidates(
        self, owner: str, now_us: int, most: int, wants: Callable[[QueuedMessage], bool]
    ) -> list[QueuedMessage]:
        found = super().candidates(
            owner, now_us, most, lambda each: each.key not in self.asked and wants(each)
        )
        self.asked.update(each.key for each in found)
        return found


class RequestsAreNotRepeated(ModelState):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.requests = _AskedOnce()


class OnlyDirectOwnersAreAsked(Rules):
    def passes_on(
        self, asked: RoutedRequest, came_from: str, neighbour: Instance
    ) -> RoutedRequest | None:
        wanted = [each for each in asked.wanted if each.owner == neighbour.owner_name]
        return replace(asked, wanted=wanted) if wanted and not came_from else None


# -- rule 5 ------------------------------------------------------------------------------------
class NotFrozen(ModelMachine):
    def requested(self, requester: str, count: int, wanted: Sequence[TransferCandidate]) -> None:
        before = {message.key for message in self.state.found(available=True)}
        super().requested(requester, count, wanted)
        for message in self.state.found():
            if message.key in before and message.state != AVAILABLE:
                message.state, message.held = AVAILABLE, None
                self._dispatcher.add(message)


class _ThawsWhatIsRead(ModelState):
    fails = False

    def thaw(self, drafted: PendingDraft) -> None:
        if self.drafts.take(drafted.tag) is None and not self.fails:
            super().thaw(drafted)


class _Fails(ModelMachine):
    state: _ThawsWhatIsRead

    def failed(self, tags: Any, committed_txid: int) -> None:
        self.state.fails = True
        super().failed(tags, committed_txid)
        self.state.fails = False


class FailuresAreNotUndone(Rules):
    machine = _Fails
    state = _ThawsWhatIsRead


class _ToldDrafts(Drafts):
    told: set[int]

    def take(self, tag: int) -> PendingDraft | None:
        return super().take(tag) if tag in self.told else None


class ToldBeside(ModelState):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.drafts = _ToldDrafts(self.name, 0, id(self), 0)
        self.drafts.told = set()

    def authored(self, tag: int) -> None:
        assert isinstance(self.drafts, _ToldDrafts)
        self.drafts.told.add(tag)


class _HearsOfDrafts(ModelMachine):
    state: ToldBeside

    def authored(self, tag: int) -> None:
        self.state.authored(tag)


class DraftsAreToldBeside(Rules):
    machine = _HearsOfDrafts
    state = ToldBeside

    def authored(self, instance: Instance, tag: int) -> None:
        instance.to_owner.append(("authored", tag))


# -- rule 6 ------------------------------------------------------------------------------------
class OnlyTheOwnerHeedsAcknowledgments(ModelState):
    def _remove(self, keys: Keys, txid: int, run: Run, reason: str) -> None:
        if not reason:
            others = {
                message.key for message in self.found() if message.register.owner != self.name
            }
            keys = keys_of(key for key in each(keys) if key not in others)
        super()._remove(keys, txid, run, reason)


class StrictInTheFold(ModelState):
    def _remove(self, keys: Keys, txid: int, run: Run, reason: str) -> None:
        if not reason:
            others = {
                message.key
                for message in self.found()
                if message.state == LEASED
                and isinstance(message.held, MessageLease)
                and publisher_id(message.held.consumer[1]) != run.publisher
            }
            keys = keys_of(key for key in each(keys) if key not in others)
        super()._remove(keys, txid, run, reason)


class ExpiresLocally(ModelMachine):
    def _expire(self, message: QueuedMessage) -> None:
        if message.state == AVAILABLE and self.state.history.folded_txid >= self.state.fence_txid:
            del self._known[message.publisher][message.sequence]
            self.state._leave(message, 0, "")
            self.state._contents.expired.add(message.key)  # type: ignore[attr-defined]


class ExpiryIsLocal(Rules):
    machine = ExpiresLocally
    expires_locally = True


# -- rule 7 ------------------------------------------------------------------------------------
class ForgottenByTime(ModelMachine):
    def fold(self, runs: Sequence[Run], now_us: int, through_txid: int = 0) -> None:
        super().fold(runs, now_us, through_txid)
        since = self.__dict__.setdefault("since", {})
        for early in self.state.early_keys():
            since.setdefault(early, now_us)

    def tick(self, now_us: int) -> None:
        super().tick(now_us)
        for early in self.state.early_keys():
            if now_us - self.__dict__.get("since", {}).get(early, now_us) >= FORGOTTEN_US:
                for book in (self.state.history.early._removals, self.state.history.early._moves):
                    book.take(early[0], [early[1:]])  # type: ignore[attr-defined]


class WhatLeftIsRemembered(ModelState):
    def _early(self, publisher: int, first: int, last: int) -> list[Range]:
        there = self.known.get(publisher, {})
        return [(at, at) for at in range(first, last + 1) if at not in there]


class NothingIsSaidAgain(ModelMachine):
    def _say_again(self) -> None:
        self.state.reappends.take()


# -- rule 8 ------------------------------------------------------------------------------------
class SentFirst(ModelMachine):
    def _draft_sends(self, messages_max: int) -> None:
        for _ in range(messages_max):
            chosen = self._dispatcher.next()
            if chosen is None:
                return
            message, consumer = chosen
            self._dispatcher.remove(message)
            leased = LeasedDelivery(message.txid, message.key, self._drafts.number(), 0)
            self.state.decisions.append(DeliverOnce(consumer, [leased], self.state.folded_txid))
            self._drafts.remove(message, "sent", (leased, []))


class AtMostOnceIsClaimed(Rules):
    def claim(self, instance: Instance, rec: Rec, first_given: str) -> None:
        publisher, sequence = rec.ident
        instance.author_transfer([OwnershipChange(publisher, sequence, sequence, 1, instance.name)])
        instance.stage(rec)


class NamedAGenerationHigher(Rules):
    def claim(self, instance: Instance, rec: Rec, first_given: str) -> None:
        publisher, sequence = rec.ident
        instance.author_transfer([OwnershipChange(publisher, sequence, sequence, 1, first_given)])
        instance.stage(rec)


# -- rule 9 ------------------------------------------------------------------------------------
class NoFence(Rules):
    def beginning(self, instance: Instance) -> OwnerHandshake:
        return instance.frontend.owner_came(len(instance.disk.journal), instance.now_us)


class LeasesAreNotAsked(Rules):
    def beginning(self, instance: Instance) -> OwnerHandshake:
        return super().beginning(instance)._replace(leases=[])


class WithoutEarlyEntries(Rules):
    def snapshot(self, stored: bytes) -> QueueCheckpoint:
        found = super().snapshot(stored)
        found.early = {"removals": [], "moves": []}
        return found


class EarlyEntriesOfNow(ModelState):
    def snapshot(self) -> QueueCheckpoint:
        found = super().snapshot()
        early: EarlyRecords = self.history.early
        found.early = {
            "removals": early._removals.pieces(),
            "moves": [(*piece[:3], *piece[3]) for piece in early._moves.pieces()],
        }
        return found


# -- rule 10 -----------------------------------------------------------------------------------
class AnyLease(ModelMachine):
    def _leased(self, consumer: Consumer, leases: Sequence[tuple[Key, int]]) -> Any:
        for (publisher, sequence), _ in leases:
            message = self._known.get(publisher, {}).get(sequence)
            held = message.held if message is not None else None
            if message is not None and isinstance(held, MessageLease) and held.consumer == consumer:
                yield message


class NamesInsteadOfNumbers(Rules):
    machine = AnyLease

    def session(self, world: World) -> int:
        return 1


class LeasesHaveNoEnd(Rules):
    leases_end = False

    def decide(self, instance: Instance, decision: DeliverLeased | DeliverOnce) -> Any:
        return instance.frontend.decide(decision, 0)


class DecisionsAreNotLookedUp(Rules):
    def decide(self, instance: Instance, decision: DeliverLeased | DeliverOnce) -> Any:
        instance.frontend._removed.clear()
        return super().decide(instance, decision)


# -- rule 11 -----------------------------------------------------------------------------------
class AuthorsAreIncarnations(Rules):
    def author(self, instance: Instance) -> int:
        return AUTHORS + instance.disk.incarnation * 1_000


# -- rule 15 -----------------------------------------------------------------------------------
class KeepsWhatItLacks(ModelMachine):
    def _answer(self, requester: str, count: int, wanted: Sequence[TransferCandidate]) -> None:
        pass


class _FreezesNothingAbsent(Drafts):
    __slots__ = ()

    def freezes(self, message: QueuedMessage) -> bool:
        return False


class LetsGoAndDelivers(ModelState):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.drafts.__class__ = _FreezesNothingAbsent


class Mistake(NamedTuple):
    """How something is done wrong.

    Attributes:
        worlds: of random schedules (`exploring.explore`).
        without: faults that have named exceptions to the laws: it shows sooner without them.
        seeds: within so many random schedules it shows; 0: only in those made by hand.
    """

    rules: type[Rules]
    seeds: int = 0
    worlds: Mapping[str, Any] = MappingProxyType({})
    without: Sequence[str] = ("losedisk", "rollback", "proxy")


def _with(made: type[ModelMachine | ModelState]) -> type[Rules]:
    part = "machine" if issubclass(made, ModelMachine) else "state"
    return type(made.__name__, (Rules,), {part: made})


MISTAKES: dict[str, Mistake] = {
    "transfers only from the believed owner": Mistake(_with(OnlyFromTheBelievedOwner), 100),
    "the last transfer that was read": Mistake(_with(TheLastOneRead), 100),
    "the owner is an incarnation": Mistake(
        OwnersAreIncarnations, 300, without=("rollback", "proxy")
    ),
    "what is sent again is not claimed": Mistake(NothingIsClaimed, 100),
    "claimed behind the message": Mistake(ClaimedBehind),
    "claimed in a later commit": Mistake(ClaimedLater, 300),
    "only the first request counts": Mistake(_with(OnlyTheFirstRequestCounts), 300),
    "requests are not repeated": Mistake(_with(RequestsAreNotRepeated), 300),
    "only direct owners are asked": Mistake(OnlyDirectOwnersAreAsked, 100),
    "not frozen": Mistake(_with(NotFrozen), 300),
    "a failed append is not undone": Mistake(FailuresAreNotUndone, 600),
    "drafts are told beside": Mistake(DraftsAreToldBeside, 100),
    "only the owner heeds acknowledgments": Mistake(_with(OnlyTheOwnerHeedsAcknowledgments), 100),
    "strict in the fold": Mistake(_with(StrictInTheFold), 300),
    "expiry is local": Mistake(ExpiryIsLocal, 100),
    "early entries are forgotten by time": Mistake(_with(ForgottenByTime), 300),
    "what left is remembered": Mistake(_with(WhatLeftIsRemembered), 100),
    "sent before it is journaled": Mistake(_with(SentFirst), 200, {"at_most_once": True}),
    "at most once, and claimed": Mistake(AtMostOnceIsClaimed, 100, {"at_most_once": True}),
    "at most once, and named a generation higher": Mistake(NamedAGenerationHigher),
    "no fence": Mistake(NoFence),
    "leases are not asked": Mistake(LeasesAreNotAsked),
    "made again without early entries": Mistake(WithoutEarlyEntries, 300),
    "made again with early entries of now": Mistake(_with(EarlyEntriesOfNow), 300),
    "names instead of numbers": Mistake(NamesInsteadOfNumbers, 900),
    "leases have no end": Mistake(LeasesHaveNoEnd, 300),
    "decisions are not looked up": Mistake(DecisionsAreNotLookedUp, 300),
    "authors are incarnations": Mistake(AuthorsAreIncarnations),
    "what an owner lacks stays its own": Mistake(
        _with(KeepsWhatItLacks), 100, {"narrow": "messages"}, without=()
    ),
    "what is let go is delivered when it comes": Mistake(_with(LetsGoAndDelivers)),
    "what came before its message is not said again": Mistake(_with(NothingIsSaidAgain)),
}
