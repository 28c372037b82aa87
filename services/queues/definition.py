"""The configuration of one queue: values, from Python, YAML or AMPSConfig (behaviour.md 3)."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from raylay.services.errors import ConfigurationError, RemoteProtocolError
from raylay.services.messages.bookmarks import Point, parse_point
from raylay.services.messages.topics import is_regex

DAY_US = 24 * 3600 * 1_000_000
TARGET_DEPTH_MIN = 1_000
KINDS = ("queue", "local", "group_local")
SEMANTICS = ("at-least-once", "at-most-once")
FAIRNESS = ("fast", "round-robin", "proportional")
EXPIRATION_MODELS = ("default", "queue", "latest", "earliest")
RECOVERY_POINTS = ("epoch", "now", "creation")


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """See the file's docstring.

    Attributes:
        name: of the queue; its acknowledgments and transfers are records on the topic of this name.
        message_type: its name, as the fabric defines it; of the messages and of those records.
        kind: `queue` (distributed: who took the publish owns it at first), `group_local`
            (distributed: `initial_owner` does), `local` (of this instance alone).
        underlying: the topic, or a regular expression over topics, whose messages it holds; empty:
            `name`.
        filter: which of those; empty: all.
        publish_target: the topic that a publish to the queue's name goes to; empty: `underlying`.
        at_most_once: a message leaves the queue before it is sent.
        lease_us: for how long a delivered message is a consumer's; 0: until it is gone.
        backlog_max: leases of this instance at one time; 0: as many as the subscriptions' are.
        subscription_backlog_max: of one subscription, which may ask for fewer.
        expiration_us: how old a message gets, from when it came to this instance; 0: any age.
        expiration_model: how that goes with the message's own: see `EXPIRATION_MODELS`.
        recovery_point: from where the queue is made of the log the first time: `epoch`, `now`,
            `creation`, a bookmark, or an instant (ISO 8601).
        fairness: which of several consumers that could take a message gets it.
        strict: an acknowledgment counts for what its client holds where it comes in.
        deliveries_max: a message that was delivered so often in vain expires; 0: never. Counted
            here and since the last start.
        cancels_max: a message expires when it is given back for this time; 0: never.
        dead_letters: the topic that gets a copy of each message that leaves the queue undone;
            empty: none does.
        priority: an identifier or an expression; higher ones go first; empty: none.
        barrier: an expression; a message that it fits waits for all before it, and what comes
            behind it waits for it; empty: none.
        file_backed: as documented; the queue's own store is always one of files.
        target_depth: messages that are looked at at one time; 0: all.
        deferred_ack_us: how long an acknowledgment is remembered whose message has not come.
        initial_owner: instance that all messages of a `group_local` queue begin at.
        domain: what tells a `group_local` queue from others of its name; empty: its group.

    Raises:
        ConfigurationError: two of these do not go together, or one is out of its range; says
            which queue and what to do.
    """

    name: str
    message_type: str
    kind: str = "queue"
    underlying: str = ""
    filter: str = ""
    publish_target: str = ""
    at_most_once: bool = False
    lease_us: int = 0
    backlog_max: int = 0
    subscription_backlog_max: int = 1
    expiration_us: int = 0
    expiration_model: str = "default"
    recovery_point: str = "epoch"
    fairness: str = ""
    strict: bool = False
    deliveries_max: int = 0
    cancels_max: int = 0
    priority: str = ""
    barrier: str = ""
    file_backed: bool = False
    target_depth: int = 0
    deferred_ack_us: int = DAY_US
    initial_owner: str = ""
    domain: str = ""
    dead_letters: str = ""

    def __post_init__(self) -> None:
        if not self.name or is_regex(self.name):
            raise self._wrong("its name is a topic of its own: give one that is no expression")
        for value, known, what in (
            (self.kind, KINDS, "kind"),
            (self.fairness, ("", *FAIRNESS), "fairness"),
            (self.expiration_model, EXPIRATION_MODELS, "expiration_model"),
        ):
            if value not in known:
                of = ", ".join(filter(None, known))
                raise self._wrong(f"{what} {value!r} is none of {of}")
        if self.subscription_backlog_max < 1:
            raise self._wrong("subscription_backlog_max is below 1: nobody would get a message")
        if self.priority and self.barrier:
            raise self._wrong("it has a priority and a barrier: give one of them")
        if self.target_depth and (self.priority or self.barrier):
            raise self._wrong("target_depth goes with neither a priority nor a barrier")
        if self.target_depth and self.target_depth < TARGET_DEPTH_MIN:
            raise self._wrong(f"target_depth is below {TARGET_DEPTH_MIN}")
        if is_regex(self.underlying) and not self.publish_target:
            raise self._wrong(
                f"its underlying topic {self.underlying} is a regular expression: say with "
                "publish_target where publishes to the queue go"
            )
        if self.at_most_once and self.fairness not in ("", "round-robin"):
            raise self._wrong("it is at-most-once: its fairness can only be round-robin")
        if (self.kind == "group_local") != bool(self.initial_owner):
            raise self._wrong(
                "its initial_owner is missing: name the instance that its messages begin at"
                if self.kind == "group_local"
                else "only a group_local queue has an initial_owner: leave it out"
            )
        if self.domain and self.kind != "group_local":
            raise self._wrong("only a group_local queue has a domain: leave it out")
        if is_regex(self.dead_letters):
            raise self._wrong(f"dead_letters {self.dead_letters} is an expression: name one topic")
        if self.dead_letters and self.dead_letters in (self.name, self.topic):
            raise self._wrong(
                f"its dead letters would be in the queue again: give dead_letters another topic "
                f"than {self.dead_letters}"
            )
        if self.recovery_point not in RECOVERY_POINTS:
            try:
                recovery_from(self.recovery_point)
            except ValueError as error:
                raise self._wrong(f"recovery_point: {error}") from None

    def _wrong(self, text: str) -> ConfigurationError:
        return ConfigurationError(f"queue {self.name or '?'}: {text}")

    @property
    def stored_as(self) -> str:
        """The name of the queue in files and status: two types may have queues of one name."""
        return f"{self.message_type}/{self.name}"

    @property
    def topic(self) -> str:
        return self.underlying or self.name

    @property
    def target(self) -> str:
        """The topic to which a publish to the queue's name goes."""
        return self.publish_target or self.topic

    @property
    def is_distributed(self) -> bool:
        return self.kind != "local"

    @property
    def fairness_model(self) -> str:
        """Model of fairness, as documented where none is given."""
        if self.fairness:
            return self.fairness
        return "round-robin" if self.at_most_once else "proportional"


def recovery_from(text: str) -> Point:
    """Returns the point from which messages are in the queue, when nothing is known of it.

    Args:
        text: one of `RECOVERY_POINTS`, a bookmark, or an instant (ISO 8601; UTC where it has no
            zone).

    Raises:
        ValueError: it is none of these.
    """
    if text in RECOVERY_POINTS:
        return Point("epoch" if text == "epoch" else "now")
    try:
        return parse_point(text)
    except RemoteProtocolError:
        pass
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"expected epoch, now, creation, a bookmark, or an instant such as "
            f"2026-01-02T03:04:05Z, got {text!r}"
        ) from None
    aware = found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found
    return Point("time", time_us=(aware - _EPOCH) // dt.timedelta(microseconds=1))


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
