"""The conversion of a source's log in an instance that begins as a copy of it (design.md 4,
Bootstrap).

A copied message counts as having taken the same hop as a replicated one: its path ends with the
source, so that it is never sent back there, and its group is the source's. Messages that the
instance itself once published come back as well, under the incarnation that the instance had then.
The order is the source's, and so are the receive times, by which a replay from a time starts.

Messages that the source has removed, or never got, are recorded as unavailable, and arrive when
another upstream still has them.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Flag, Kind, Run, commands_flag, path_through
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topic_sets import carries_all
from raylay.services.messages.topics import ExpressionBudget, TopicMatcher, TopicRule
from raylay.services.replication.unavailable import encode_unavailable
from raylay.services.replication.values import Identity

_FLAGS_COPIED = Flag.CONTIGUOUS | Flag.TRACED | Flag.CROSSED | Flag.LATE


class BootstrapCopy:
    """The copy of one source's log.

    Invariants: transaction ids are given without a gap, from 1; no message is taken twice.
    Owner: the shell of an instance that does not serve yet. Lifecycle: one source; another source
    begins with another copy.
    """

    def __init__(self, identity: Identity, topics: TopicBook, source: Identity) -> None:
        self.messages = 0
        self.bytes = 0
        self.source_txid = 0
        """Transaction id of the source's log up to which it is copied."""
        self.next_txid = 1
        self._identity = identity
        self._topics = topics
        self._source = source
        self._held = PublisherRanges()
        self._unavailable = PublisherRanges()

    def lacks(self, lacks: PublisherRanges) -> None:
        """Takes the messages that the source cannot give, although it is to give everything."""
        self._unavailable.update(lacks)

    def take(self, runs: list[Run], source_txid: int) -> list[Run]:
        """Returns the runs to journal for these runs of the source, which end at `source_txid` in
        the source's log.

        Raises:
            RemoteProtocolError: with reason `bad_record`; the copy is of no further use.
        """
        made = [self._copied(run) for run in runs]
        for run in made:
            ranges = run.ranges()
            held = self._held.of(run.publisher)
            if any(held.touches(first, last) for first, last in ranges):
                raise RemoteProtocolError(
                    f"{self._source.name} sent a message of publisher {run.publisher} twice",
                    "bad_record",
                )
            self._held.add_ranges(run.publisher, ranges)
            run.first_txid = self.next_txid
            self.next_txid += run.count
            self.messages += run.count
            self.bytes += len(run.payload)
        self.source_txid = source_txid
        return made

    def _copied(self, run: Run) -> Run:
        topic = run.topic.decode("utf-8", "replace")
        if run.kind != Kind.RECORDS:
            raise RemoteProtocolError(f"a run of kind {run.kind} was sent", "bad_record")
        if not self._topics[run.topic, run.message_type].journaled:
            raise RemoteProtocolError(
                f"{self._source.name} sent topic {topic!r}, which is not in the transaction log "
                f"of {self._identity.name} and was not asked for",
                "bad_record",
            )
        if self._identity.incarnation in run.path:
            raise RemoteProtocolError(
                f"{self._source.name} sent a message that came from this data directory: it is "
                "not a new one",
                "bad_record",
            )
        crossed = self._source.group != self._identity.group
        return Run(
            run.publisher,
            run.first_sequence,
            run.last_sequence,
            run.count,
            run.payload,
            run.topic,
            run.message_type,
            path_through(run.path, self._source.incarnation),
            self._source.group,
            (run.flags & _FLAGS_COPIED)
            | (Flag.CROSSED if crossed else 0)
            | commands_flag(run.payload),
            receive_time_us=run.receive_time_us,
            payload_checksum=run.payload_checksum,
        )

    def end(self, now_us: int) -> list[Run]:
        """Returns the notes to journal when everything is copied: they name the unavailable
        messages."""
        self._unavailable.difference_update(self._held)
        notes = []
        for publisher, missing in self._unavailable.sets.items():
            if missing:
                note = encode_unavailable(publisher, missing)
                note.first_txid = self.next_txid
                note.receive_time_us = now_us
                self.next_txid += 1
                notes.append(note)
        return notes


class BootstrapChoice:
    """The part of a source's log for which an instance asks: the topics that the instance journals,
    within those that its Bootstrap names.

    Raises:
        ConfigurationError: an expression cannot be used, or all of them need too much.
    """

    def __init__(self, wanted: tuple[TopicRule, ...], journaled: tuple[TopicRule, ...]) -> None:
        self._rules = (wanted, journaled)
        budget = ExpressionBudget()
        self._wanted = TopicMatcher(wanted, "Bootstrap Topic", budget)
        self._journaled = TopicMatcher(journaled, "Topic", budget)

    def of(self, runs: Iterable[Run]) -> list[Run]:
        return [
            run
            for run in runs
            if run.kind == Kind.RECORDS
            and self._wanted.matches(run.topic, run.message_type)
            and self._journaled.matches(run.topic, run.message_type)
        ]

    def is_whole(self, log: tuple[TopicRule, ...]) -> bool:
        """Returns whether the instance asks for everything in a log of these topics."""
        return all(carries_all(rules, log) for rules in self._rules)
