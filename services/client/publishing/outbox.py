"""Publishes of a client that are not known to be durable: their numbers, and what to send next.

    publish → publish store, and the tail that was not sent yet
    next_batch → what to send: after a logon first what the store holds and the server lacks
    persisted acks → the publish store forgets

Where messages are published one by one and fast, each turn of the loop would send a frame of its
own, and every process on the way pays for each. So while `UNANSWERED_MESSAGES_MAX` messages of
small frames are under way, the next small frame waits for an answer, and takes what is published
meanwhile. Where the last small frames had `CROWD_MESSAGES` and more, it waits until all of them are
answered: two frames that are under way at once hold one another up. A lone message is sent at once,
as is a large frame, a resend, and every message that a caller flushes.

The origin times of its records are a hybrid logical clock: the wall clock, but behind every time
that it gave before or was delivered. Who reads a value and then writes is later than what he read,
whatever the clocks say.

A publisher's sequences ascend without end: behind the highest that its store or any server saw. A
client whose store does not know its past begins at the clock in microseconds, since some instance
that it does not ask may have seen more than the one it asks; or with what an earlier client of its
name has left unused (services/replication/unused_sequences.py). When that is used up, it leaps to
the clock of its own beginning.

Invariants:
- a record leaves the publish store only when the server said that it is durable, or refused it;
- on one connection sequences are sent in ascending order, and each once;
- after a leap nothing is numbered by what an earlier client left;
- what is gathered is sent with an answer, by `hurry`, or as soon as it is no small frame any more;
- the origin times of one client's records ascend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from raylay.services.client.events import Effect, Notify, PublishFailed, SendPublishes, Settled
from raylay.services.client.publishing.first_recipients import UNKNOWN, FirstRecipients
from raylay.services.client.publishing.publish_store import PublishStoreProtocol
from raylay.services.errors import (
    CommandFailed,
    ConnectionLost,
    CorruptRecord,
    LocalProtocolError,
    SequenceConflict,
)
from raylay.services.messages.ranges import Range
from raylay.services.messages.records import (
    EXPIRATION_S_MAX,
    KEY_BYTES_MAX,
    PUBLISHED,
    RECORD_BYTES_MAX,
    SEQUENCE_MAX,
    Command,
    RecordBuilder,
    decode_record,
    publisher_id,
    scan,
)
from raylay.services.protocol.frames import Header

BUILDERS_MAX = 10_000
"""Number of topics whose record builders are kept; a client that uses more builds them anew."""
UNANSWERED_MESSAGES_MAX = 4
"""Number of messages of small frames under way, above which the next small frame waits for an
answer."""
CROWD_MESSAGES = 2.0
"""Average number of messages in a small frame from which on only one frame is under way at a
time."""
CROWD_PART = 8
"""Divisor of the running average of messages in a frame: the newest frame counts for one part in so
many."""
SMALL_FRAME_MESSAGES = 64
SMALL_FRAME_BYTES = 64 * 1024
"""Number of messages, and bytes, above which a frame is not small: a larger frame would hardly cost
less for each message."""
GATHERING_S_MAX = 0.002
"""Seconds after which gathered publishes are sent without an answer: an answer may take long, for
instance when a sync destination has stopped."""
CLOCK_AHEAD_US_MAX = 60_000_000
"""Microseconds above which an origin time that is ahead comes from a wrong clock, and is
ignored."""
RECORDS_REFUSED = frozenset(("bad_record", "bad_message_type", "foreign_publisher"))
"""Reasons with which an instance ends a connection for what its publishes are."""
FAILURES_MAX = 1_000
"""Number of refused publishes that are remembered until the application asks."""


def check_values(expiration_s: int, key: bytes, correlation: bytes, command: int = 0) -> None:
    """Checks the optional values of a publish: an instance ends the connection for a record with a
    value that it does not take, and so it would at every attempt to send the record again.

    Raises:
        TypeError: A value is of the wrong type.
        LocalProtocolError: A value has no place in a record.
    """
    if command:
        _check_command(command)
    elif type(command) is not int:
        raise _no_command(command)
    if type(expiration_s) is not int:
        raise TypeError(f"expiration_s is of type {type(expiration_s).__name__}, and has to be int")
    for what, value in (("key", key), ("correlation", correlation)):
        if type(value) is not bytes:
            raise TypeError(f"{what} is of type {type(value).__name__}, and has to be bytes")
    if not 0 <= expiration_s <= EXPIRATION_S_MAX:
        raise LocalProtocolError(
            f"expiration of {expiration_s} s: give one of 0 to {EXPIRATION_S_MAX}"
        )
    for what, value in (("SOW key", key), ("correlation id", correlation)):
        if len(value) > KEY_BYTES_MAX:
            raise LocalProtocolError(
                f"{what} is {len(value)} bytes long: give one of at most {KEY_BYTES_MAX}"
            )


def _check_command(command: int) -> None:
    # A bool is a number for Python alone.
    if not isinstance(command, int) or isinstance(command, bool):
        raise _no_command(command)
    if command not in PUBLISHED:
        names = (f"{int(each)} ({each.name.lower()})" for each in Command if each in PUBLISHED)
        raise LocalProtocolError(
            f"command is {command}: give 0 for a publish, or one of {', '.join(names)}; only "
            "instances make records with other commands"
        )


def _no_command(command: object) -> TypeError:
    return TypeError(f"command is of type {type(command).__name__}, and has to be int")


def _why_not_taken(record: bytes, types: Sequence[str]) -> str:
    """Returns why an instance does not take a record from a publisher; empty: it is a whole, sound
    one.

    Args:
        types: message types that the instance takes; empty: all.
    """
    try:
        (chunk,) = scan(record, record_bytes_max=RECORD_BYTES_MAX, commands=PUBLISHED)
        chunk.topic.decode()
        message_type = chunk.message_type.decode()
    except (CorruptRecord, ValueError) as error:
        return str(error)
    if types and message_type not in types:
        return (
            f"it has message type {message_type!r}, and this transport takes {', '.join(types)} "
            "only"
        )
    return ""


def _too_long(topic: str, body_bytes: int, record_bytes: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"message of {body_bytes} bytes on {topic} is a record of {record_bytes}: "
        f"a record may have {RECORD_BYTES_MAX} with topic, type, key and correlation id"
    )


class PublishFrame(NamedTuple):
    """The records of one `pb` frame, with ascending sequences.

    Attributes:
        resent: name of the instance to which the records were sent before; empty: it is not known.
            None: they are sent for the first time.
    """

    first: int
    last: int
    records: list[bytes]
    resent: str | None = None

    def header(self) -> Header:
        """Returns the header of the frame."""
        header: Header = {"c": "pb", "n": len(self.records)}
        return header if self.resent is None else header | {"r": self.resent}


class PublishOutbox:
    """The publishes of a client that are not settled, in the order of their sequences.

    Owner: the client's machine and its shell, on one thread.

    Args:
        clock_us: time when the client was made, in microseconds since 1970.
        gathers: whether a small frame may wait for an answer to earlier ones. False where the
            server was asked to delay answers.
        takes_over: whether the client continues with sequences that an earlier client of its name
            has left unused, and leaves its own unused ones.
    """

    def __init__(
        self,
        client_name: str,
        store: PublishStoreProtocol,
        clock_us: int,
        *,
        gathers: bool = True,
        takes_over: bool = False,
    ) -> None:
        self.client_name = client_name
        self.store = store
        self.publisher = publisher_id(client_name)
        self.sending = False
        """Whether a server accepts publishes."""
        self.ended = False
        """Whether nothing may be published any more."""
        self.next_sequence = 0
        """Sequence of the next publish; 0 until the first logon told where to begin."""
        self._first_sequence = 0
        """First sequence of this client's own publishes."""
        self._takes_over = takes_over
        self.took_over = False
        """Whether an earlier client had left sequences."""
        self._last_sequence = SEQUENCE_MAX
        """Highest sequence that may be given: the last one that an earlier client left, as long as
        those are used."""
        self._leap: Range | None = None
        """The last sequence before a leap and the first one after it, until the former is sent on
        this connection."""
        self.failures: deque[PublishFailed] = deque(maxlen=FAILURES_MAX)
        self.gathering = False
        """Whether publishes wait for an answer to earlier frames. After `GATHERING_S_MAX`, the
        shell calls `hurry`."""
        self.unjournaled = 0
        """Number of publishes that went to live subscribers only, as far as the server said so."""
        self.stamp_us = 0
        """Latest origin time that was given, or was delivered and believed, in microseconds since
        1970."""
        self.wall_us = clock_us
        """Wall clock at the last read. Set by the shell, like `heard_s`."""
        self.heard_s = 0.0
        """Time at which the server was last heard, by a clock that never goes back. Set by the
        shell, because a step for each read would cost more."""
        self.clock_ahead_us = 0
        """Microseconds by which the wall clock was ahead of the instance's at the logon."""
        self._accepted_us = 0
        """The latest origin time behind the last one that the instance accepts, whatever the wall
        clock says since."""
        self._instance_base_us: int | None = None
        """Microseconds by which the instance's wall clock is ahead of the clock of `heard_s`; None:
        the instance did not say."""
        self._refused_for = ("", "")
        """Reason and text of the last refusal: of several refusals at once, only the first has the
        text."""
        self._clock_us = clock_us
        self._builders: dict[tuple[str, str], RecordBuilder] = {}
        # Records that were not sent on this connection: first those in the store at the logon, up
        # to `_resend_upto`, then `_tail`, which grows by every publish.
        self._resend: Iterator[tuple[int, bytes]] | None = None
        self._resend_upto = 0
        self._sent_upto = 0
        self._given = FirstRecipients()
        self._sends_to = ""
        self._resend_next: tuple[int, bytes] | None = None
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._tail_first = 0
        self._settled_upto = 0
        self._gathers = gathers
        self._unanswered: deque[tuple[int, int]] = deque()
        """Small frames under way: last sequence and number of messages of each."""
        self._unanswered_messages = 0
        self._frame_messages = 1.0
        """Running average of the messages in small frames."""
        self._hurried_upto = 0

    # -- on the way out ----------------------------------------------------------------------
    def builder(self, topic: str, message_type: str) -> RecordBuilder:
        """Returns the record builder of a topic and type; makes one where there is none.

        Raises:
            LocalProtocolError: topic or type is empty or too long, or has no UTF-8.
            TypeError: topic or type is no str.
        """
        for what, value in (("topic", topic), ("message_type", message_type)):
            if type(value) is not str:
                raise TypeError(f"{what} is of type {type(value).__name__}, and has to be str")
        found = self._builders.get((topic, message_type))
        if found is None:
            if len(self._builders) >= BUILDERS_MAX:
                self._builders.clear()
            try:
                found = RecordBuilder(self.publisher, topic, message_type)
            except UnicodeEncodeError as error:
                raise LocalProtocolError(
                    f"a topic and a message type are sent as UTF-8, and {error.object[:200]!r} has "
                    "none: give a text without halves of surrogate pairs"
                ) from None
            self._builders[topic, message_type] = found
        return found

    def publish(
        self,
        topic: str,
        body: bytes,
        message_type: str,
        origin_time_us: int,
        trace: bytes = b"",
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
        command: int = 0,
    ) -> int:
        """Numbers, stores and queues one message. Returns its sequence.

        Args:
            origin_time_us: time by the wall clock; the record's origin time is later where it must
                be.
            command: command of the record (services/messages/records.py); 0: a publish.

        Raises:
            PublishStoreFull: the store is at its limit; nothing was done.
            ConnectionLost: the client was never connected, or is closed.
            LocalProtocolError: topic, type, size or an optional value break a limit; nothing was
                done.
            TypeError: an optional value is of the wrong type; nothing was done.
        """
        builder = self._builders.get((topic, message_type))
        if builder is None:
            builder = self.builder(topic, message_type)
        # Compared with their defaults, because values of other types may count as false.
        valued = command != 0 or expiration_s != 0 or key != b"" or correlation != b""
        if valued:
            check_values(expiration_s, key, correlation, command)
        sequence = self.next_sequence
        if self.ended:
            raise ConnectionLost(f"client {self.client_name} is closed")
        if not 0 < sequence <= self._last_sequence:
            sequence = self._leaped()
        if origin_time_us <= self.stamp_us:
            origin_time_us = self._behind_the_last(origin_time_us)
        self.stamp_us = origin_time_us
        if valued:
            record = builder.build(
                sequence,
                body,
                origin_time_us,
                trace,
                command=command or Command.PUBLISH,
                expiration_s=expiration_s,
                key=key,
                correlation=correlation,
            )
        else:
            record = builder.build(sequence, body, origin_time_us, trace)
        if len(record) > RECORD_BYTES_MAX:
            raise _too_long(topic, len(body), len(record))
        self.store.put(sequence, record)
        self._tail.append(record)
        self._tail_bytes += len(record)
        self.next_sequence = sequence + 1
        return sequence

    def publish_many(
        self,
        sequences: list[int],
        topic: str,
        bodies: Sequence[bytes],
        message_type: str,
        origin_time_us: int,
        expiration_s: int,
        keys: Sequence[bytes],
        correlation: bytes,
    ) -> None:
        """Numbers, stores and queues several messages, whose values and sizes were checked. Does
        for each of them only what each needs.

        Args:
            sequences: gets the sequence of each message.
            origin_time_us: time by the wall clock for the first message; each later one counts as
                published a microsecond after the one before.
            keys: SOW key of each message.

        Raises:
            PublishStoreFull: the store is at its limit; `sequences` tells what was published.
            ConnectionLost, LocalProtocolError: as `publish`.
        """
        if self.ended:
            raise ConnectionLost(f"client {self.client_name} is closed")
        build = self.builder(topic, message_type).build
        put, queue, told = self.store.put, self._tail.append, sequences.append
        for body, key in zip(bodies, keys, strict=True):
            sequence = self.next_sequence
            if not 0 < sequence <= self._last_sequence:
                sequence = self._leaped()
            at_us = origin_time_us
            if at_us <= self.stamp_us:
                at_us = self._behind_the_last(at_us)
            record = build(
                sequence,
                body,
                at_us,
                expiration_s=expiration_s,
                key=key,
                correlation=correlation,
            )
            self.stamp_us = at_us
            put(sequence, record)
            queue(record)
            self._tail_bytes += len(record)
            self.next_sequence = sequence + 1
            told(sequence)
            origin_time_us += 1

    def check_sizes(self, topic: str, message_type: str, body_bytes: int, value_bytes: int) -> None:
        """Checks that a message finds room in a record.

        Args:
            body_bytes: length of the body.
            value_bytes: length of SOW key and correlation id together.

        Raises:
            LocalProtocolError: it does not.
        """
        of_record = self.builder(topic, message_type).overhead_bytes + body_bytes + value_bytes
        if of_record > RECORD_BYTES_MAX:
            raise _too_long(topic, body_bytes, of_record)

    @property
    def publishes(self) -> bool:
        """Returns whether anything was published since this client was made."""
        return self.next_sequence > self._first_sequence

    @property
    def asks_for_unused(self) -> bool:
        """Returns whether the client continues with sequences that an earlier client left, if the
        next server knows of any."""
        return self._takes_over and not self.next_sequence and not self.store.highest

    def unused(self, clock_us: int) -> Range | None:
        """Returns the sequences that the client leaves to the next client of its name; None: there
        are none.

        Args:
            clock_us: present time by the clock that gave the first sequence.
        """
        first = self.next_sequence
        if not self._takes_over or not (self.publishes or self.took_over):
            return None
        last = self._last_sequence
        if first > last or last == SEQUENCE_MAX:
            # No other client has begun within this client's lifetime.
            first, last = max(first, self._clock_us), clock_us
        return (first, last) if first <= last else None

    def heard_stamp(self, stamp_us: int, received_us: int) -> None:
        """Notes that a message with this origin time was delivered: later publishes get later
        origin times.

        Args:
            received_us: time at which the instance received the message, by its clock; 0: the
                instance did not say.
        """
        if self.stamp_us < stamp_us <= max(self.wall_us, received_us) + CLOCK_AHEAD_US_MAX:
            self.stamp_us = stamp_us

    def hear_clock(self, instance_us: int, now_s: float) -> None:
        """Takes the wall clock of the instance at a logon, in microseconds since 1970; 0: the
        instance did not say."""
        if instance_us:
            self._instance_base_us = instance_us - int(now_s * 1e6)
            self._accepted_us = 0
            self.clock_ahead_us = self.wall_us - instance_us

    def _behind_the_last(self, wall_us: int) -> int:
        """Returns the next origin time, where the wall clock is not later than the last one.

        The next one is later than the last one, so that this client's own messages keep their order
        where the last writer counts. But a clock here that was ahead for a moment may have given a
        time that every instance refuses: then the latest accepted time is returned. No message with
        a later time was accepted, and of two with the same time the higher sequence counts as
        later.
        """
        if self._instance_base_us is None:
            return self.stamp_us + 1
        instance_us = self._instance_base_us + int(self.heard_s * 1e6)
        following_us = self.stamp_us + 1
        found_us = min(following_us, max(wall_us, instance_us) + CLOCK_AHEAD_US_MAX)
        if wall_us <= instance_us + CLOCK_AHEAD_US_MAX:
            # A time that was given is accepted, even if the clock here is set back afterwards.
            found_us = max(found_us, min(following_us, self._accepted_us))
            self._accepted_us = found_us
        return found_us

    def _leaped(self) -> int:
        """Returns the next sequence, after those of an earlier client are used up."""
        before = self.next_sequence
        if not before:
            raise ConnectionLost("connect before the first publish: a server must say the number")
        if self._last_sequence < SEQUENCE_MAX:
            self._last_sequence = SEQUENCE_MAX
            self.next_sequence = behind = max(before, self._clock_us)
            if self._tail:
                self._leap = before - 1, behind
            else:
                self._tail_first = behind
            return behind
        raise LocalProtocolError(
            f"client {self.client_name} has no sequence left, the highest is "
            f"{SEQUENCE_MAX}: choose another client name"
        )

    def next_batch(self, bytes_max: int) -> PublishFrame | None:
        """Returns the frame to send next, with up to `bytes_max` of records, or one larger record.
        None when nothing waits, no server takes publishes, or more is gathered. The caller must
        have flushed the store: otherwise, after a crash, a sequence that a server already has could
        be given again."""
        if not self.sending:
            return None
        if self._resend_next is not None:
            return self._next_resend(bytes_max)
        tail = self._tail
        first = self._tail_first
        if not tail:
            return None
        small = self._is_small(bytes_max)
        if small and self._crowded and first > self._hurried_upto:
            self.gathering = True
            return None
        self.gathering = False
        records: list[bytes] = []
        leap = self._leap
        if self._tail_bytes <= bytes_max and leap is None:
            records.extend(tail)
            tail.clear()
            self._tail_bytes = 0
        else:
            size = 0
            count = len(tail) if leap is None else leap[0] - first + 1
            while len(records) < count and (not records or size + len(tail[0]) <= bytes_max):
                record = tail.popleft()
                size += len(record)
                records.append(record)
            self._tail_bytes -= size
        self._tail_first = first + len(records)
        self._sent_upto = self._tail_first - 1
        if leap is not None and self._sent_upto == leap[0]:
            self._tail_first, self._leap = leap[1], None
        if small and self._gathers:
            count = len(records)
            self._unanswered.append((self._sent_upto, count))
            self._unanswered_messages += count
            self._frame_messages += (count - self._frame_messages) / CROWD_PART
        return PublishFrame(first, self._sent_upto, records)

    @property
    def _crowded(self) -> bool:
        """Returns whether the next publishes wait for an answer."""
        if self._frame_messages >= CROWD_MESSAGES:
            return self._unanswered_messages > 0
        return self._unanswered_messages >= UNANSWERED_MESSAGES_MAX

    def _is_small(self, bytes_max: int) -> bool:
        """Returns whether the unsent publishes make a small frame."""
        small_bytes = min(SMALL_FRAME_BYTES, bytes_max)
        return len(self._tail) <= SMALL_FRAME_MESSAGES and self._tail_bytes <= small_bytes

    def gathers_on(self, bytes_max: int) -> bool:
        """Returns whether the last publish waits, with those gathered already, for an answer: until
        then, or `hurry`, `next_batch` with the same limit returns None."""
        return self.gathering and self._is_small(bytes_max)

    def hurry(self) -> None:
        """Ends the waiting of all publishes so far: `next_batch` returns them."""
        self._hurried_upto = self.next_sequence - 1
        self.gathering = False

    def _next_resend(self, bytes_max: int) -> PublishFrame:
        """Returns a frame of records that the store held at the logon, from `_resend_next` on."""
        entry = self._resend_next
        assert entry is not None and self._resend is not None
        first = last = entry[0]
        given, upto = self._given.of(first)
        records: list[bytes] = []
        size = 0
        while (
            entry is not None
            and (not records or size + len(entry[1]) <= bytes_max)
            and entry[0] <= upto
        ):
            last = entry[0]
            records.append(entry[1])
            size += len(entry[1])
            entry = next(self._resend, None)
            if entry is not None and entry[0] > self._resend_upto:
                entry = None
        self._resend_next = entry
        if entry is None:
            self._resend = None
        self._sent_upto = last
        return PublishFrame(first, last, records, given)

    @property
    def unsent(self) -> bool:
        """Returns whether `next_batch` may have something on this connection."""
        return self.sending and (bool(self._tail) or self._resend_next is not None)

    @property
    def settled_upto(self) -> int:
        """Returns the sequence up to which every publish is durable or was refused; 0 before the
        first logon."""
        lowest = self.store.lowest
        return (lowest or self.next_sequence) - 1 if self.next_sequence else 0

    # -- a connection begins and ends --------------------------------------------------------
    def take_durable(self, header: Header) -> None:
        """Takes the logon answer: sets the next sequence above all known ones, and which publishes
        must be sent again."""
        store = self.store
        durable = header.get("durable")
        if isinstance(durable, list) and durable:
            store.drop([(int(first), int(last)) for first, last in durable])
        highest = max(int(header.get("highest") or 0), store.highest)
        first = not self.next_sequence
        left = header.get("unused") if first and self.asks_for_unused else None
        if int(header.get("highest") or 0) >= max(self.next_sequence, self._clock_us):
            # Another client's clock is ahead of this one's, or another client of this name is
            # alive: sequences between this client's may be used elsewhere.
            self._takes_over, left = False, None
        if isinstance(left, list) and len(left) == 2 and highest < left[0] <= left[1]:
            highest, self._last_sequence = int(left[0]) - 1, int(left[1])
            self.took_over = True
        elif (first and not store.highest) or (
            self._last_sequence < SEQUENCE_MAX and highest >= self.next_sequence
        ):
            # A sequence in the taken-over range was used, which was not known where it was taken
            # over.
            highest = max(highest, self._clock_us - 1)
            self._last_sequence = SEQUENCE_MAX
        self.next_sequence = max(self.next_sequence, highest + 1)
        if first:
            self._first_sequence = self.next_sequence
        store.advance(self.next_sequence - 1)
        newest = next(iter(store.replay(store.highest)), None) if store.messages else None
        if newest is not None:
            # An earlier process stored this message, and its clock may have been ahead of this one.
            self.stamp_us = max(
                self.stamp_us, decode_record(newest[1], verify=False).origin_time_us
            )
        if first:
            self._given.sent(store.highest, UNKNOWN)
        self._given.settled((store.lowest or self.next_sequence) - 1)
        self._sends_to = str(header.get("instance") or "")
        self._resend_upto = self.next_sequence - 1
        self._sent_upto = 0
        lowest = store.lowest
        self._resend = store.replay(lowest or 0)
        self._resend_next = next(self._resend, None)
        self._drop_tail()

    def _drop_tail(self) -> None:
        self._tail.clear()
        self._tail_bytes = 0
        self._tail_first = self.next_sequence
        self._leap = None
        self._unanswered.clear()
        self._unanswered_messages = 0
        self.gathering = False

    def stop_sending(self) -> None:
        """Leaves unsent publishes in the store, for the next logon."""
        self.sending = False
        self._given.sent(self._sent_upto, self._sends_to)
        self._drop_tail()
        self._resend = self._resend_next = None

    # -- acks --------------------------------------------------------------------------------
    def persisted(self, header: Header, effects: list[Effect]) -> None:
        """Takes a persisted ack of publishes, or the refusal of one."""
        sequence = int(header["s"])
        if header.get("status") == "failure":
            self._publish_failed(sequence, header, effects)
        else:
            # A server must not acknowledge a sequence that this client has not sent (law 1).
            self.store.acknowledge(min(sequence, self._sent_upto))
            if "unjournaled" in header:
                self.unjournaled += int(header["unjournaled"])
        self.settle(effects)
        unanswered = self._unanswered
        while unanswered and unanswered[0][0] <= self._settled_upto:
            self._unanswered_messages -= unanswered.popleft()[1]
        if self.gathering and not self._crowded:
            self.gathering = False
            effects.append(SendPublishes())

    def _publish_failed(self, sequence: int, header: Header, effects: list[Effect]) -> None:
        if sequence > self._sent_upto:
            return
        found = next(iter(self.store.replay(sequence)), None)
        record = found[1] if found is not None and found[0] == sequence else b""
        self.store.drop([(sequence, sequence)])
        reason = str(header.get("reason") or "refused")
        text = str(header.get("text") or "")
        if not text and reason == self._refused_for[0]:
            text = self._refused_for[1]
        self._refused_for = reason, text
        kind = SequenceConflict if reason == "sequence_conflict" else CommandFailed
        failure = PublishFailed(sequence, kind("publish", reason, text), record)
        self.failures.append(failure)
        effects.append(Notify(failure))

    def refuse_sent(self, reason: str, types: object, effects: list[Effect]) -> int:
        """Takes the refusal of a whole batch because of a record in it: of the records that were
        sent on this connection, those that the instance does not take are refused, as single
        publishes are. Otherwise they would end every connection, and hold up all others. Returns
        their number.

        Args:
            reason: reason of the refusal.
            types: list of the message types that the server takes, where it said so.
        """
        taken = [str(each) for each in types] if isinstance(types, list) else []
        refused = []
        for sequence, record in self.store.replay(self.store.lowest):
            if sequence > self._sent_upto:
                break
            why = _why_not_taken(record, taken)
            if why:
                refused.append((sequence, record, why))
        for sequence, record, why in refused:
            self.store.drop([(sequence, sequence)])
            text = (
                f"publish {sequence} of client {self.client_name} is no record that the instance "
                f"takes: {why}. It is removed from the publish store, the others are sent again; "
                "`PublishFailed.record` has it, for on_publish_failed"
            )
            failure = PublishFailed(sequence, CommandFailed("publish", reason, text), record)
            self.failures.append(failure)
            effects.append(Notify(failure))
        self.settle(effects)
        return len(refused)

    def begin_settled(self) -> None:
        """Marks everything settled so far as reported."""
        self._settled_upto = self.settled_upto

    def settle(self, effects: list[Effect]) -> None:
        """Reports newly settled publishes."""
        upto = self.settled_upto
        if upto != self._settled_upto:
            self._settled_upto = upto
            effects.append(Settled(upto))

    # -- for tests and the simulator ---------------------------------------------------------
    def check_invariants(self) -> None:
        """Raises AssertionError when an invariant of this module does not hold."""
        assert self._sent_upto < max(self.next_sequence, 1)
        if self.sending:
            last, behind = self._leap or (0, 1)
            assert self._tail_first + len(self._tail) + behind - last - 1 == self.next_sequence
            assert not self.gathering or self._crowded
            if self._tail:
                held = [sequence for sequence, _ in islice(self.store.replay(self._tail_first), 1)]
                assert held == [self._tail_first]
