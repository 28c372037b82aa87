"""The options of subscriptions that follow records rather than messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from raylay.services.messages.conflation_terms import ConflationTerms


class FollowKind(Enum):
    """The kinds of subscriptions that follow records. Each has a table of its own."""

    RECORDS = "records"
    """Each change as it comes (sow_subscriptions.py)."""
    CONFLATED = "conflated"
    """The last change of each key in an interval."""
    PAGES = "pages"
    """The rows of a window into the ordered records."""


class PageTerms(NamedTuple):
    """The window of a paginated subscription.

    Attributes:
        skip: number of rows before the window.
        most: largest number of rows in it, at least 1.
        order_by: order of the rows, as written; empty: by SOW key.
    """

    skip: int
    most: int
    order_by: str = ""


class AggregationTerms(NamedTuple):
    """The aggregation that a query or a subscription asks for.

    Attributes:
        topic, message_type: the topic whose records are aggregated.
        filter: filter of these records, as written; empty: all count.
        projection: `expression AS /field` of each field.
        grouping: identifiers of the grouping fields; none: each record is a group.
    """

    topic: str
    message_type: str
    filter: str
    projection: tuple[str, ...]
    grouping: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Returns the options as a client would write them."""
        grouping = f",grouping=[{','.join(self.grouping)}]" if self.grouping else ""
        return f"projection=[{','.join(self.projection)}]{grouping}"


@dataclass(frozen=True, slots=True)
class FollowTerms:
    """The options of one subscription.

    Attributes:
        select: select list; empty: all fields.
        oof: whether the client is told of records that leave its focus.
        delta: whether the client gets only the changes of a record in its focus.
        no_empties: whether a delta omits fields that the record lost.
        no_sowkey: whether a delta omits the SOW key.
        keys: SOW keys of the wanted records; None: all records.
        began_with_rows: whether the client was given the records in its focus at the start.
        keeps_back: whether the client may only see records that its filter passes: of a record that
            left the focus it gets the earlier content.
        conflation: how changes are conflated; None: each is given.
        page: the window of a paginated subscription; None: it has all rows.
        aggregation: the aggregation whose groups it follows; None: it follows records.
    """

    select: str = ""
    oof: bool = False
    delta: bool = False
    no_empties: bool = False
    no_sowkey: bool = False
    keys: frozenset[bytes] | None = None
    began_with_rows: bool = False
    keeps_back: bool = False
    conflation: ConflationTerms | None = None
    page: PageTerms | None = None
    aggregation: AggregationTerms | None = None

    @property
    def kind(self) -> FollowKind:
        """Returns the kind of the subscription."""
        if self.page is not None:
            return FollowKind.PAGES
        return FollowKind.RECORDS if self.conflation is None else FollowKind.CONFLATED

    @property
    def kind_words(self) -> str:
        """Returns the kinds of the subscription for people, such as `aggregated, paginated`; empty:
        it follows records as they are."""
        kinds = (
            ("aggregated", self.aggregation),
            ("paginated", self.page),
            ("conflated", self.conflation),
        )
        return ", ".join(name for name, asked in kinds if asked is not None)

    @property
    def text(self) -> str:
        """Returns the options as a client would write them."""
        names = ("oof", "delta", "no_empties", "no_sowkey")
        given = [name for name in names if getattr(self, name)]
        if self.select:
            given.append(f"select=[{self.select}]")
        if self.conflation is not None:
            given.append(self.conflation.text)
        if self.page is not None:
            given.append(f"top_n={self.page.most},skip_n={self.page.skip}")
        if self.aggregation is not None:
            given.append(self.aggregation.text)
        return ",".join(given)
