"""The commands of a client's session, as values. session.py decodes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raylay.services.messages.conflation_terms import ConflationTerms
from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.messages.rates import Rate
from raylay.services.protocol.frames import Header


@dataclass(slots=True)
class Logon:
    """The `logon` command."""

    client_name: str
    low: int
    command_id: str
    user_id: str
    password: str
    ack_conflation_ms: int
    takes_unused: bool = False
    """Whether the client continues with the sequences that an earlier life left, because it has
    numbered nothing yet."""


@dataclass(slots=True)
class Logoff:
    """The `logoff` command: the client ends in good order. `unused`: sequences that neither this
    client nor any other has used."""

    unused: Range
    command_id: str


@dataclass(slots=True)
class Publish:
    """The `p` command: one message. `command`: command of its record: publish, delete or delta
    publish."""

    topic: str
    message_type: str
    body: bytes
    sequence: int
    command_id: str
    acks: frozenset[str]
    expiration_s: int
    key: bytes
    correlation: bytes
    command: int = 1


@dataclass(slots=True)
class PublishBatchCommand:
    """The `pb` command: records as the client built them.

    Attributes:
        count: number of the records that the client announces.
        resent: name of the instance to which the client sent the records first; empty: the client
            does not know it. None: it sends them for the first time.
    """

    payload: bytes
    count: int
    resent: str | None = None


@dataclass(slots=True)
class Subscribe:
    """The `subscribe` command. `have`: messages that a durable subscriber already has.

    Attributes:
        filter: content filter.
        select: select list, as written.
        oof: whether the client wants notices of records that leave the focus.
        delta: whether the client wants only the changes of a record, and its key fields.
        no_empties: whether a delta omits fields that the record lost.
        no_sowkey: whether a delta omits the SOW key.
        replace: whether the subscription replaces the one with its id.
        max_backlog: number of messages of a queue that the client takes before it acknowledges one;
            0: not given.
        conflation: how changes are conflated; None: each is given.
    """

    subscription: str
    topic: str
    message_type: str
    bookmark: str
    command_id: str
    acks: frozenset[str]
    bookmark_not_found: str
    have: PublisherRanges | None
    persisted_ms: int
    fully_durable: bool
    non_regex_topic: bool
    live: bool = False
    paused: bool = False
    rate: Rate | None = None
    filter: str = ""
    select: str = ""
    oof: bool = False
    delta: bool = False
    no_empties: bool = False
    no_sowkey: bool = False
    replace: bool = False
    max_backlog: int = 0
    conflation: ConflationTerms | None = None


@dataclass(slots=True)
class SowCommand:
    """The `sow` command: a query.

    Attributes:
        query: id of the query.
        filter, select, order_by: the text of each as written.
        top_n: limit on the number of rows; None: no limit.
        skip_n: number of rows that are left out at the start.
        batch: number of records in one frame, at most.
        keys: keys of the wanted records; None: all.
        as_of: moment of the wanted state, in the form of a bookmark; empty: now.
        projection: fields of an aggregated query, as written; none: the query is not aggregated.
        grouping: fields by which an aggregated query groups records.
    """

    query: str
    topic: str
    message_type: str
    command_id: str
    acks: frozenset[str]
    non_regex_topic: bool = False
    filter: str = ""
    select: str = ""
    order_by: str = ""
    top_n: int | None = None
    skip_n: int = 0
    batch: int = 10
    keys: frozenset[bytes] | None = None
    as_of: str = ""
    projection: tuple[str, ...] = ()
    grouping: tuple[str, ...] = ()


@dataclass(slots=True)
class SowAndSubscribe:
    """The `sow_and_subscribe` command: a query and a subscription of the same moment, id, topic and
    filter."""

    sow: SowCommand
    subscribe: Subscribe


@dataclass(slots=True)
class Pause:
    """The `subscribe` command with `pause` and without a topic: pauses existing subscriptions."""

    subscriptions: tuple[str, ...]
    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Resume:
    """The `subscribe` command with `resume`: continues the subscriptions together."""

    subscriptions: tuple[str, ...]
    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Unsubscribe:
    """The `unsubscribe` command. `subscriptions` is None for all.

    Attributes:
        begun: of a queue: ranges of sequences, by publisher, of the messages that a handler was
            given and did not settle; None: the client did not say so.
        is_cancel: whether the client gives those back because its handler failed.
    """

    subscriptions: tuple[str, ...] | None
    command_id: str
    acks: frozenset[str]
    begun: Mapping[int, Sequence[Range]] | None = None
    is_cancel: bool = False


@dataclass(slots=True)
class Flush:
    """The `flush` command."""

    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Heartbeat:
    """The `heartbeat` command. `start_s` is None for a mere beat."""

    start_s: float | None
    command_id: str


@dataclass(slots=True)
class QueueCancel:
    """The `queue_cancel` command: messages of a queue are given back.

    Attributes:
        keys: ranges of sequences, by publisher.
        unseen: whether no handler was given the messages: they then count neither as delivered nor
            as given back.
    """

    topic: str
    message_type: str
    command_id: str
    keys: Mapping[int, Sequence[Range]]
    unseen: bool = False


@dataclass(slots=True)
class QueueAck:
    """The `queue_ack` command: acknowledges the messages of a queue that pass a filter.

    Attributes:
        how: `ack`, `expire` or `cancel`.
    """

    topic: str
    message_type: str
    command_id: str
    filter: str
    how: str


@dataclass(slots=True)
class QueueStatus:
    """The `queue_status` command. `topic`: the queue; empty: all queues."""

    topic: str
    message_type: str
    command_id: str


@dataclass(slots=True)
class ReaderCommand:
    """The `reader` command: the place of a named reader, for which segments are kept; without a
    name, a question for the readers.

    Attributes:
        have: messages that it does not need any more.
        expires_s: seconds after which it is forgotten when nothing is heard of it.
        release: whether it is forgotten now.
        asks: whether this is a question for the reader's place.
        adds: whether `have` is added to the place, which the reader then shares with others that
            read the same.
        message_type: message type that it reads; empty: any.
        filter: filter of what it reads; empty: none.
    """

    name: str
    topic: str
    command_id: str
    have: PublisherRanges
    expires_s: int
    release: bool = False
    asks: bool = False
    adds: bool = False
    message_type: str = ""
    filter: str = ""


@dataclass(slots=True)
class Ping:
    """The `ping` command."""

    command_id: str


@dataclass(slots=True)
class CommandRefused:
    """A command that cannot be performed; the session goes on."""

    header: Header
    command_id: str
    reason: str
    text: str


Command = (
    Logon
    | Publish
    | PublishBatchCommand
    | Subscribe
    | SowCommand
    | SowAndSubscribe
    | Pause
    | Resume
    | Unsubscribe
    | Flush
    | Heartbeat
    | Ping
    | QueueCancel
    | QueueAck
    | QueueStatus
    | ReaderCommand
    | Logoff
    | CommandRefused
)
