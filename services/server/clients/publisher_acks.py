"""Replies to a client's publishes: persisted acks, one for many where the client allows that, and
the answers to its flushes. A client with too many unanswered publishes is not read for a while."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from raylay.services.capacity.outstanding import OutstandingPublishes
from raylay.services.protocol.client.codec import Codec
from raylay.services.replication.effects import AckClient, RefuseClient
from raylay.services.security.publishing import NOT_ENTITLED

_OWN_IDS = "\0"
"""Prefix of a command id that the server made up, so that a flush can wait for the publish."""
PROBED_BATCHES = 8
"""Number of batches of which the ack of one is timed."""
FLUSHES_MAX = 10_000
"""Limit on the flushes of one connection that wait for persisted acks."""


class PublisherAcks:
    """The replies to a client's publishes.

    Owner: a client's connection. Lifecycle: that of the connection.

    Args:
        send: sends a frame to the client.
        call_later: calls a function after a number of seconds.
        codec: encodes the replies.
        slow, hurry: called when too many publishes are unanswered, and when there is room again.
        waited: called with the nanoseconds from a publish to its persisted ack, of every
            `PROBED_BATCHES`th batch at most.
        outstanding_max: the largest number of unanswered publishes; None: no limit for publishes
            that have a sequence.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        call_later: Callable[[float, Callable[[], None]], object],
        codec: Codec,
        slow: Callable[[], None] = lambda: None,
        hurry: Callable[[], None] = lambda: None,
        outstanding_max: int | None = None,
        waited: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._send = send
        self._acknowledgment = codec.acknowledgment
        self._persisted_ack = codec.persisted_ack
        self._call_later = call_later
        self._slow, self._hurry = slow, hurry
        self.outstanding = OutstandingPublishes(outstanding_max)
        self.counts = self.outstanding.counts_numbered
        """Whether `taken` must be called for publishes with a sequence."""
        self.is_slowed = False
        """Whether `slow` was called, and `hurry` not since then."""
        self.times_slowed = 0
        self.wants_persisted = False
        """Whether the client has asked for persisted acks of the messages that it numbers."""
        self.conflation_s = 0.0
        """Time, in seconds, for which an ack may wait for later ones; 0: each is sent at once."""
        self.denied = 0
        """Number of publishes that the client's permissions did not allow."""
        self._acked_upto = 0
        self._waited = waited
        self._batches = 0
        self._probe_upto = 0
        """The sequence whose ack is timed; 0: none is."""
        self._probe_ns = 0
        self._conflated = 0
        """The sequence of the ack that waits for later ones; 0: none waits."""
        self._conflated_unjournaled = 0
        self._unnumbered = 0
        self._unnumbered_acked = 0
        self._flushes: deque[tuple[int, int, str]] = deque()
        """The flushes that wait: the sequence and the number of publishes without one that must be
        persisted, and the flush's command id."""

    def taken(self, upto: int, count: int) -> None:
        """Counts publishes, the last of which has this sequence. Called before any of them is
        answered."""
        self.outstanding.took(upto, count)
        self._look_at_outstanding()

    def batch(self, upto: int) -> None:
        """Notes a batch of numbered publishes that was taken, before any of it is answered."""
        self._batches += 1
        if not self._probe_upto and not self._batches % PROBED_BATCHES:
            self._probe_upto, self._probe_ns = upto, time.perf_counter_ns()

    def unnumbered(self, wanted: str) -> str:
        """Counts a publish without a sequence and returns the command id of its ack.

        Args:
            wanted: the client's own command id; empty: the client asked for no ack.
        """
        self._unnumbered += 1
        self.outstanding.took_unnumbered()
        self._look_at_outstanding()
        return wanted or f"{_OWN_IDS}{self._unnumbered}"

    def unacknowledged(self, published_from: int, published_upto: int) -> int:
        """Returns how many publishes wait for their acks. Sequences between them that the client
        did not use count as well.

        Args:
            published_from, published_upto: the first and the last sequence that was taken; 0: none.
        """
        acked_upto = max(self._acked_upto, published_from - 1)
        numbered = max(0, published_upto - acked_upto) if published_upto else 0
        return numbered + self._unnumbered - self._unnumbered_acked

    def unnumbered_refused(self) -> None:
        """Notes that the last publish without a sequence is refused: it gets no persisted ack, and
        no flush waits for it."""
        self._unnumbered_acked += 1
        self.outstanding.answered_unnumbered()
        if self.is_slowed:
            self._look_at_outstanding()
        if self._flushes:
            self._answer_flushes()

    def persisted(self, ack: AckClient) -> None:
        if ack.command_id:
            self._unnumbered_acked += 1
            self.outstanding.answered_unnumbered()
            if not ack.command_id.startswith(_OWN_IDS):
                self._send(self._acknowledgment("persisted", ack.command_id, ack.reason, ack.text))
        else:
            self._acked_upto = max(self._acked_upto, ack.sequence)
            if self._probe_upto and self._probe_upto <= ack.sequence:
                self._probe_upto = 0
                self._waited(time.perf_counter_ns() - self._probe_ns)
            if self.counts:
                self.outstanding.answered(ack.sequence)
            if ack.reason:
                self._send_conflated()
                self._send(self._persisted_ack(ack.sequence, ack.reason, ack.text))
            elif self.wants_persisted:
                self._send_persisted(ack.sequence, ack.unjournaled)
        if self._flushes:
            self._answer_flushes()
        if self.is_slowed:
            self._look_at_outstanding()

    def refused(self, refusal: RefuseClient) -> None:
        """Sends the refusal of publishes that the machine refuses for good."""
        text = refusal.text
        is_denied = refusal.reason == NOT_ENTITLED
        for first, last in refusal.ranges:
            if is_denied:
                self.denied += last + 1 - first
            for sequence in range(first, last + 1):
                self._send(self._persisted_ack(sequence, refusal.reason, text))
                text = ""  # The ranges may be a whole batch: only the first message has the text.

    def flush(self, published_upto: int, command_id: str) -> bool:
        """Answers the command when everything up to this sequence, and every earlier publish
        without a sequence, is persisted. Returns False if too many flushes wait already."""
        if len(self._flushes) >= FLUSHES_MAX:
            return False
        self._flushes.append((published_upto, self._unnumbered, command_id))
        self._answer_flushes()
        return True

    def _look_at_outstanding(self) -> None:
        if not self.is_slowed:
            if self.outstanding.is_over:
                self.is_slowed = True
                self.times_slowed += 1
                self._slow()
        elif self.outstanding.has_room:
            self.is_slowed = False
            self._hurry()

    def _send_persisted(self, sequence: int, unjournaled: int) -> None:
        if not self.conflation_s:
            self._send(self._persisted_ack(sequence, unjournaled=unjournaled))
            return
        if not self._conflated:
            self._call_later(self.conflation_s, self._send_conflated)
        self._conflated = sequence
        self._conflated_unjournaled += unjournaled

    def _send_conflated(self) -> None:
        if self._conflated:
            self._send(
                self._persisted_ack(self._conflated, unjournaled=self._conflated_unjournaled)
            )
            self._conflated = self._conflated_unjournaled = 0

    def _answer_flushes(self) -> None:
        waiting = self._flushes
        while waiting:
            sequence, unnumbered, command_id = waiting[0]
            if sequence > self._acked_upto or unnumbered > self._unnumbered_acked:
                return
            waiting.popleft()
            self._send_conflated()
            self._send(self._acknowledgment("persisted", command_id))
