"""Content filters of destinations: which records of a run pass (design.md 4, "Routed").

What else decides where a run goes is equal for all its records; a filter looks at each of them. It
is a pure function of the record, so whoever has the record comes to the same verdict: the instance
when it is committed, and the link when it reads it. Who has to know later where something goes
that waits keeps the verdict (`Route.passed`), not the record.

Filters are written in a language that is behind `FilterLanguage` (content_language.py; the
simulator has a shorter one). Where none is given they do not run: every record passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import Record, Run
from raylay.services.messages.topics import TOPIC_CACHE_MAX, TopicKey, TopicMatcher, TopicRule


class RecordFilter(Protocol):
    """A predicate over records: nothing else may decide, so that every instance agrees."""

    def passes(self, record: Record) -> bool:
        """Returns whether the record goes on."""


class FilterLanguage(Protocol):
    """The language of a filter."""

    def compiled(self, text: str, where: str) -> RecordFilter:
        """The filter that is written so.

        Raises:
            ConfigurationError: naming the text, the place and what is wrong.
        """


class FilteredTopics(dict[TopicKey, tuple[str, ...]]):
    """The filters of which one must pass, for each topic and type that some of the rules take; none
    where all of it passes. `filtered[topic, message_type]` is never missing.

    Args:
        rules: a topic that several of them take goes by all of them: one without a filter is enough
            for all of it.
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

    Invariant: what was judged last is what `_passing` tells of.
    Owner: the instance's machine, or a link's. Lifecycle: as long as that.

    Args:
        rules: of all the destinations; those without a filter count for nothing.
        language: None: filters do not run.

    Attributes:
        rules: (topic, message type, filter) of all filters that run, in order.
        carried: the same of all topics, those without a filter included; empty where no filter
            runs. What a link left out holds for these: a rule without a filter that joins the
            others lets everything of its topics through.

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
        """Sequences of the run that was judged last that pass, by filter."""

    def __bool__(self) -> bool:
        return bool(self.rules)

    def looks_at(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether a filter must see the records of this topic and type."""
        return bool(self.rules) and bool(self._topics[topic, message_type])

    def passing(self, run: Run, texts: Iterable[str], ranges: list[Range]) -> list[Range]:
        """Returns the part of the ranges that passes one of these filters: the very same list where
        all of it does.

        Args:
            run: with its records, and it has all of the ranges.
        """
        passed = SequenceSet()
        for text in texts:
            passed.update(self._of(run, text))
        found = [piece for a, b in ranges for piece in passed.within(a, b)]
        return ranges if found == ranges else found

    def verdicts(self, run: Run, ranges: list[Range]) -> list[tuple[tuple[str, ...], list[Range]]]:
        """The ranges, apart by which filters they pass."""
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
            # All filters that look at it, record after record: each is parsed once for all of them.
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
