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
        name: the name of the queue. Its acknowledgments and transfers are records on the topic of
            this name.
        message_type: the name of the message type, in the fabric's definition, of the queue's
            messages and records.
        kind: `queue` (distributed; the instance that takes a publish owns it at first),
            `group_local` (distributed; `initial_owner` owns it at first), or `local` (of this
            instance alone).
        underlying: the topic, or a regular expression over topics, whose messages the queue holds;
            empty: `name`.
        filter: the content filter that its messages must pass; empty: all messages pass.
        publish_target: the topic that a publish to the queue's name goes to; empty: `underlying`.
        at_most_once: whether a message leaves the queue before it is sent.
        lease_us: the length of a lease, in microseconds; 0: a lease lasts until the message is
            gone.
        backlog_max: the number of leases that this instance gives at one time; 0: as many as its
            subscriptions take together.
        subscription_backlog_max: the number of leases of one subscription at one time. A
            subscription may ask for fewer.
        expiration_us: the lifetime of a message from when it comes to this instance, in
            microseconds; 0: no limit.
        expiration_model: the rule that combines this lifetime with the message's own: one of
            `EXPIRATION_MODELS`.
        recovery_point: the position in the log from which the queue is built the first time:
            `epoch`, `now`, `creation`, a bookmark, or an instant (ISO 8601).
        fairness: the model that chooses among several consumers that could take a message: one of
            `FAIRNESS`; empty: the default (`fairness_model`).
        strict: whether an acknowledgment counts only for messages that its client holds at the
            instance where it comes in.
        deliveries_max: the number of deliveries in vain after which a message expires; 0: no limit.
            Deliveries are counted at each instance, since its last start.
        cancels_max: the number of times after which a message that is given back expires; 0: no
            limit.
        dead_letters: the topic that gets a copy of each message that leaves the queue undone;
            empty: no copy is made.
        priority: an identifier or expression whose value is a message's priority. The highest goes
            first; empty: no priorities.
        barrier: an expression that makes each message it fits a barrier, which waits for all before
            it and holds back all behind it; empty: no barriers.
        file_backed: the documented setting, which changes nothing: the queue's own store is always
            a file.
        target_depth: the number of messages that are considered for delivery at one time; 0: all.
        deferred_ack_us: the time for which an acknowledgment is remembered whose message has not
            come, in microseconds.
        initial_owner: the instance that owns all messages of a `group_local` queue at first.
        domain: the name that distinguishes a `group_local` queue from others of the same name;
            empty: its group.

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
        """The name of the queue in files and status, with the message type: queues of two types may
        share a name."""
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
        """The fairness model; where none is configured, the documented default."""
        if self.fairness:
            return self.fairness
        return "round-robin" if self.at_most_once else "proportional"


def recovery_from(text: str) -> Point:
    """Returns the position in the log from which a new queue is built.

    Args:
        text: one of `RECOVERY_POINTS`, a bookmark, or an instant (ISO 8601; UTC where it has no
            zone).

    Raises:
        ValueError: the text is none of these.
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
