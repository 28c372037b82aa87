"""The members of a replay (replay.py): bookmark subscriptions of one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from raylay.services.messages.records import Run
from raylay.services.protocol.client.codec import Codec
from raylay.services.protocol.client.commands import Subscribe
from raylay.services.security.retained_bytes import RetainedClaim
from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.delivery import DeliverySink
from raylay.services.subscriptions.matching import LiveSubscription, TopicFilter
from raylay.services.subscriptions.replay_group import ReplayGroup, ReplayTerms

PERSISTED_MS_DEFAULT = 100


class ReplayClient(Protocol):
    """The client of bookmark subscriptions (`ClientConnection`)."""

    number: int
    client_name: str
    codec: Codec
    """Encoder of the frames for the client."""
    sink: DeliverySink
    """Sink of the client's deliveries."""
    is_open: bool
    subscriptions: dict[str, LiveSubscription | BookmarkSubscription]
    resolving: dict[str, Subscribe]
    """Subscribe commands whose subscriptions do not run yet. After an unsubscribe there may be
    another one of the same id."""

    @property
    def takes_replays(self) -> bool:
        """Returns whether more of a replay may be sent now."""

    def keeps_back(self, wanted: TopicFilter) -> bool:
        """Returns whether the client may read only some messages of a topic."""

    def began(
        self, subscription: LiveSubscription | BookmarkSubscription, *, replaces: bool = False
    ) -> None:
        """Notes that a subscription has begun, in place of another of its id where it replaces
        one."""

    def stopped(self, subscription: LiveSubscription | BookmarkSubscription, reason: str) -> None:
        """Notes that the instance is about to end a subscription."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes sent to the client that its socket has not taken."""

    def charge(self, difference_bytes: int) -> None:
        """Changes the bytes of pending messages that the client is charged. May end it, later."""

    def send(self, frame: bytes) -> None:
        """Sends a frame at the end of the turn."""

    def write_collected(self) -> None:
        """Writes the frames sent in this turn now."""

    def end(self, reason: str, text: str) -> None:
        """Ends the session and tells the client why."""


class ReplayMember:
    """A bookmark subscription, with the client and the acks that it has asked for."""

    __slots__ = (
        "acks",
        "claim",
        "command_id",
        "conflation",
        "connection",
        "is_behind",
        "is_live",
        "is_paused",
        "persisted_due_s",
        "persisted_s",
        "ready",
        "replay",
        "subscription",
        "terms",
    )

    def __init__(
        self,
        connection: ReplayClient,
        subscription: BookmarkSubscription,
        command: Subscribe,
        ready: Callable[[], None] | None = None,
        claim: RetainedClaim | None = None,
    ) -> None:
        self.connection = connection
        self.subscription = subscription
        self.acks = command.acks
        self.command_id = command.command_id
        self.terms = ReplayTerms(command.bookmark, command.rate, command.fully_durable)
        self.conflation = command.conflation
        """Options of its conflation; None: it is not conflated."""
        self.is_live = command.live
        self.is_paused = command.paused
        self.is_behind = ready is not None
        """Whether the rows of a query must be sent before its first delivery."""
        self.claim = claim
        """Claim on memory for the ranges that its command keeps."""
        self.ready = ready
        """Callback, in place of an ack to the client, for when the start is known or never will
        be."""
        self.persisted_s = (command.persisted_ms or PERSISTED_MS_DEFAULT) / 1000
        self.persisted_due_s = 0.0
        self.replay: Replay


class Replay:
    """One reading of the log, for one member or several of one connection."""

    __slots__ = (
        "connection",
        "is_aside",
        "is_queued",
        "members",
        "plan",
        "read",
        "read_bytes",
        "removed",
        "timer",
    )

    def __init__(self, members: list[ReplayMember], terms: ReplayTerms, now_us: int) -> None:
        self.connection = members[0].connection
        self.members = {member.subscription: member for member in members}
        self.plan = ReplayGroup(self.members, terms, now_us)
        self.is_queued = False
        self.is_aside = False
        self.removed = False
        self.timer: asyncio.TimerHandle | None = None
        """Timer that runs while the rate holds the replay back; None: none runs."""
        self.read: list[Run] = []
        """Runs that were read for the replay and not delivered yet, because of its rate or the end
        of the turn."""
        self.read_bytes = 0
        """Size of `read` in bytes, as the pump counts it."""
        for member in members:
            member.replay = self

    @property
    def is_paused(self) -> bool:
        """Returns whether the replay waits: a paused subscription, or one behind the rows of a
        query, has a replay of its own."""
        return any(member.is_paused or member.is_behind for member in self.members.values())

    @property
    def is_live(self) -> bool:
        """Returns whether the replay is given messages that are not on disk yet."""
        return any(member.is_live for member in self.members.values())

    @property
    def unprepared(self) -> ReplayMember | None:
        """A member whose start is not known yet; None: all starts are known."""
        for subscription, member in self.members.items():
            if not subscription.prepared:
                return member
        return None

    def end(self) -> None:
        """Ends the replay and its timer."""
        self.removed = True
        self.read = []
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
