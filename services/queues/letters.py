"""Dead letters: the copy that a topic gets of each message that leaves a queue undone.

An instance commits the letter together with the removal, which follows it in the journal: no crash
loses a letter, or has it written twice.
"""

from __future__ import annotations

import json

from raylay.services.messages.records import RECORD_BYTES_MAX, Record

CORRELATION_BYTES_MAX = 1_024
"""The length up to which a message's own correlation id is repeated in its letter. A longer one is
left out."""
LETTER_BYTES_MAX = RECORD_BYTES_MAX + 16 * 1024
"""The length of the largest letter: the largest message, with the letter's topic and correlation
id."""


def correlation_of(record: Record, queue: str, reason: str, deliveries: int = 0) -> bytes:
    """Returns the correlation id of a letter: a JSON object.

    Args:
        record: the message that left the queue.
        queue: the name of the queue.
        reason: the reason why the message left the queue, one of `UNDONE`
            (services/queues/records.py).
        deliveries: how often the message was delivered in vain; 0: never, or it is not counted.
    """
    said: dict[str, str | int] = {
        "queue": queue,
        "reason": reason,
        "topic": record.topic,
        "bookmark": f"{record.publisher}|{record.sequence}|",
    }
    if deliveries:
        said["deliveries"] = deliveries
    if 0 < len(record.correlation) <= CORRELATION_BYTES_MAX:
        said["correlation_id"] = record.correlation.decode("utf-8", "replace")
    return json.dumps(said, separators=(",", ":")).encode()
