"""Queue commands of a client, decoded."""

from __future__ import annotations

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.client.commands import QueueAck, QueueCancel, QueueStatus
from raylay.services.protocol.frames import Header
from raylay.services.protocol.header_values import (
    BadValue,
    read_command_id,
    read_message_type,
    read_text,
    read_topic,
)
from raylay.services.queues.records import Keys, read_keys

HOW = ("ack", "expire", "cancel")


def read_messages(body: bytes) -> Keys:
    """Decodes the messages of a queue that a body names, as ranges of sequences by publisher."""
    try:
        return read_keys(body)
    except RemoteProtocolError as error:
        raise BadValue(error.reason, str(error)) from None


def read_queue_cancel(header: Header, body: bytes) -> QueueCancel:
    """Decodes the `queue_cancel` command."""
    keys = read_messages(body)
    return QueueCancel(
        read_topic(header),
        read_message_type(header, ""),
        read_command_id(header),
        keys,
        bool(header.get("unseen")),
    )


def read_queue_ack(header: Header, _: bytes) -> QueueAck:
    """Decodes the `queue_ack` command."""
    how = read_text(header, "how", "ack")
    if how not in HOW:
        raise BadValue("bad_command", f"`how` of queue_ack is none of {', '.join(HOW)}")
    return QueueAck(
        read_topic(header),
        read_message_type(header, ""),
        read_command_id(header),
        read_text(header, "filter"),
        how,
    )


def read_queue_status(header: Header, _: bytes) -> QueueStatus:
    """Decodes the `queue_status` command."""
    return QueueStatus(
        read_text(header, "t"), read_message_type(header, ""), read_command_id(header)
    )
