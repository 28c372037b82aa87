"""Queues of a fabric: how they are declared (behaviour.md 3.1, 3.2)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from raylay.services.configuration.fields import (
    MessageType,
    RecoveryPoint,
    Section,
    definition_name,
)
from raylay.services.errors import ConfigurationError
from raylay.services.messages.units import Milliseconds
from raylay.services.queues.definition import QueueDefinition

DAY_MS = 24 * 3600 * 1000


QueueName = Annotated[str, AfterValidator(definition_name("underlying"))]
Above0 = Annotated[int, Field(gt=0)]


class QueueSettings(Section):
    """A queue: each message of a topic goes to one of many consumers (docs/queues.md)."""

    name: QueueName
    message_type: MessageType
    kind: Literal["queue", "local", "group_local"] = "queue"
    """Kind of the queue. `queue`: shared by all instances that have it; `local`: of this instance
    alone; `group_local`: shared by the instances of a group, or domain, and all messages begin at
    one of them."""
    underlying: str = ""
    """Topic whose messages the queue holds, or a regular expression over topics. Empty: `name`."""
    filter: str = ""
    publish_target: str = ""
    """Topic to which publishes to `name` go. Empty: to `underlying`."""
    semantics: Literal["at-least-once", "at-most-once"] = "at-least-once"
    lease_ms: Annotated[Milliseconds, Field(gt=0)] | None = Field(default=None, alias="lease")
    """Milliseconds after which a message that is not acknowledged goes to another consumer. None:
    it goes to another consumer when its own is gone."""
    backlog_max: Above0 | None = None
    """Most messages that all consumers of one instance may hold at once. None: as many as they ask
    for."""
    subscription_backlog_max: Above0 = 1
    expiration_ms: Annotated[Milliseconds, Field(gt=0)] | None = Field(
        default=None, alias="expiration"
    )
    expiration_model: Literal["default", "queue", "latest", "earliest"] = "default"
    recovery_point: RecoveryPoint = "epoch"
    """Point in the log from which the queue is made the first time: `epoch`, `now`, `creation`, a
    bookmark, or an instant."""
    fairness: Literal["fast", "round-robin", "proportional"] | None = None
    leasing: Literal["sublet", "strict"] = "sublet"
    """`strict`: only the client that holds a message may acknowledge it, at the instance that
    delivered it."""
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
    """Topic that gets a copy of each message that leaves the queue undone. Empty: no topic does."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.definition()
        return self

    def definition(self) -> QueueDefinition:
        """Returns the definition that an instance runs.

        Raises:
            ValueError: two of its values do not go together.
        """
        values: dict[str, Any] = {name: value for name, value in self if value is not None}
        at_most_once = values.pop("semantics") == "at-most-once"
        strict = values.pop("leasing") == "strict"
        for name in [each for each in values if each.endswith("_ms")]:
            values[f"{name[:-2]}us"] = values.pop(name) * 1000
        try:
            return QueueDefinition(**values, at_most_once=at_most_once, strict=strict)
        except ConfigurationError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
