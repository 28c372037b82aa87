"""Parser of a query's options, so that an error is reported before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from raylay.services.errors import RemoteProtocolError
from raylay.services.expressions.budgets import FilterBudget
from raylay.services.expressions.expression import Expression, ExpressionUse, filter_of
from raylay.services.expressions.functions.registry import EvalContext, Functions
from raylay.services.sow.book import QueryWish, SowBook
from raylay.services.sow.query.as_of import AsOf
from raylay.services.sow.query.ordering import SortTerm, read_order
from raylay.services.sow.query.planning import FOLLOWING, QUERY, keys_to_look_at
from raylay.services.sow.query.projection import Projection, check_select
from raylay.services.sow.query.query_execution import (
    HELD_BYTES_MAX,
    QueryExecution,
    QueryPart,
    QueryTerms,
    RecordSource,
    ReplacedFocus,
    VersionSource,
)
from raylay.services.sow.topic import SowTopic


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """The options of a query, unparsed.

    Attributes:
        wanted: topics of the query.
        filter, select, order_by: the text of each as written; empty: none.
        top: limit on the number of rows; None: no limit.
        skip: number of rows that are left out at the start.
        batch: number of rows in a frame, at most.
        keys: keys of the wanted records; None: all.
        as_of_us: moment of the wanted state; 0: the present.
        follows: whether a subscription begins with the query.
        client: properties of the querying client that filters can read; None: none.
        budget: pays for the filter's work; None: the work is not limited.
        of: the only topic that is queried, whatever `wanted` says; None: those of `wanted`.
    """

    wanted: QueryWish
    filter: str = ""
    select: str = ""
    order_by: str = ""
    top: int | None = None
    skip: int = 0
    batch: int = 10
    keys: frozenset[bytes] | None = None
    as_of_us: int = 0
    follows: bool = False
    client: EvalContext | None = None
    budget: FilterBudget | None = None
    of: SowTopic | None = None


class ReplacedQuery(NamedTuple):
    """The subscription that a query replaces: its filter as written, its keys, and whether it began
    with a query, too."""

    filter: str
    keys: frozenset[bytes] | None
    had_rows: bool


class PageRows(NamedTuple):
    """The rows of a paginated subscription when it begins.

    Attributes:
        topic: the topic of the records.
        keys: keys of the rows in the window.
        matches: number of records that pass the filter, in the window or not.
        before: keys of the rows that the client holds, of the window that this one replaces.
    """

    topic: SowTopic
    keys: Collection[bytes]
    matches: int
    before: Collection[bytes] = ()


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query whose options were accepted, in parsed form."""

    question: QueryRequest
    filter: Expression | None
    order: tuple[SortTerm, ...]


