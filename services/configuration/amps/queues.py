"""Translation of `SOW/Queue`, `LocalQueue` and `GroupLocalQueue` to a queue of Raylay: its
settings, and the errors in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from raylay.services.configuration.amps.message_types import definitions
from raylay.services.configuration.amps.model import AmpsConfig
from raylay.services.configuration.amps.sow import GroupLocalQueue, LocalQueue, Queue
from raylay.services.configuration.builder import explain
from raylay.services.configuration.queues import QueueSettings
from raylay.services.plugins.queue_checks import queue_problems
from raylay.services.queues.definition import QueueDefinition

MILLISECOND_NS = 1_000_000
_ELEMENTS = {
    "name": "Name",
    "message_type": "MessageType",
    "underlying": "UnderlyingTopic",
    "filter": "Filter",
    "publish_target": "DefaultPublishTarget",
    "lease": "LeasePeriod",
    "expiration": "Expiration",
    "recovery_point": "RecoveryPoint",
    "priority": "Priority",
    "barrier": "BarrierExpression",
    "deferred_ack": "DeferredAckExpiration",
    "initial_owner": "InitialOwner",
}
"""Elements that stand for a value of the settings."""


def queue_settings(queue: Queue) -> dict[str, Any]:
    """Returns the queue as a fabric's file declares it."""
    made: dict[str, Any] = {
        "name": queue.name,
        "message_type": queue.message_type,
        "kind": "queue",
        "underlying": queue.underlying_topic or "",
        "filter": queue.filter or "",
        "publish_target": queue.default_publish_target or "",
        "semantics": queue.semantics,
        "subscription_backlog_max": queue.subscription_backlog_max,
        "expiration_model": queue.expiration_model,
        "recovery_point": queue.recovery_point,
        "fairness": queue.fairness,
        "leasing": queue.leasing,
        "priority": queue.priority or "",
        "barrier": queue.barrier or "",
        "file_backed": queue.file_backed_metadata,
        "deferred_ack": _time(queue.deferred_ack_expiration_ns),
    }
    for name, value in (
        ("lease", queue.lease_period_ns),
        ("expiration", queue.expiration_ns),
    ):
        if value:
            made[name] = _time(value)
    for name, count in (
        ("backlog_max", queue.backlog_max),
        ("deliveries_max", queue.deliveries_max),
        ("cancels_max", queue.cancels_max),
        ("target_depth", queue.target_depth),
    ):
        if count:
            made[name] = count
    if isinstance(queue, LocalQueue):
        made["kind"] = "local"
    elif isinstance(queue, GroupLocalQueue):
        made |= {"kind": "group_local", "initial_owner": queue.initial_owner}
        made["domain"] = queue.domain or ""
    return made


def defined_queues(config: AmpsConfig) -> list[QueueDefinition]:
    """Returns the queues of a configuration whose settings are right, for the views over them."""
    found = []
    sow = config.sow
    for queue in () if sow is None else sow.all_queues:
        with suppress(ValidationError):
            found.append(QueueSettings.model_validate(queue_settings(queue)).definition())
    return found


def queue_texts(queue: Queue, config: AmpsConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields each fault of a queue's element: the path of the faulty part in the element, and a
    text."""
    try:
        definition = QueueSettings.model_validate(queue_settings(queue)).definition()
    except ValidationError as error:
        for path, text in explain(error, QueueSettings):
            yield _place(str(path[0]) if path else ""), f"queue {queue.name}: {text}"
        return
    for problem in queue_problems(definition, definitions(config)):
        yield _place(str(*problem.place)), f"queue {queue.name}: {problem.text}"


def _place(name: str) -> tuple[str, ...]:
    return (_ELEMENTS[name],) if name in _ELEMENTS else ()


def _time(value_ns: int) -> str:
    return f"{-(-value_ns // MILLISECOND_NS)}ms"
