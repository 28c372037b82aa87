"""Logons and batches go in one order, in the server and in the simulator; each mistake in it is
seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from sim import connection_mistakes as mistakes

from raylay.services.core.connection_order import (
    ClientIdentity,
    LinkSetup,
    ReachedServer,
    UpstreamCycle,
    log_client_on,
)
from raylay.services.replication.effects import SendBatch
from raylay.services.replication.journal_lookup import LookupResult

pytestmark = pytest.mark.covers("The replication chapters", "names and sequences")

REFUSED = ("stale_epoch", "it connected again since")


class Place:
    """An instance and one connection of each kind; `said` has in its order what is done."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.refused: tuple[str, str] | None = None
        self.downstream_refusal = ""
        self.questions: Any = None
        self.is_ended_by = ""
        self.number, self.name, self.is_open, self.is_served = 7, "b", True, True
        self.tells_names = True
        self.machine: Any = SimpleNamespace(
            identity=SimpleNamespace(name="a", in_fabric=False),
            refuse_upstream=self._refuse_upstream,
            upstream_logged_on=lambda *_, **__: (["let in"], "the answer"),
            upstream_shows=lambda *_: ["an old copy"],
            upstream_lacks=lambda *_: ["lacks"],
            upstream_batch=lambda *_: ["records"],
            asks=lambda *_: self.questions,
            refuse_downstream=self._refuse_downstream,
            compare=lambda *_: (["compared"], False),
            link_connected=lambda *_, **__: (["notice"], "the start"),
            client_logged_on=lambda *_, **__: self.said.append("machine") or "logged on",
        )
        self.steps = SimpleNamespace(perform=self._perform)

    def steady_us(self) -> int:
        return 0

    def _perform(self, effects: list[str]) -> None:
        self.said += effects
        if self.is_ended_by in effects:
            self.is_open = False

    def _refuse_upstream(self, *_: Any, **__: Any) -> tuple[str, str] | None:
        self.said.append("asked")
        return self.refused

    def _refuse_downstream(self, *_: Any) -> str:
        self.said.append("asked")
        return self.downstream_refusal

    def catch_up(self) -> None:
        self.said.append("commits")

    def named(self, names: dict[int, str]) -> None:
        self.said.append("names")

    # -- as a link of another instance
    def accepted(self) -> None:
        self.said.append("accepted")

    def answered(self) -> None:
        self.said.append("acks")

    def shows_old_copy(self) -> bool:
        return True

    # -- as a link of this one
    def refuse(self, why: str) -> None:
        self.said.append(f"refused {why}".strip())

    def reached(self, server: ReachedServer) -> None:
        self.said.append(f"reached {server.name}")

    def begins(self, start: object) -> None:
        self.said.append(cast(str, start))

    # -- as a client
    def refusal(self) -> tuple[str, str] | None:
        self.said.append("asked")
        return self.refused

    def displace(self) -> tuple[str, str] | None:
        self.said.append("older ended")
        return None

    def turn_down(self, reason: str, text: str) -> None:
        self.said.append(f"refused {reason}")

    def enter(self) -> None:
        self.said.append("counted")

    def logged_on(self, answer: object) -> None:
        self.said.append(cast(str, answer))


LOGON: Any = SimpleNamespace(
    name="b", group="g", expect="g", incarnation=0xB, destination="a", epoch=1, generation=0,
    salvages=False, proven=True, address="",
)  # fmt: skip


def upstream(kind: type[UpstreamCycle], place: Place) -> UpstreamCycle:
    here = cast(Any, place)
    return kind(here, here, here, here, lambda: place.said.append("offered"))


def logon(kind: type[UpstreamCycle], place: Place) -> list[str]:
    """A link logs on: what is done, in its order."""
    cycle = upstream(kind, place)
    if cycle.refusal(LOGON) is None:
        place.said.append("epoch written")
        if hasattr(cycle.admit(cast(Any, place), LOGON, 0), "answer"):
            place.said.append("the answer")
            cycle.answered(cast(Any, place))
    return place.said


def batch(kind: type[UpstreamCycle], place: Place) -> list[str]:
    """A link sends a batch that shows an old copy, and needs something of the journal."""
    cycle, answers = upstream(kind, place), LookupResult()
    sent = SendBatch(1, [], True, {}, False, yours={1: [(1, 1)]})
    place.questions = "journal"
    asked = cycle.take_batch(cast(Any, place), sent, [], {}, answers)
    place.said.append(str(asked))
    place.questions = None
    assert cycle.take_batch(cast(Any, place), sent, [], {}, answers) is None
    return place.said


