"""A client that asks the SOW topics of an instance behind its persisted ack.

Over another connection than it publishes on, with delays of their own: nothing else comes at
another time because somebody asks. Behind the ack the answer has what was acknowledged, and so all
that was committed before: it was in the journal when the query came, whether it was folded or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylay.services.messages.records import decode_record
from raylay.services.replication.journal_lookup import LookupRequest, LookupResult, LookupTask
from raylay.services.sow.query.query_execution import QueryExecution
from raylay.services.sow.query.query_parser import QueryParser, QueryRequest
from raylay.services.subscriptions.matching import topic_filter
from raylay.services.verification.history import SowDiffers
from sim import sow

if TYPE_CHECKING:
    from sim.instance import Instance
    from sim.world import World

CHANCE = 0.5
DELAY_US, TURN_US = (200, 4_000), (10, 600)
"""Until a query comes; until the next turn of it."""
LOOKED_AT_ONCE = 2
"""Records that are folded at once for who waits."""
WANTED = topic_filter(f"^({sow.ARRIVAL}|{sow.LAST_WRITER})$", "")


def behind_ack(world: World, name: str, publisher: int, sequences: list[int]) -> None:
    """An instance has said that these are durable: it is asked, at times."""
    if world.sow and name and world.ask_rng.random() < CHANCE:
        delay_us = world.ask_rng.randint(*DELAY_US)
        world.after(delay_us, _come, world, name, publisher, sequences)


def _come(world: World, name: str, publisher: int, sequences: list[int]) -> None:
    instance = world.instances.get(name)
    if instance is not None and instance.alive and instance.machine.ready:
        Asking(instance, publisher, sequences).come()


class Asking:
    """One query: the shell around the production code.

    Args:
        publisher, sequences: of what was acknowledged.
    """

    def __init__(self, instance: Instance, publisher: int, sequences: list[int]) -> None:
        self._instance = instance
        self._world = instance.world
        self._acked = [(publisher, sequence) for sequence in sequences]
        self._arrivals = instance.world.machines.arrivals(self._take)
        self._committed_txid = 0
        self._sort = self._world.ask_rng.randrange(-1, sow.SORTS)
        """That it filters by; -1: it asks for all."""
        self._expected: dict[tuple[str, bytes], tuple[int, int]] = {}
        self._unsettled: set[tuple[str, bytes]] = set()
        self._rows: dict[tuple[str, bytes], tuple[int, int]] = {}

    def come(self) -> None:
        """It has come to the instance."""
        self._go_on(self._arrivals.came(self))

    def _take(self, command: object, answers: LookupResult) -> LookupRequest | None:
        """As services/server/clients/connection.py does it."""
        if answers.decoded is None:
            answers.decoded = command
            self._committed_txid = self._instance.machine.committed_txid
            behind = self._instance.folds.behind()
            if behind is not None:
                self._world.probes["asked before all was folded"] += 1
                questions = LookupRequest()
                questions.looking.append(behind)
                return questions
        self._begin()
        return None

    def _go_on(self, fetch: LookupTask | None) -> None:
        if fetch is not None:
            self._world.after(self._world.ask_rng.randint(*TURN_US), self._look, fetch)

    def _look(self, fetch: LookupTask) -> None:
        if not self._instance.alive:
            self._arrivals.clear()
        elif fetch.look(LOOKED_AT_ONCE):
            self._go_on(self._arrivals.fetched())
        else:
            self._go_on(fetch)

    def _begin(self) -> None:
        """What there is to be said of it is of this moment."""
        instance, world = self._instance, self._world
        ledger = instance.disk.sow_ledger
        if ledger.is_excused:
            return
        world.probes["asked behind an ack"] += 1
        for each in self._acked:
            if ledger.txids.get(each, 0) > self._committed_txid:
                self._tell(f"{each[0]}|{each[1]}| was acknowledged before it was committed")
        self._unsettled = {
            place for place, txid in ledger.changed.items() if txid > self._committed_txid
        }
        self._expected = {
            place: held
            for place, held in ledger.holds().items()
            if self._sort < 0 or self._sort in map(sow.sort_of, ledger.words[place])
        }
        questions = QueryParser(instance.sow.book, {}, instance.name, "")
        filter_ = f"/sort{self._sort} = 1" if self._sort >= 0 else ""
        asked = questions.accept(QueryRequest(WANTED, filter_))
        self._turn(questions.begin(asked, world.now_us))

    def _turn(self, querying: QueryExecution) -> None:
        """Others come between two of them."""
        if not self._instance.alive:
            querying.close()
            return
        for frame in querying.turn(lambda: True):
            for row in frame:
                record = decode_record(row)
                self._rows[record.topic, record.key] = record.publisher, record.sequence
        if querying.done:
            self._check()
        else:
            self._world.after(self._world.ask_rng.randint(*TURN_US), self._turn, querying)

    def _check(self) -> None:
        """The answer, beside what the journal said when it was asked."""
        expected, found = self._expected, self._rows
        for place in sorted(expected.keys() | found.keys()):
            if place not in self._unsettled and expected.get(place) != found.get(place):
                name, key = place
                self._tell(
                    f"{name} {key.decode()}: a query behind an ack gives {found.get(place)}, "
                    f"the journal says {expected.get(place)}"
                )

    def _tell(self, text: str) -> None:
        self._world.log(SowDiffers(self._world.now_us, self._instance.name, text))
