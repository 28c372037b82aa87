"""Queues of a fabric: how they are declared (behaviour.md 3.1, 3.2)."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from raylay.services.configuration.fields import MessageType, Milliseconds, Section
from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import RESERVED, is_regex
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.membership.validation import QueueTerms as QueueTerms

NAME_BYTES_MAX = 1024
DAY_MS = 24 * 3600 * 1000


def _queue_name(value: str) -> str:
    if not value or len(value.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"expected a queue's name of 1 to {NAME_BYTES_MAX:,} bytes")
    if is_regex(value):
        raise ValueError(
            f"expected a name, got the expression {value!r}: give it as underlying, beside a name"
        )
    if value.startswith(RESERVED):
        raise ValueError(f"topics that begin with {RESERVED} are Raylay's own: take another name")
    return value


def _recovery_point(value: Any) -> Any:
    # YAML reads an instant without quotes as one.
    return value.isoformat() if isinstance(value, dt.date) else value


QueueName = Annotated[str, AfterValidator(_queue_name)]
Above0 = Annotated[int, Field(gt=0)]


class QueueSettings(Section):
    """A queue: each message of a topic goes to one of many consumers (docs/queues.md)."""

    name: QueueName
    message_type: MessageType
    kind: Literal["queue", "local", "group_local"] = "queue"
    """`queue`: of all instances that have it; `local`: of this instance alone; `group_local`: of a
    group, or domain, and all messages begin at one of its instances."""
    underlying: str = ""
    """The topic whose messages it holds, or a regular expression over topics. Empty: `name`."""
    filter: str = ""
    publish_target: str = ""
    """Topic to which publishes to `name` go. Empty: to `underlying`."""
    semantics: Literal["at-least-once", "at-most-once"] = "at-least-once"
    lease_ms: Annotated[Milliseconds, Field(gt=0)] | None = Field(default=None, alias="lease")
    """A message that is not acknowledged for so long goes to another consumer. None: when its
    consumer is gone."""
    backlog_max: Above0 | None = None
    """Messages under way of all consumers of one instance. None: as many as they ask for."""
    subscription_backlog_max: Above0 = 1
    expiration_ms: Annotated[Milliseconds, Field(gt=0)] | None = Field(
        default=None, alias="expiration"
    )
    expiration_model: Literal["default", "queue", "latest", "earliest"] = "default"
    recovery_point: Annotated[str, BeforeValidator(_recovery_point)] = "epoch"
    """Point in the log from which the queue is made the first time: `epoch`, `now`, `creation`, a
    bookmark, or an instant."""
    fairness: Literal["fast", "round-robin", "proportional"] | None = None
    leasing: Literal["sublet", "strict"] = "sublet"
    """`strict`: only who holds a message acknowledges it, where it was delivered."""
    deliveries_max: Above0 | None = None
    cancels_max: Above0 | None = None
    priority: str = ""
    barrier: str = ""
    file_backed: bool = False
    target_depth: Annotated[int, Field(ge=1000)] | None = None
    deferred_ack_ms: Annotated[Milliseconds, Field(gt=0)] = Field(
        default=DAY_MS, alias="deferred_ack"
    )
    """Time for which an acknowledgment is remembered whose message has not come."""
    initial_owner: str = ""
    domain: str = ""
    dead_letters: str = ""
    """The topic that gets a copy of each message that leaves the queue undone. Empty: none does."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.definition()
        return self

    def definition(self) -> QueueDefinition:
        """Returns the definition that an instance runs.

        Raises:
            ValueError: two of its values do not go together.
        """
        try:
            return QueueDefinition(
                name=self.name,
                message_type=self.message_type,
                kind=self.kind,
                underlying=self.underlying,
                filter=self.filter,
                publish_target=self.publish_target,
                at_most_once=self.semantics == "at-most-once",
                lease_us=(self.lease_ms or 0) * 1000,
                backlog_max=self.backlog_max or 0,
                subscription_backlog_max=self.subscription_backlog_max,
                expiration_us=(self.expiration_ms or 0) * 1000,
                expiration_model=self.expiration_model,
                recovery_point=self.recovery_point,
                fairness=self.fairness or "",
                strict=self.leasing == "strict",
                deliveries_max=self.deliveries_max or 0,
                cancels_max=self.cancels_max or 0,
                priority=self.priority,
                barrier=self.barrier,
                file_backed=self.file_backed,
                target_depth=self.target_depth or 0,
                deferred_ack_us=self.deferred_ack_ms * 1000,
                initial_owner=self.initial_owner,
                domain=self.domain,
                dead_letters=self.dead_letters,
            )
        except ConfigurationError as error:
            raise ValueError(str(error).partition(": ")[2]) from None


def terms_of(queue: QueueDefinition) -> QueueTerms:
    """Returns the terms that are compared when a link connects."""
    return QueueTerms(
        queue.name,
        queue.message_type,
        queue.kind,
        queue.underlying,
        queue.filter,
        queue.domain,
        queue.initial_owner,
    )
