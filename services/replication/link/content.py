"""Content filters of destinations: which records of a run pass (design.md 4, "Routed").

All other conditions of routing are equal for all records of a run; a filter looks at each of them.
It is a pure function of the record, so whoever has the record reaches the same verdict: the
instance when the record is committed, and the link when it reads the record. An instance that must
know later where a waiting message goes keeps the verdict (`Route.passed`), not the record.

The language of the filters is behind `FilterLanguage` (content_language.py; the simulator has a
shorter one). Without a language, filters do not run: every record passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import Record, Run
from raylay.services.messages.topics import TOPIC_CACHE_MAX, TopicKey, TopicMatcher, TopicRule


class RecordFilter(Protocol):
    """A predicate over records. It depends on the record alone, so that every instance reaches the
    same verdict."""

    def passes(self, record: Record) -> bool:
        """Returns whether the record passes."""


class FilterLanguage(Protocol):
    """A language in which content filters are written."""

    def compiled(self, text: str, where: str) -> RecordFilter:
        """Returns the filter that a text describes.

        Raises:
            ConfigurationError: naming the text, the place and what is wrong.
        """


class FilteredTopics(dict[TopicKey, tuple[str, ...]]):
    """The content filters of each topic and message type, of which one must pass; an empty tuple
    where every message passes. A look-up of any (topic, message type) succeeds.

    Args:
        rules: the topic rules of the destination. Where several rules take a topic, a message
            passes if it passes one of them, so one rule without a filter lets everything pass.
    """

    __slots__ = ("_rules",)

    def __init__(self, rules: Iterable[TopicRule]) -> None:
        super().__init__()
        self._rules = [(TopicMatcher((rule,), "Filter"), rule.filter) for rule in rules]

    def __missing__(self, key: TopicKey) -> tuple[str, ...]:
        if len(self) >= TOPIC_CACHE_MAX:
            self.clear()
        found = {text for matcher, text in self._rules if matcher[key]}
        texts = self[key] = () if "" in found else tuple(sorted(found))
        return texts


class DestinationFilters:
    """The content filters of an instance's destinations, or of one of them.

    Invariant: `_passing` describes the run that was judged last.
    Owner: the instance's machine, or a link's. Lifecycle: as long as that machine.

    Args:
        rules: the topic rules of all the destinations; those without a filter have no effect.
        language: the language of the filters; None: filters do not run.

    Attributes:
        rules: (topic, message type, filter) of all filters that run, in order.
        carried: the same for all rules, those without a filter included; empty where no filter
            runs. The sequences that a link left out are only valid for these
        rules: an added rule without a filter lets everything of its topics through.

    Raises:
        ConfigurationError: a filter cannot be used.
    """

    __slots__ = ("_filters", "_judged", "_passing", "_topics", "carried", "rules")

    def __init__(
        self, rules: Iterable[TopicRule] = (), language: FilterLanguage | None = None
    ) -> None:
        every = list(rules)
        filtered = [rule for rule in every if rule.filter] if language is not None else []
        self.rules = _terms(filtered)
        self.carried = _terms(every if filtered else ())
        self._topics = FilteredTopics(filtered)
        self._filters = {
            rule.filter: language.compiled(rule.filter, f"Filter of Topic {rule.name}")
            for rule in filtered
            if language is not None
        }
        self._judged: Run | None = None
        self._passing: dict[str, SequenceSet] = {}
        """Sequences that pass, by filter text, of the run that was judged last."""

    def __bool__(self) -> bool:
        return bool(self.rules)

    def looks_at(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether a filter needs the records of this topic and message type."""
        return bool(self.rules) and bool(self._topics[topic, message_type])

    def passing(self, run: Run, texts: Iterable[str], ranges: list[Range]) -> list[Range]:
        """Returns the part of the ranges that passes one of these filters; the same list object
        where all of it passes.

        Args:
            run: a run with its records, which must include all of the ranges.
        """
        passed = SequenceSet()
        for text in texts:
            passed.update(self._of(run, text))
        found = [piece for a, b in ranges for piece in passed.within(a, b)]
        return ranges if found == ranges else found

    def verdicts(self, run: Run, ranges: list[Range]) -> list[tuple[tuple[str, ...], list[Range]]]:
        """Returns the ranges in groups, one for each set of filters that they pass."""
        texts = self._topics[run.topic, run.message_type] if self.rules else ()
        found: list[tuple[tuple[str, ...], list[Range]]] = [((), ranges)]
        for text in texts:
            passed = self._of(run, text)
            split = []
            for verdict, theirs in found:
                there = [piece for a, b in theirs for piece in passed.within(a, b)]
                others = [piece for a, b in theirs for piece in passed.missing(a, b)]
                split += [((*verdict, text), there)] * bool(there)
                split += [(verdict, others)] * bool(others)
            found = split
        return found

    def _of(self, run: Run, text: str) -> SequenceSet:
        if self._judged is not run:
            # Applies all filters of the topic to one record after another, so that each record is
            # parsed once.
            texts = self._topics[run.topic, run.message_type]
            self._judged, self._passing = run, {each: SequenceSet() for each in texts}
            asked = [(self._filters[each].passes, found) for each, found in self._passing.items()]
            for _, record in readable_records(run):
                for passes, found in asked:
                    if passes(record):
                        found.add(record.sequence, record.sequence)
        return self._passing[text]


def _terms(rules: Iterable[TopicRule]) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted({(rule.name, rule.message_type, rule.filter) for rule in rules}))
