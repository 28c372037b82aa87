"""Planted mistakes in the order of logons and of batches (services/core/connection_order.py)."""

from __future__ import annotations

from typing import Any

from raylay.services.core.connection_order import LinkSetup, UpstreamCycle, UpstreamLink
from raylay.services.messages.records import Run
from raylay.services.replication.effects import Rooted
from raylay.services.replication.journal_lookup import LookupRequest, LookupResult
from raylay.services.replication.membership.admission import (
    LinkAdmitted,
    LinkLogon,
    LinkRefused,
    decide,
)
from raylay.services.replication.values import LinkStart


class WritesForTheRefused(UpstreamCycle):
    """Asks only once whether a link is refused: its epoch is written down either way."""

    def refusal(self, logon: LinkLogon) -> LinkRefused | None:
        return None


class AdmitsBeforeTheCommits(UpstreamCycle):
    """Lets a link in before what is on the disk is taken."""

    def admit(
        self, link: UpstreamLink, logon: LinkLogon, epoch_seen: int, *, is_anothers: bool = False
    ) -> LinkAdmitted | LinkRefused | None:
        commits, self._commits = self._commits, _Nothing()  # type: ignore[assignment]
        try:
            return super().admit(link, logon, epoch_seen, is_anothers=is_anothers)
        finally:
            self._commits = commits


class NamesBehindTheEffects(UpstreamCycle):
    """Tells queues who bears an incarnation when its first records may have come."""

    def admit(
        self, link: UpstreamLink, logon: LinkLogon, epoch_seen: int, *, is_anothers: bool = False
    ) -> LinkAdmitted | LinkRefused | None:
        self._commits.catch_up()
        decided = decide(
            self._instance.machine, link.number, logon, epoch_seen, is_open=link.is_open
        )
        if isinstance(decided, LinkAdmitted):
            link.accepted()
            self._instance.steps.perform(decided.effects)
            self._peers.named({logon.incarnation: logon.name})
        return decided


class AcksBeforeTheAnswer(UpstreamCycle):
    """Lets acks out as soon as a link is let in, before its logon is answered."""

    def admit(
        self, link: UpstreamLink, logon: LinkLogon, epoch_seen: int, *, is_anothers: bool = False
    ) -> LinkAdmitted | LinkRefused | None:
        decided = super().admit(link, logon, epoch_seen, is_anothers=is_anothers)
        if isinstance(decided, LinkAdmitted):
            link.answered()
        return decided


class OffersBeforeTheAnswer(UpstreamCycle):
    """Lets links use a connection before the acks that waited behind the answer are out."""

    def answered(self, link: UpstreamLink) -> None:
        self._offer()
        link.answered()


class TakesWithoutTheJournal(UpstreamCycle):
    """Takes a batch without what it needs of the journal."""

    def take_batch(
        self,
        link: UpstreamLink,
        batch: Any,
        runs: list[Run],
        awaited: Rooted,
        answers: LookupResult,
        is_part: bool = False,
    ) -> LookupRequest | None:
        questions = super().take_batch(link, batch, runs, awaited, answers, is_part)
        if questions:
            runtime = self._runtime
            of = link.number, batch.number, runs, batch.marked, awaited, batch.caught_up
            effects = self._instance.machine.upstream_batch(
                *of, runtime.steady_us(), answers, is_part
            )
            self._instance.steps.perform(effects)
        return None


class RecordsBeforeTheOldCopy(UpstreamCycle):
    """Takes a link's records before what shows that this instance is an old copy."""

    def take_batch(
        self,
        link: UpstreamLink,
        batch: Any,
        runs: list[Run],
        awaited: Rooted,
        answers: LookupResult,
        is_part: bool = False,
    ) -> LookupRequest | None:
        yours, batch.yours = batch.yours, {}
        questions = super().take_batch(link, batch, runs, awaited, answers, is_part)
        batch.yours = yours
        if not questions and yours and link.is_open and link.shows_old_copy():
            self._instance.steps.perform(self._instance.machine.upstream_shows(link.number, yours))
        return questions


class GoesOnWithoutThatCheck(LinkSetup):
    """Asks once whether a link goes on: not again when the comparison is done."""

    def begin(self) -> LinkStart | None:
        link, server = self._link, self._server
        link.reached(server)
        self._commits.catch_up()
        return _begun(self)


class BeginsBeforeTheCommits(LinkSetup):
    """Begins a link before what is on the disk is taken."""

    def begin(self) -> LinkStart | None:
        if not self.goes_on():
            return None
        self._link.reached(self._server)
        return _begun(self)


class ReachedBehindTheCommits(LinkSetup):
    """Has commits told to a link only when those on the disk were taken."""

    def begin(self) -> LinkStart | None:
        if not self.goes_on():
            return None
        self._commits.catch_up()
        self._link.reached(self._server)
        return _begun(self)


class NoticesBeforeTheStart(LinkSetup):
    """Tells a link what follows its beginning before it has begun."""

    def begin(self) -> LinkStart | None:
        if not self.goes_on():
            return None
        self._link.reached(self._server)
        self._commits.catch_up()
        return _begun(self, effects_first=True)


class _Nothing:
    def catch_up(self) -> None:
        pass


def _begun(setup: LinkSetup, *, effects_first: bool = False) -> LinkStart:
    runtime, server, link = setup._runtime, setup._server, setup._link
    effects, start = setup._instance.machine.link_connected(
        link.name,
        server.incarnation,
        setup._plan,
        runtime.steady_us(),
        server.name,
        generation=server.generation,
        address=server.address,
    )
    if effects_first:
        setup._instance.steps.perform(effects)
        link.begins(start)
    else:
        link.begins(start)
        setup._instance.steps.perform(effects)
    return start