class QueryParser:
    """Parses queries on the SOW topics of an instance.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        book: the SOW topics.
        functions: the functions that filters may use.
        instance, group: name of the instance and of its group.
        held_bytes_max: limit on the bytes of one query's rows that wait to be ordered.
    """

    def __init__(
        self,
        book: SowBook,
        functions: Functions,
        instance: str,
        group: str,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._book = book
        self._functions = functions
        self._instance = instance
        self._group = group
        self._held_bytes_max = held_bytes_max

    def accept(self, question: QueryRequest) -> ParsedQuery:
        """Parses a query.

        Raises:
            RemoteProtocolError: it is refused: `no_sow`, `bad_filter`, `bad_order_by`,
                `bad_select`, `not_supported` for messages of one of the topics, or `view_full`.
        """
        topics = self._topics(question)
        if not topics and not question.follows:
            name = question.wanted.topic.decode("utf-8", "replace")
            raise RemoteProtocolError(
                f"no SOW topic of {self._instance} is {name[:200]!r}: only what has a state of the "
                "world can be asked for it; declare it in the configuration, under sow_topics",
                "no_sow",
            )
        use = FOLLOWING if question.follows else QUERY
        filter_ = self._filter(question.filter, use, question)
        order = read_order(question.order_by) if question.order_by else ()
        if question.select:
            check_select(question.select)
            for topic in topics:
                Projection(question.select, topic.type)
        return ParsedQuery(question, filter_, order)

    def _topics(self, question: QueryRequest) -> tuple[SowTopic, ...]:
        """Returns the topics of a query.

        Raises:
            RemoteProtocolError: one is out of service: `view_full`.
        """
        of = question.of
        topics = self._book.matching(question.wanted) if of is None else (of,)
        for each in topics:
            if each.refusal:
                raise RemoteProtocolError(each.refusal, "view_full")
        return topics

    def _filter(self, text: str, use: ExpressionUse, asked: QueryRequest) -> Expression | None:
        if not text:
            return None
        return filter_of(text, use, self._functions, asked.client, asked.budget)

    def granularities_us(self, wanted: QueryWish) -> tuple[int, ...] | None:
        """Returns the granularities of the topics' histories; None: they keep none, and only the
        present can be queried. Topics without SOW have no rows, so they do not count.

        Raises:
            RemoteProtocolError: some keep one and some do not: `not_supported`.
        """
        topics = self._book.matching(wanted)
        rules = [topic.state.rules for topic in topics]
        if all(rule.window_us for rule in rules):
            return tuple(rule.granularity_us for rule in rules)
        if not any(rule.window_us for rule in rules):
            return None
        names = [topic.name.decode("utf-8", "replace") for topic in topics]
        with_, without = (
            [name for name, each in zip(names, rules, strict=True) if bool(each.window_us) == has]
            for has in (True, False)
        )
        raise RemoteProtocolError(
            f"SOW topic {with_[0][:200]!r} keeps a history and {without[0][:200]!r} keeps none: "
            "their rows would be of two moments; subscribe to them apart",
            "not_supported",
        )

    def begin(
        self,
        asked: ParsedQuery,
        now_us: int,
        instead_of: ReplacedQuery | None = None,
        past: AsOf | None = None,
    ) -> QueryExecution:
        """Starts a query.

        Args:
            now_us: time by the wall clock.
            instead_of: the subscription that this one replaces: only records that are new in the
                focus become rows, and those that left it are told apart (`left`). None: it replaces
                none.
            past: the wanted past state, for topics with a history; None: as the query says.

        Raises:
            RemoteProtocolError: a topic went out of service since `accept`: `view_full`.
        """
        question = asked.question
        topics = self._topics(question)
        replaced = None
        if instead_of is not None:
            before = self._filter(instead_of.filter, FOLLOWING, question)
            replaced = ReplacedFocus(before, instead_of.keys, instead_of.had_rows)
        terms = QueryTerms(
            asked.filter,
            question.select,
            asked.order,
            question.top,
            question.skip,
            question.batch,
            self._instance,
            self._group,
            now_us,
            self._held_bytes_max,
            question.keys,
            replaced,
            question.budget,
        )
        if past is None and question.as_of_us:
            past = AsOf(None, question.as_of_us)
        return QueryExecution([self._part(topic, asked, terms, past) for topic in topics], terms)

    def begin_page(
        self,
        asked: ParsedQuery,
        now_us: int,
        page: PageRows,
    ) -> QueryExecution:
        """Starts the query of a paginated subscription, whose rows are known by their keys.

        Args:
            now_us: time by the wall clock.
        """
        question, topic = asked.question, page.topic
        keys, before = frozenset(page.keys), frozenset(page.before)
        terms = QueryTerms(
            select=question.select,
            order=asked.order,
            batch=question.batch,
            instance=self._instance,
            group=self._group,
            now_us=now_us,
            held_bytes_max=self._held_bytes_max,
            keys=keys,
            replaced=ReplacedFocus(keys=before) if before else None,
            counted=(page.matches, topic.state.count),
        )
        source = topic.state.query_keys(keys | before)
        name = topic.shown_as or topic.name
        return QueryExecution([QueryPart(name, topic.type, source)], terms)

    def _part(
        self, topic: SowTopic, asked: ParsedQuery, terms: QueryTerms, past: AsOf | None
    ) -> QueryPart:
        question, state = asked.question, topic.state
        wanted = question.wanted
        use = FOLLOWING if question.follows else QUERY
        wants: Callable[[bytes], bool] | None = None
        limit_of: Callable[[bytes], Expression | None] | None = None
        if topic.definition.pattern and wanted.topic == topic.name:
            # All records of the physical topic, except those that may not be read.
            wants, rows = wanted.readable, wanted.rows
            if rows is not None:
                limit_of = partial(rows.of, use=use)
        elif topic.definition.pattern or not wanted.matches(topic.name, topic.type_name):
            wants = partial(wanted.matches, message_type=topic.type_name)
            limit_of = partial(wanted.limits, message_type=topic.type_name, use=use)
        expires_now_us = terms.now_us if state.rules.expires and not question.follows else 0
        source: RecordSource
        count = None
        if past is not None and state.rules.window_us:
            source = VersionSource(state.versions(past, terms.now_us), past, question.keys)
        else:
            # The index of the new filter does not find records that only the replaced filter
            # matched.
            filter_, of_keys = asked.filter, question.keys
            if terms.replaced is not None:
                filter_, before = None, terms.replaced.keys
                of_keys = None if before is None or of_keys is None else before | of_keys
            keys = keys_to_look_at(filter_, of_keys, topic.indexes)
            if keys is not None:
                source = state.query_keys(keys)
            else:
                source = state.query()
                if asked.filter is None and wants is None and not expires_now_us:
                    count = state.count
        name = topic.shown_as or topic.name
        return QueryPart(name, topic.type, source, count, wants, expires_now_us, limit_of)