def begin(kind: type[LinkSetup], place: Place) -> list[str]:
    """A link has reached its destination, and is compared; then it is learnt that it was moved."""
    here = cast(Any, place)
    setup = kind(here, here, here, here, ReachedServer("b", 0xB, 0), cast(Any, None))
    if setup.goes_on():
        assert not setup.compare()
        setup.begin()
    place.downstream_refusal = "moved"
    setup.begin()
    return place.said


LET_IN = ["asked", "epoch written", "commits", "asked", "accepted", "names", "let in"]


def test_a_link_logs_on_in_order() -> None:
    place = Place()
    assert logon(UpstreamCycle, place) == [*LET_IN, "the answer", "acks", "offered"]


def test_nothing_is_written_for_a_link_that_is_refused() -> None:
    place = Place()
    place.refused = REFUSED
    assert logon(UpstreamCycle, place) == ["asked"]


def test_a_link_whose_connection_is_gone_is_not_taken_in() -> None:
    place = Place()
    place.is_open = False
    assert logon(UpstreamCycle, place) == ["asked", "epoch written", "commits"]


def test_a_link_of_which_no_name_is_told_is_let_in_all_the_same() -> None:
    place = Place()
    place.tells_names = False
    assert "names" not in logon(UpstreamCycle, place) and "let in" in place.said


def test_a_batch_is_taken_in_order() -> None:
    place = Place()
    assert batch(UpstreamCycle, place) == ["journal", "an old copy", "records"]


def test_nothing_is_taken_of_a_batch_that_shows_that_the_instance_is_over() -> None:
    place = Place()
    place.is_ended_by = "an old copy"
    assert batch(UpstreamCycle, place) == ["journal", "an old copy"]
    upstream(UpstreamCycle, place).take_lacks(cast(Any, place), cast(Any, None), True)
    assert place.said[2:] == ["lacks"]


def test_a_link_begins_in_order() -> None:
    place = Place()
    assert begin(LinkSetup, place) == [
        "asked", "compared", "asked", "reached b", "commits", "the start", "notice",
        "asked", "refused moved",
    ]  # fmt: skip


def test_a_link_of_an_instance_that_does_not_serve_does_not_begin() -> None:
    place = Place()
    place.is_served = False
    assert begin(LinkSetup, place) == ["asked", "refused", "asked", "refused moved"]


def test_a_client_logs_on_in_order() -> None:
    place = Place()
    log_client_on(place.machine, cast(Any, place), ClientIdentity("ann", 0))
    assert place.said == ["asked", "older ended", "counted", "machine", "logged on"]


def test_a_client_that_is_refused_ends_nobody() -> None:
    place = Place()
    place.refused = ("not_ready", "it catches up")
    log_client_on(place.machine, cast(Any, place), ClientIdentity("ann", 0))
    assert place.said == ["asked", "refused not_ready"]


@pytest.mark.parametrize(
    ("mistake", "order", "refused"),
    [
        (mistakes.WritesForTheRefused, logon, REFUSED),
        (mistakes.AdmitsBeforeTheCommits, logon, None),
        (mistakes.NamesBehindTheEffects, logon, None),
        (mistakes.AcksBeforeTheAnswer, logon, None),
        (mistakes.OffersBeforeTheAnswer, logon, None),
        (mistakes.TakesWithoutTheJournal, batch, None),
        (mistakes.RecordsBeforeTheOldCopy, batch, None),
        (mistakes.GoesOnWithoutThatCheck, begin, None),
        (mistakes.BeginsBeforeTheCommits, begin, None),
        (mistakes.ReachedBehindTheCommits, begin, None),
        (mistakes.NoticesBeforeTheStart, begin, None),
    ],
)
def test_a_mistake_in_the_order_is_seen(mistake: Any, order: Any, refused: Any) -> None:
    """Each is of one rule: it does other things, or the same in another order."""
    right, wrong = Place(), Place()
    right.refused = wrong.refused = refused
    kind = LinkSetup if issubclass(mistake, LinkSetup) else UpstreamCycle
    assert order(mistake, wrong) != order(kind, right)
