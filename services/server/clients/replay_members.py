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
    """The client of these subscriptions (`ClientConnection`)."""

    number: int
    client_name: str
    codec: Codec
    """Writes what it is told."""
    sink: DeliverySink
    """Sink of its deliveries."""
    is_open: bool
    subscriptions: dict[str, LiveSubscription | BookmarkSubscription]
    resolving: dict[str, Subscribe]
    """Subscriptions that do not run yet, as they were asked for: after an unsubscribe there may be
    another of the same id."""

    @property
    def takes_replays(self) -> bool:
        """Returns whether more of a replay is to be sent now."""

    def keeps_back(self, wanted: TopicFilter) -> bool:
        """Returns whether only some messages of a topic may be read."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes that it was sent and its socket has not taken."""

    def send(self, frame: bytes) -> None:
        """Sends a frame at the end of the turn."""

    def write_collected(self) -> None:
        """Writes what was sent in this turn now."""

    def end(self, reason: str, text: str) -> None:
        """Ends the session and says why."""


class ReplayMember:
    """A subscription, and who is told of it."""

    __slots__ = (
        "acks",
        "claim",
        "command_id",
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
        self.is_live = command.live
        self.is_paused = command.paused
        self.is_behind = ready is not None
        """Whether rows of a query come before anything of it."""
        self.claim = claim
        """Claim on the bytes that its command keeps."""
        self.ready = ready
        """Is told, instead of the client, when its start is known, or never will be."""
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
        """Runs while its rate holds it back."""
        self.read: list[Run] = []
        """Runs that were read for it and not taken: its rate did not let them out, or the turn was
        over."""
        self.read_bytes = 0
        """Bytes of `read`, as the pump counts them."""
        for member in members:
            member.replay = self

    @property
    def is_paused(self) -> bool:
        """Returns whether it is: in pause a subscription is a replay of its own."""
        return any(member.is_paused or member.is_behind for member in self.members.values())

    @property
    def is_live(self) -> bool:
        """Returns whether it is given what is not on disk yet."""
        return any(member.is_live for member in self.members.values())

    @property
    def unprepared(self) -> ReplayMember | None:
        """A member whose start is not known yet."""
        for subscription, member in self.members.items():
            if not subscription.prepared:
                return member
        return None

    def end(self) -> None:
        """Ends the replay: it is given no turn any more."""
        self.removed = True
        self.read = []
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
