"""Entitlement of a session's publishes: each run is judged before it is taken.

Where a filter restricts it, each message is judged. On a topic with a SOW the message alone is not
enough, since it may be a delta and changes a record: the topic's staging judges the record as it
was and as it becomes (services/sow/staging.py), by calling `passes`.
"""

from __future__ import annotations

from collections.abc import Callable

from raylay.services.errors import MessageTypeError
from raylay.services.expressions.expression import SUBSCRIPTION, Expression, expression
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
from raylay.services.messages.ranges import Range
from raylay.services.messages.records import (
    COMMAND_AT,
    MESSAGES,
    Command,
    Run,
    iterate_records,
)
from raylay.services.messages.stateful import PreparedRun, RefusedRecords
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.messages.types.trees import Tree
from raylay.services.security.permissions import Grant, Permissions

NOT_ENTITLED = "not_entitled"
Language = Callable[[], tuple[MessageTypeTable, Functions]]


class PublishJudge:
    """Judges a session's publishes. For a topic without restrictions a run costs a look-up. It is
    the session's `WritePermission`.

    Owner: the session. Lifecycle: as long as its permissions.

    Args:
        user: name of the user, for refusals.
        language: language of the filters; called where a grant has one.
        client: properties of the session's client that filters can read.
        held_only: returns the part of queue acknowledgments that names messages which the session
            holds. A session that may not read the whole queue may only acknowledge those: each was
            checked when it was delivered.
    """

    __slots__ = ("_client", "_compiled", "_held_only", "_language", "_permissions", "_user")

    def __init__(
        self,
        permissions: Permissions,
        user: str,
        language: Language,
        client: EvalContext = NO_CONTEXT,
        held_only: Callable[[Run], PreparedRun] = lambda run: PreparedRun((run,)),
    ) -> None:
        self._permissions = permissions
        self._user = user
        self._language = language
        self._client = client
        self._held_only = held_only
        self._compiled: dict[str, Expression] = {}

    def __call__(self, run: Run, *, by_record: bool = False) -> PreparedRun:
        """Returns the parts of a run that the session may publish, and those that it may not.

        Args:
            by_record: whether the filter is not applied here, because the topic's state applies it
                to the records that the messages change.
        """
        command = run.payload[COMMAND_AT]
        if command == Command.QUEUE_ACKNOWLEDGMENT:
            # A user who may read a queue may acknowledge its messages.
            grant = self._permissions.read(run.topic)
            if grant.allowed:
                return PreparedRun((run,)) if grant.is_whole else self._held_only(run)
            return self._none(run, "acknowledge messages of queue")
        grant = self._permissions.write(run.topic)
        if grant.is_whole:
            return PreparedRun((run,))
        if not grant.allowed:
            return self._none(run, "publish to" if command in MESSAGES else "delete from")
        if command not in MESSAGES and not (by_record and command == Command.DELETE):
            return self._none(run, "delete from")
        return PreparedRun((run,)) if by_record else self._filtered(run, grant)

    def writes_all(self, topic: bytes) -> bool:
        return self._permissions.write(topic).is_whole

    def writes_some(self, topic: bytes) -> bool:
        return self._permissions.write(topic).allowed

    def passes(self, topic: bytes, message: Tree) -> bool:
        grant = self._permissions.write(topic)
        if grant.is_whole or not grant.allowed:
            return grant.allowed
        return bool(self._filter(grant).matches(message, self._client))

    def refusal(self, topic: bytes, what: str) -> tuple[str, str]:
        who = self._user or "this client"
        shown = topic.decode("utf-8", "replace")[:200]
        return NOT_ENTITLED, f"{who} may not {what} {shown!r}"

    def _none(self, run: Run, what: str) -> PreparedRun:
        return PreparedRun((), (self._refused(run, run.ranges(), what),))

    def _refused(self, run: Run, ranges: list[Range], what: str) -> RefusedRecords:
        return RefusedRecords(ranges, *self.refusal(run.topic, what))

    def _filter(self, grant: Grant) -> Expression:
        found = self._compiled.get(grant.filter)
        if found is None:
            _, functions = self._language()
            found = expression(grant.filter, SUBSCRIPTION, functions, self._client)
            self._compiled[grant.filter] = found
        return found

    def _filtered(self, run: Run, grant: Grant) -> PreparedRun:
        types, _ = self._language()
        found = self._filter(grant)
        try:
            parse = types[run.message_type.decode("utf-8", "replace")].parse
        except MessageTypeError:
            return self._none(run, "publish what cannot be read to")
        kept: list[Range] = []
        refused: list[Range] = []
        for record in iterate_records(run.payload):
            try:
                passes = found.matches(parse(record.body), self._client)
            except MessageTypeError:
                passes = False
            ranges = kept if passes else refused
            sequence = record.sequence
            if ranges and ranges[-1][1] == sequence - 1:
                ranges[-1] = (ranges[-1][0], sequence)
            else:
                ranges.append((sequence, sequence))
        if not refused:
            return PreparedRun((run,))
        left = run.select(kept) if kept else None
        return PreparedRun(
            () if left is None else (left,),
            (self._refused(run, refused, "publish such a message to"),),
        )
