"""The commands of a client's session, as values. What reads them is in session.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.messages.rates import Rate
from raylay.services.protocol.frames import Header


@dataclass(slots=True)
class Logon:
    """`logon`."""

    client_name: str
    low: int
    command_id: str
    user_id: str
    password: str
    ack_conflation_ms: int
    takes_unused: bool = False
    """Whether it goes on with the sequences that an earlier life left; it has numbered nothing."""


@dataclass(slots=True)
class Logoff:
    """`logoff`: the client ends in good order. `unused`: the sequences that it has not used and
    that nobody else may have used."""

    unused: Range
    command_id: str


@dataclass(slots=True)
class Publish:
    """`p`: one message. `command`: of its record, publish, delete or delta publish."""

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
    """`pb`: records as the client built them.

    Attributes:
        count: how many it says they are.
        resent: it has sent them before, to the instance of this name first; empty: it does not
            know to which. None: it sends them for the first time.
    """

    payload: bytes
    count: int
    resent: str | None = None


@dataclass(slots=True)
class Subscribe:
    """`subscribe`. `have`: what a durable subscriber already has.

    Attributes:
        filter: by content.
        select: the select list, as it was written.
        oof: it wants to hear of what leaves its focus.
        delta: it wants what has changed of a record, and its key fields.
        no_empties: of what a record lost, a delta says nothing.
        no_sowkey: a delta carries no SOW key.
        replace: it takes the place of the one of its id.
        max_backlog: of a queue: messages that it takes before it acknowledges one; 0: not given.
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


@dataclass(slots=True)
class SowCommand:
    """`sow`: a query.

    Attributes:
        query: its id.
        filter, select, order_by: as they were written.
        top_n: so many records at most; None: all.
        skip_n: so many are left out before.
        batch: records in one frame, at most.
        keys: of these records; None: of all.
        as_of: when, as a bookmark says it; empty: now.
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


@dataclass(slots=True)
class SowAndSubscribe:
    """`sow_and_subscribe`: both at one moment, of the same id, topic and filter."""

    sow: SowCommand
    subscribe: Subscribe


@dataclass(slots=True)
class Pause:
    """`subscribe` with `pause` and no topic: of subscriptions that there are."""

    subscriptions: tuple[str, ...]
    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Resume:
    """`subscribe` with `resume`: all of them together."""

    subscriptions: tuple[str, ...]
    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Unsubscribe:
    """`unsubscribe`. `subscriptions` is None for all."""

    subscriptions: tuple[str, ...] | None
    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Flush:
    """`flush`."""

    command_id: str
    acks: frozenset[str]


@dataclass(slots=True)
class Heartbeat:
    """`heartbeat`. `start_s` is None for a mere beat."""

    start_s: float | None
    command_id: str


@dataclass(slots=True)
class QueueCancel:
    """`queue_cancel`: messages of a queue are given back.

    Attributes:
        keys: publisher to ranges of sequences.
        unseen: no handler was given them: they count neither as delivered nor as given back.
    """

    topic: str
    message_type: str
    command_id: str
    keys: Mapping[int, Sequence[Range]]
    unseen: bool = False


@dataclass(slots=True)
class QueueAck:
    """`queue_ack`: the messages of a queue that a filter fits are done.

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
    """`queue_status`. `topic`: the queue; empty: all of them."""

    topic: str
    message_type: str
    command_id: str


@dataclass(slots=True)
class Ping:
    """`ping`."""

    command_id: str


@dataclass(slots=True)
class CommandRefused:
    """A command that cannot be done; the session goes on."""

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
    | Logoff
    | CommandRefused
)
