"""The language of content filters, with installed functions and the message types of a
configuration.

Without filters, neither the language nor the parsers of message types are loaded: an instance and
each of its links are processes, and most have no filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from raylay.services.errors import ConfigurationError, MessageTypeError, RemoteProtocolError
from raylay.services.messages.topics import TopicRule
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.plugins.message_types import installed_types
from raylay.services.replication.link.content import FilterLanguage

if TYPE_CHECKING:
    from raylay.services.expressions.functions.registry import Functions
    from raylay.services.messages.types.registry import MessageTypes
    from raylay.services.sow.book import SowBook
    from raylay.services.sow.query.query_parser import QueryParser
    from raylay.services.subscriptions.conflated_subscriptions import ConflatedSubscriptions
    from raylay.services.subscriptions.filtered import FilteredSubscriptions
    from raylay.services.subscriptions.follow_terms import FollowTerms
    from raylay.services.subscriptions.matching import FilterOwner, TopicFilter
    from raylay.services.subscriptions.pages import PagedSubscriptions, PageOrder, TopicFinder
    from raylay.services.subscriptions.replay_conflation import ReplayConflation
    from raylay.services.subscriptions.replay_filters import ReplayFilters
    from raylay.services.subscriptions.sow_subscriptions import SowSubscriptions


def filter_language(
    rules: Iterable[TopicRule], definitions: Iterable[TypeDefinition] = ()
) -> FilterLanguage | None:
    """Returns the language of these rules' filters; None where no rule has a filter.

    Args:
        definitions: message types of the configuration.

    Raises:
        ConfigurationError: an installed message type or function, or a definition, cannot be used.
    """
    if not any(rule.filter for rule in rules):
        return None
    from raylay.services.plugins.functions import functions
    from raylay.services.replication.link.content_language import ExpressionLanguage

    try:
        return ExpressionLanguage(installed_types(definitions), functions())
    except MessageTypeError as error:
        raise ConfigurationError(str(error)) from None


def filtered_subscriptions(
    definitions: Iterable[TypeDefinition],
    instance: str,
    group: str,
    asker: Callable[[int], FilterOwner],
) -> FilteredSubscriptions:
    """Returns the index of the content filters of an instance's subscriptions.

    Args:
        definitions: message types of the configuration.
        instance, group: name of the instance and of its group.
        asker: returns the client of a session, with the budget of its filters.

    Raises:
        RemoteProtocolError: what is installed there, or a definition, cannot be used: the client
            is told, and the instance goes on.
    """
    from raylay.services.subscriptions.filtered import FilteredSubscriptions

    return FilteredSubscriptions(*_language(definitions, instance), instance, group, asker)


def replay_filters(
    definitions: Iterable[TypeDefinition], instance: str, group: str
) -> ReplayFilters:
    """Returns the content filters of an instance's bookmark subscriptions. Arguments and errors are
    those of `filtered_subscriptions`."""
    from raylay.services.subscriptions.replay_filters import ReplayFilters

    return ReplayFilters(*_language(definitions, instance), instance, group)


def following_subscriptions(
    definitions: Iterable[TypeDefinition],
    keeps: Callable[[bytes, bytes], bool],
    instance: str,
    group: str,
    asker: Callable[[int], FilterOwner],
) -> SowSubscriptions:
    """Returns the table of an instance's subscriptions that follow records.

    Args:
        keeps: returns whether a SOW topic keeps a topic, by its name and message type.
        asker: returns the client of a session, with the budget of its filters.

    Raises:
        RemoteProtocolError: as of `filtered_subscriptions`.
    """
    from raylay.services.subscriptions.sow_subscriptions import SowSubscriptions

    return SowSubscriptions(*_language(definitions, instance), keeps, instance, group, asker)


def paged_subscriptions(
    definitions: Iterable[TypeDefinition],
    topics: TopicFinder,
    instance: str,
    group: str,
    asker: Callable[[int], FilterOwner],
    full: Callable[[PageOrder], None],
    order_bytes_max: int,
) -> PagedSubscriptions:
    """Returns the table of an instance's paginated subscriptions.

    Args:
        topics: returns the topics with records that a subscription asks for.
        asker: returns the client of a session, with the budget of its filters.
        full: called once with an order that takes more memory than it may.
        order_bytes_max: limit on the memory of an order.

    Raises:
        RemoteProtocolError: as of `filtered_subscriptions`.
    """
    from raylay.services.subscriptions.pages import PagedSubscriptions

    language = _language(definitions, instance)
    return PagedSubscriptions(*language, topics, instance, group, asker, full, order_bytes_max)


def conflated_subscriptions(
    definitions: Iterable[TypeDefinition],
    book: SowBook,
    instance: str,
    group: str,
    *,
    now_us: Callable[[], int],
    wake: Callable[[int], None],
    takes: Callable[[int], bool],
    charge: Callable[[int, int], None],
    asker: Callable[[int], FilterOwner],
) -> ConflatedSubscriptions:
    """Returns the table of an instance's conflated subscriptions. Arguments are those of
    `ConflatedSubscriptions`, and of `following_subscriptions`.

    Args:
        book: the SOW topics and views.

    Raises:
        RemoteProtocolError: as of `filtered_subscriptions`.
    """
    from raylay.services.subscriptions.conflated_subscriptions import (
        ConflatedSources,
        ConflatedSubscriptions,
    )

    return ConflatedSubscriptions(
        *_language(definitions, instance),
        ConflatedSources(book.find, book.matching),
        instance,
        group,
        now_us,
        wake,
        takes,
        charge,
        asker,
    )


def conflated_replay(
    definitions: Iterable[TypeDefinition],
    book: SowBook | None,
    instance: str,
    wanted: TopicFilter,
    terms: FollowTerms,
    steady_us: Callable[[], int],
    resumes: bool,
) -> ReplayConflation:
    """Returns the conflation of a bookmark subscription.

    Args:
        book: the SOW topics and views; None: there are none.
        terms: its options.
        steady_us: returns the time by a clock that is never set back.
        resumes: whether the client has messages of the replay.

    Raises:
        RemoteProtocolError: as of `filtered_subscriptions`, and of `replay_conflation`.
    """
    from raylay.services.sow.book import SowBook
    from raylay.services.subscriptions.replay_conflation import replay_conflation

    book = book or SowBook()
    types, _ = _language(definitions, instance)
    return replay_conflation(types, book.find, book.matching, wanted, terms, steady_us, resumes)


def sow_query_parser(book: SowBook, instance: str, group: str, held_bytes_max: int) -> QueryParser:
    """Returns the parser of queries on the SOW topics of an instance.

    Args:
        held_bytes_max: limit on the bytes of one query's rows that wait to be ordered.

    Raises:
        RemoteProtocolError: as of `filtered_subscriptions`.
    """
    from raylay.services.sow.query.query_parser import QueryParser

    return QueryParser(book, _language((), instance)[1], instance, group, held_bytes_max)


def queue_language(
    definitions: Iterable[TypeDefinition], instance: str
) -> tuple[MessageTypes, Functions]:
    """Returns the message types and functions for the filters of a queue. Arguments and errors are
    those of `filtered_subscriptions`."""
    return _language(definitions, instance)


def _language(
    definitions: Iterable[TypeDefinition], instance: str
) -> tuple[MessageTypes, Functions]:
    from raylay.services.plugins.functions import functions

    try:
        return installed_types(definitions), functions()
    except (ConfigurationError, MessageTypeError) as error:
        raise RemoteProtocolError(f"{instance} cannot filter: {error}", "bad_filter") from None


def filter_problem(text: str, message_type: str, types: Iterable[TypeDefinition] = ()) -> str:
    """Returns what is wrong with a filter of a destination's topic; empty: nothing.

    Args:
        message_type: message type of the topic; `*`: any.
        types: message types that the configuration defines.
    """
    rule = TopicRule(".*", message_type, text)
    try:
        language = filter_language((rule,), types)
        if language is not None:
            language.compiled(text, "Filter")
    except ConfigurationError as error:
        return str(error)
    return _of_type(message_type, types)


def subscription_filter_problem(text: str) -> str:
    """Returns what is wrong with a filter of a client's reads and publishes; empty: nothing.

    Raises:
        ConfigurationError: an installed function cannot be used.
    """
    from raylay.services.expressions.expression import SUBSCRIPTION, filter_of
    from raylay.services.plugins.functions import functions

    try:
        filter_of(text, SUBSCRIPTION, functions(), None)
    except RemoteProtocolError as error:
        return str(error)
    return ""


def _of_type(message_type: str, definitions: Iterable[TypeDefinition]) -> str:
    from raylay.services.messages.types.abilities import Ability

    if message_type == "*":
        return ""
    try:
        installed_types(definitions)[message_type].require(Ability.FIELDS)
    except MessageTypeError as error:
        return f"Filter: {error}"
    return ""
