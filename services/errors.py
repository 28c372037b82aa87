"""Every error that Raylay raises on purpose.

RaylayError
 ├─ ConfigurationError      a file, option or argument is wrong; nothing was changed
 ├─ ExpressionError         a filter or another expression that is none; carries its column
 ├─ ProtocolError           bytes or commands that break the native protocol
 │   ├─ LocalProtocolError  we misused it
 │   └─ RemoteProtocolError the peer misused it; carries the status reason that the peer is told
 ├─ CommandFailed           the server refused one command; carries its reason word
 │   ├─ LogonRefused        … the logon
 │   ├─ SequenceConflict    … a publish whose identity is held with another content
 │   └─ BookmarkNotFound    … a bookmark subscription that asked to fail
 ├─ MessageTypeError        a body that is none of its message type, or what a type cannot do
 │   ├─ BodyTypeError       … of a message that is not of the type its subscription was given
 │   └─ MessageTooLarge     … longer than its type is parsed
 ├─ SowKeyError             a message says of no record of its SOW topic that it belongs there
 ├─ ConnectionLost          the connection ended; what was not acknowledged is in the publish store
 ├─ NoSafeInstance          every instance that may be failed over to is down or unsafe
 ├─ NoUsableServer          every server answers, and none can be used as the client is set
 ├─ PublishStoreFull        the bounded publish store stayed full for as long as publish may wait
 ├─ FlushTimeout            not everything was durable in time; it stays in the publish store
 ├─ StorageError            a file of ours; carries its path
 │   ├─ StorageLocked       another process owns the directory
 │   ├─ StorageFull         no space; nothing that was refused is acknowledged
 │   └─ CorruptRecord       a checksum or a length does not fit; carries path and offset
 ├─ UnfinishedStep          a fault in the middle of a step of an instance, which ends
 ├─ InstanceRetired         a data directory belongs to an instance that lives elsewhere now
 └─ FabricError             a fabric could not be built, found, started or stopped

A message says what happened, where, and what to do about it.
"""

from __future__ import annotations


class RaylayError(Exception):
    """The base of all errors that Raylay raises on purpose."""


class ConfigurationError(RaylayError):
    """A file, option or argument is wrong. Nothing was changed."""


class ExpressionError(RaylayError):
    """A filter, or another expression, is none.

    Attributes:
        problem: what is wrong and what to do, without the place.
        column: the character of the expression where it is wrong, from 1.
        expression: its text, once it is known.
    """

    def __init__(self, problem: str, column: int, expression: str = "") -> None:
        super().__init__(problem, column, expression)
        self.problem = problem
        self.column = column
        self.expression = expression

    def __str__(self) -> str:
        return f"column {self.column}: {self.problem}"


class ProtocolError(RaylayError):
    """Bytes or commands that break the native protocol (docs/protocol.md)."""

    def __init__(self, message: str, reason: str = "protocol error") -> None:
        super().__init__(message)
        self.reason = reason
        """The short reason word that travels in an ack's `reason`."""


class LocalProtocolError(ProtocolError):
    """Error of this side: it tried something that the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The other side sent something that the protocol does not allow."""


class CommandFailed(RaylayError):
    """The server refused one command.

    Attributes:
        command: the refused command, such as `subscribe`.
        reason: the server's reason word, such as `bad_topic`.
    """

    def __init__(self, command: str, reason: str, text: str = "") -> None:
        super().__init__(text or f"the server refused {command}: {reason}")
        self.command = command
        self.reason = reason


class LogonRefused(CommandFailed):
    """The server refused the logon."""


class SequenceConflict(CommandFailed):
    """The publisher's sequence is held by the server with another content."""


class BookmarkNotFound(CommandFailed):
    """Refusal of a subscription that asked to fail when none of its bookmarks is in the log."""


class MessageTypeError(RaylayError):
    """A body is none of its message type, or the type cannot do what was asked of it.

    Attributes:
        message_type: its name; empty where there is none.
        offset: bytes from the body's start to where the fault shows; None: not known.
    """

    def __init__(self, message: str, message_type: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.message_type = message_type
        self.offset = offset


class BodyTypeError(MessageTypeError):
    """The body of a message does not fit the type that its subscription was given.

    Attributes:
        bookmark: the message, as `publisher|sequence|`.
        topic: the topic to which it was published.
        path: the field that does not fit, as `$.lines[0].price`; `$`: the whole body.
        problem: the problem with that field, such as "Expected `int`, got `str`".
        expected: the name of the type that the subscription was given; `JSON` without one.
    """

    def __init__(
        self, bookmark: str, topic: str, path: str, problem: str, expected: str, message_type: str
    ) -> None:
        super().__init__(
            f"message {bookmark} of topic {topic} ({message_type}) is no {expected}: "
            f"at {path}: {problem}",
            message_type,
        )
        self.bookmark = bookmark
        self.topic = topic
        self.path = path
        self.problem = problem
        self.expected = expected


class MessageTooLarge(MessageTypeError):
    """A body is longer than its type is parsed: that would hold up everybody else."""


class SowKeyError(RaylayError):
    """A message of a SOW topic lacks what its record is found by."""


class ConnectionLost(RaylayError):
    """The connection ended. What was not acknowledged stays in the publish store."""


class ClientFailed(RaylayError):
    """A client met an error that is none of its documented ones, and ended; `__cause__` has it."""


class ForkedClient(RaylayError):
    """A client is used in a forked child of the process that made it."""


class NoSafeInstance(RaylayError):
    """Every instance that this client may use is down or unsafe to fail over to."""


class NoUsableServer(RaylayError):
    """Every server that a client knows answered its first attempt, and none can be used until a
    file or a setting of either side changes: TLS or its certificates do not fit. The text names
    each server, and what to set."""


class PublishStoreFull(RaylayError):
    """The bounded publish store stayed full for as long as a publish may wait; nothing dropped."""


class FlushTimeout(RaylayError, TimeoutError):
    """Timeout of a flush: not everything that was published became durable in time. It stays in the
    publish store."""


class UnfinishedStep(RaylayError):
    """A fault in the middle of a step: what the instance has in memory cannot be trusted any more.
    It ends, and starts again from its disk. `__cause__` has the fault."""


class StorageError(RaylayError):
    """A file or directory of ours cannot be used as it is.

    Attributes:
        path: the file or directory.
        retriable: whether the same operation may succeed later without a person's help.
    """

    retriable = False

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class StorageLocked(StorageError):
    """Another process owns this directory."""

    retriable = True


class StorageFull(StorageError):
    """There is no space left for the write. Nothing of it is acknowledged."""

    retriable = True


class CorruptRecord(StorageError):
    """Stored or received bytes are not what was written.

    Attributes:
        offset: bytes from the start of the block or file to the damage.
    """

    def __init__(self, message: str, path: str = "", offset: int = 0) -> None:
        super().__init__(message, path)
        self.offset = offset


class SowDamaged(CorruptRecord):
    """The store of SOW topics has other contents than were written: it can be rebuilt from the
    journal."""


class DowngradeRefused(RaylayError):
    """Fewer destinations than MinSyncDestinations would use sync acknowledgment."""


class AdmissionRefused(RaylayError):
    """An instance that has not caught up would admit clients, and could lose messages by that."""


class ControlRefused(RaylayError):
    """Somebody may not control an instance so; nothing was changed."""


class InstanceRetired(RaylayError):
    """A data directory belongs to an instance that was moved: it is never served again."""


class FabricError(RaylayError):
    """A fabric could not be built, found, started or stopped."""
