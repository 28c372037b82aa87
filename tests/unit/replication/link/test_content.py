"""Content filters: what a filter says of a run's records, and who goes by it."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.core.compose import Composition, compose
from raylay.services.errors import ConfigurationError
from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.messages.records import Record, RecordBuilder, Run, run_of, scan
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.acknowledgment import (
    CLIENT,
    RootedRanges,
    Route,
)
from raylay.services.replication.effects import LinkProgress, SendBatch
from raylay.services.replication.instance import Identity, LinkStart
from raylay.services.replication.journal_lookup import LookupResult, read_all
from raylay.services.replication.link.content import (
    DestinationFilters,
    FilteredTopics,
    RecordFilter,
)
from raylay.services.replication.link.outbound import OutboundLink
from raylay.services.replication.link.routing import DestinationRoute, Router
from raylay.services.replication.recovery import RecoveryLog, RecoveryPoint
from raylay.services.replication.run_lookup import RunLookup
from raylay.services.replication.staged import routes_of
from raylay.storage.memory_journal import MemoryJournal

pytestmark = pytest.mark.covers(
    "Replication", "a content filter lets some records of a run through"
)

P, OWN, B = 0x11, 0xA, 0xB


class Word:
    def __init__(self, word: str) -> None:
        self._word = word.encode()
        self.looked = 0

    def passes(self, record: Record) -> bool:
        self.looked += 1
        return self._word in record.body


class Words:
    """A language: a filter is a word that the body has."""

    def __init__(self) -> None:
        self.filters: dict[str, Word] = {}

    def compiled(self, text: str, where: str) -> RecordFilter:
        if " " in text:
            raise ConfigurationError(f"{where}: {text!r} is more than a word")
        return self.filters.setdefault(text, Word(text))


def run(*bodies: str, topic: str = "orders", first: int = 1, txid: int = 1) -> Run:
    builder = RecordBuilder(P, topic, "json")
    payload = b"".join(builder.build(first + i, body.encode(), 0) for i, body in enumerate(bodies))
    made = run_of(scan(payload)[0], payload)
    made.first_txid = txid
    return made


def rule(text: str, topic: str = ".*") -> TopicRule:
    return TopicRule(topic, filter=text)


def to(*rules: TopicRule, name: str = "b", sync: bool = True) -> DestinationRoute:
    return DestinationRoute(name, "g", sync, rules, ".*", (name,))


def routing(*rules: TopicRule) -> tuple[Router, Words]:
    words = Words()
    return Router(to(*rules), DestinationFilters(rules, words)), words


def part(router: Router, made: Run) -> list[Range]:
    return router.part(made, B, made.ranges())


# -- verdicts ----------------------------------------------------------------------------------
def test_a_filter_lets_a_part_of_a_run_through() -> None:
    router, _ = routing(rule("eu"))
    assert part(router, run("eu", "us", "eu", "eu")) == [(1, 1), (3, 4)]
    assert part(router, run("us")) == []


def test_where_all_passes_it_is_the_very_same_list() -> None:
    for router in (routing(rule("eu"))[0], routing(TopicRule(".*"))[0]):
        made = run("eu", "eu of us")
        ranges = made.ranges()
        assert router.part(made, B, ranges) is ranges


def test_what_is_asked_of_a_run_may_be_less_than_it_has() -> None:
    router, _ = routing(rule("eu"))
    made = run("eu", "us", "eu", "eu")
    assert router.part(made, B, [(2, 3)]) == [(3, 3)]


def test_a_topic_goes_by_all_rules_that_take_it() -> None:
    router, _ = routing(rule("eu"), rule("us", "orders"))
    made = ("eu", "us", "asia")
    assert part(router, run(*made)) == [(1, 2)]
    assert part(router, run(*made, topic="trades")) == [(1, 1)]
    whole, words = routing(rule("eu"), TopicRule("orders"))
    assert part(whole, run(*made)) == [(1, 3)]
    assert not words.filters["eu"].looked, "a rule without a filter is enough"


def test_what_is_equal_for_all_records_decides_first() -> None:
    router, words = routing(rule("eu", "orders"))
    assert part(router, run("eu", topic="trades")) == []
    made = run("eu")
    made.path, made.group = (B,), "g"
    assert part(router, made) == [] and not words.filters["eu"].looked


def test_without_a_language_no_filter_runs() -> None:
    for contents in (None, DestinationFilters([rule("eu")])):
        made = run("us")
        assert Router(to(rule("eu")), contents).part(made, B, made.ranges()) == [(1, 1)]
        assert Router(to(rule("eu")), contents).takes(Route(0, b"t", b"j", (), "", 0), B)


def test_a_filter_that_cannot_be_used_says_where() -> None:
    with pytest.raises(ConfigurationError, match="Filter of Topic orders: 'e u' is more"):
        DestinationFilters([rule("e u", "orders")], Words())


def test_a_run_is_looked_at_once_whoever_asks() -> None:
    words = Words()
    contents = DestinationFilters([rule("eu"), rule("us")], words)
    routers = [Router(to(rule(text)), contents) for text in ("eu", "us", "eu")]
    made = run("eu", "us")
    for router in routers:
        part(router, made)
    contents.verdicts(made, made.ranges())
    assert [each.looked for each in words.filters.values()] == [2, 2]
    part(routers[0], run("eu"))
    assert words.filters["eu"].looked == 3, "another run is"


def test_verdicts_take_a_run_apart() -> None:
    contents = DestinationFilters([rule("eu"), rule("us")], Words())
    found = contents.verdicts(run("eu", "eu us", "asia", "us"), [(1, 4)])
    assert sorted(found) == [
        ((), [(3, 3)]),
        (("eu",), [(1, 1)]),
        (("eu", "us"), [(2, 2)]),
        (("us",), [(4, 4)]),
    ]


def test_a_route_keeps_what_let_it_through() -> None:
    contents = DestinationFilters([rule("eu", "orders")], Words())
    made = run("eu", "us")
    routes = routes_of(made, CLIENT, made.ranges(), contents)
    assert {route.passed: theirs for route, theirs in routes} == {
        ("eu",): [(1, 1)],
        (): [(2, 2)],
    }
    router = Router(to(rule("eu", "orders")), contents)
    assert [router.takes(route, B) for route, _ in routes] == [True, False]
    other = run("eu", "us", topic="trades")
    ((route, theirs),) = routes_of(other, CLIENT, ranges := other.ranges(), contents)
    assert theirs is ranges and not route.passed, "no filter looks at its topic"


def test_filters_of_a_topic_are_asked_once() -> None:
    topics = FilteredTopics([rule("eu"), rule("us", "orders"), TopicRule("trades")])
    assert topics[b"orders", b"json"] == ("eu", "us")
    assert topics[b"trades", b"json"] == () and len(topics) == 2


# -- a link ------------------------------------------------------------------------------------
def link(*held: Range, last_txid: int = 0) -> OutboundLink:
    made = OutboundLink(to(rule("eu")), filters=Words())
    there = PublisherRanges()
    there.add_ranges(P, held)
    nothing = RootedRanges()
    made.connected(B, there, LinkStart(True, nothing, nothing, OWN, last_txid), 1)
    return made


def sent(effects: list[Any]) -> list[list[Range]]:
    return [
        [piece for each in effect.runs for piece in each.ranges()]
        for effect in effects
        if isinstance(effect, SendBatch)
    ]


def test_a_link_sends_what_passes_and_goes_on_behind_the_run() -> None:
    made = link()
    made.take([])
    made.told(3)
    assert sent(made.take([run("eu", "us", "eu")])) == [[(1, 1), (3, 3)]]
    assert made.cursor == 3
    made.told(5)
    assert sent(made.take([run("us", "us", first=4, txid=4)])) == []
    made.acked(2, {}, {}, {})
    assert made.cursor == made.stored_txid == 5, "what goes nowhere keeps no journal"


def test_a_resync_sends_what_passes_and_is_missing_and_owes_no_more() -> None:
    made = link((1, 1), last_txid=4)
    headers = run("eu", "us", "eu", "us")
    headers.payload = b""
    assert not made.skip_headers([headers]), "a filter looks at its records"
    effects = made.take([run("eu", "us", "eu", "us")])
    assert sent(effects) == [[(3, 3)]]
    unacked = [each.resending for each in effects if isinstance(each, LinkProgress)]
    assert unacked[0] == {P: [(3, 3)]} and made.skipped == 0


def test_what_is_held_whole_is_skipped_by_its_header() -> None:
    made = link((1, 2), last_txid=2)
    headers = run("eu", "us")
    headers.payload = b""
    assert made.skip_headers([headers])


# -- an instance -------------------------------------------------------------------------------
class Bench:
    """A machine with a sync destination for each word, none connected, and its journal."""

    def __init__(
        self,
        *words: str,
        journal: MemoryJournal | None = None,
        point: RecoveryPoint | None = None,
        recent_bytes_max: int = 0,
    ) -> None:
        self.words = words
        self.journal = journal if journal is not None else MemoryJournal()
        hints = RecoveryLog({}).changes(point) if point is not None else {}
        composition = Composition(
            Identity("own", "g", OWN),
            [to(rule(word), name=word) for word in words],
            TopicBook((TopicRule(".*"),)),
            recent_bytes_max=recent_bytes_max,
            filters=Words(),
        )
        lookup = RunLookup(self.journal, stretch_bytes=100)
        stored = {key: value for key, value in hints.items() if value}
        self.machine = compose(composition, self.journal, lookup, stored, 0).machine
        self.machine.check_invariants()
        self.machine.client_logged_on(1, "p", 0)

    def publish(self, *bodies: str, first: int = 1) -> None:
        made = run(*bodies, first=first)
        answers = LookupResult()
        self.machine.client_published(1, [made], 0, answers)
        self.journal.start(lambda last_txid, _: None, lambda txid, error: None)
        self.journal.stage(made)
        self.journal.commit()
        self.machine.committed(made.last_txid, 0)
        self.machine.check_invariants()

    def restarted(self, point: RecoveryPoint | None = None, *words: str) -> Bench:
        return Bench(*(words or self.words), journal=self.journal.crash(), point=point)

    def unacked(self) -> dict[str, list[Range]]:
        return {
            name: list(ledger.unacked.of(OWN).of(P))
            for name, ledger in self.machine.destinations.items()
        }

    @property
    def pending(self) -> list[Range]:
        return list(self.machine.pending.of(OWN).of(P))


def test_each_destination_owes_what_passes_and_the_rest_is_durable() -> None:
    bench = Bench("eu", "us")
    bench.publish("eu", "us", "asia", "eu us", "asia")
    assert bench.unacked() == {"eu": [(1, 1), (4, 4)], "us": [(2, 2), (4, 4)]}
    assert bench.pending == [(1, 2), (4, 4)]
    assert bench.machine.fully_durable_txid() == 0
    bench.machine.link_answered("eu", {OWN: {P: [(1, 1), (4, 4)]}}, {})
    assert bench.pending == [(2, 2), (4, 4)] and bench.machine.fully_durable_txid() == 0


def test_an_upgrade_asks_for_what_passes() -> None:
    bench = Bench("eu", "us")
    bench.machine.downgrade("us", 0, force=True)
    bench.publish("eu", "eu us", "us", "asia")
    assert bench.pending == [(1, 2)]
    bench.machine.upgrade("us", 0)
    assert bench.unacked()["us"] == [(2, 2)], "of what is durable it is asked for nothing"


@pytest.mark.parametrize("is_written", [False, True])
def test_a_restart_knows_what_passes(is_written: bool) -> None:
    """By its records, whose headers are read first, or by what was written down of its verdict."""
    bench = Bench("eu", "us")
    bench.publish("eu", "us", "asia", "eu us")
    point = bench.machine.recovery_point() if is_written else None
    again = bench.restarted(point)
    assert again.unacked() == {"eu": [(1, 1), (4, 4)], "us": [(2, 2), (4, 4)]}
    assert again.pending == [(1, 2), (4, 4)]
    again.machine.downgrade("us", 0, force=True)
    again.machine.upgrade("us", 0)
    assert again.unacked()["us"] == [(4, 4)]


def test_a_restart_with_another_filter_reads_the_records_again() -> None:
    bench = Bench("eu", "us")
    bench.publish("eu", "us", "asia", "eu asia")
    again = bench.restarted(bench.machine.recovery_point(), "eu", "asia")
    assert again.unacked() == {"eu": [(1, 1), (4, 4)], "asia": [(3, 4)]}


@pytest.mark.parametrize("recent_bytes_max", [0, 1 << 20])
def test_who_comes_to_wait_asks_whom_the_record_passes_to(recent_bytes_max: int) -> None:
    """Of what is read from the journal, and of what is in memory still."""
    bench = Bench("eu", "us", recent_bytes_max=recent_bytes_max)
    bench.publish("eu", "us", "asia")
    machine = bench.machine
    for name in bench.words:
        machine.link_answered(name, {OWN: {P: [(1, 3)]}}, {})
    machine.upstream_logged_on(9, "up", "g", 0xC, "own", 1)
    noted = {0xC: {P: [(1, 3)]}}
    questions = machine.asks([], LookupResult(), noted)
    assert bool(questions) == (not recent_bytes_max)
    answers = read_all(questions, RunLookup(bench.journal))
    machine.upstream_batch(9, 1, [], True, noted, False, 0, answers)
    machine.committed(machine.next_txid - 1, 0)
    unacked = {
        name: list(each.unacked.of(0xC).of(P)) for name, each in machine.destinations.items()
    }
    assert unacked == {"eu": [(1, 1)], "us": [(2, 2)]}
    assert list(machine.pending.of(0xC).of(P)) == [(1, 2)]
    machine.check_invariants()


def test_a_destination_with_a_filter_is_not_safe_to_fail_over_to() -> None:
    ledger = Bench("eu").machine.destinations["eu"]
    assert not ledger.carries_all and not ledger.whole


def test_what_a_link_carries_is_told_with_the_rules_without_a_filter() -> None:
    narrow = DestinationFilters([rule("eu")], Words())
    wide = DestinationFilters([rule("eu"), rule("")], Words())
    assert narrow.rules == wide.rules and narrow.carried != wide.carried
    assert not DestinationFilters([rule("")], Words()).carried
    assert not DestinationFilters([rule("eu")]).carried, "no filter runs"
