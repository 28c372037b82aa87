"""Aggregated queries and subscriptions: views without a name, which clients ask for by projection
and grouping (behaviour.md 4.4).

A view is shared by all who ask for the same topic, filter, projection and grouping; a client's row
filter is part of the filter. It is built in turns from the present records while later changes are
folded at once: a change that the scan meets again does no harm, and the scan never takes an older
value. It ends with its last user.

Its records carry the name of the topic under it. Its followers find it by a name of its own, which
no client can write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from raylay.services.errors import (
    CorruptRecord,
    ExpressionError,
    MessageTypeError,
    RemoteProtocolError,
    StorageError,
)
from raylay.services.expressions.expression import (
    CHARACTER_STEPS,
    Expression,
    ExpressionUse,
    filter_of,
)
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import Functions
from raylay.services.expressions.work import EvaluationAccount
from raylay.services.messages.records import Run
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.sow.query.record_scan import PresentScan
from raylay.services.sow.state import decoded
from raylay.services.sow.topic import SowChange, SowTopic
from raylay.services.subscriptions.costly import TOO_COSTLY
from raylay.services.subscriptions.filtered import surroundings_of
from raylay.services.subscriptions.follow_terms import AggregationTerms
from raylay.services.subscriptions.matching import UNNAMED, FilterOwner, TopicFilter
from raylay.services.views.definition import MEMORY_BYTES_MAX_DEFAULT, ViewDefinition
from raylay.services.views.sources import SourceTopic
from raylay.services.views.view import View, ViewPlan, view_plan

AGGREGATED_FILTER = ExpressionUse(
    "the filter of an aggregated query", frozenset(("client", "instance")), deterministic=True
)
VIEWS_MAX = 1_000
"""Number of different aggregations at an instance. One user has half of them at most."""
TEXT_CHARACTERS_MAX = 16 * 1024
"""Characters of a projection and its grouping together: to compile more would take long."""
MEMORY_BYTES_MAX = 2 * MEMORY_BYTES_MAX_DEFAULT
"""Approximate memory of all aggregations of an instance together."""
TAKEN_AT_ONCE = 64
"""Number of records of weight 1 that a build takes between two looks at the clock."""
WEIGHT_CHARACTERS = 512
"""Characters of a projection that take about as long to fold as a record of weight 1."""
WEIGHED_EVERY = 256
"""Number of folded changes after which the memory is looked at."""
Ready = Callable[[str], None]
Charge = tuple[int, int]
"""A session, and the difference of the bytes that it is charged."""


class AggregatedBatch(Protocol):
    """A folded commit (`CommitBatch`)."""

    changes: list[SowChange]
    last_txid: int


class AggregatedQueues(Protocol):
    """The queues of an instance, whose messages are aggregated as records (`QueueManager`)."""

    def follow(self, name: str, message_type: str) -> SowTopic | None:
        """Returns the messages of a queue as a topic; None: there is no such queue."""

    def is_told(self, topic: SowTopic) -> bool:
        """Returns whether a topic is no queue's, or has all messages of the queue."""

    def unfollow(self, topic: SowTopic) -> None:
        """Notes that nothing is over a topic any more."""


class _Key(NamedTuple):
    """The part of an aggregation that its users share."""

    topic: str
    message_type: str
    filter: str
    projection: tuple[str, ...]
    grouping: tuple[str, ...]


class AggregatedView:
    """One view without a name, and its users. It belongs to `AggregatedViews`.

    Attributes:
        view: the view; its topic has the records.
        users: the queries and subscriptions that share it, as long as they last.
        scan: the records that are still to be folded; None: the view is built.
        weight: cost of the fold of a record, relative to that of a usual view: a client may ask for
            hundreds of aggregates.
    """

    __slots__ = ("effort", "filter", "key", "scan", "takes", "users", "view", "weight")

    def __init__(
        self, key: _Key, view: View, filter_: Expression | None, effort: EvaluationAccount
    ) -> None:
        self.key = key
        self.view = view
        self.filter = filter_
        """The filter as its first user wrote it, which is counted for that user while it exists."""
        self.effort = effort
        self.users: dict[AggregatedUse, None] = {}
        self.scan: PresentScan | None = view.under[0].state.present()
        self.takes = 0
        self.weight = 1 + sum(map(len, key.projection)) // WEIGHT_CHARACTERS

    @property
    def source(self) -> SowTopic:
        """Returns the topic under the view."""
        return self.view.under[0]

    @property
    def topic(self) -> SowTopic:
        return self.view.topic

    @property
    def is_wanted(self) -> bool:
        """Returns whether the view is still to be folded."""
        return bool(self.users) and not self.topic.refusal

    def close(self, refusal: str) -> None:
        """Takes the view out of service, because its records would be wrong from now on."""
        self.scan = None
        self.view.close(refusal)


class AggregatedUse:
    """The use of a view by one query or subscription. A query waits until it is ready.

    Args:
        owner: the user for whom the view is counted, by identity; None: nobody.

    Attributes:
        terms: the aggregation as the client asked for it.
        session: the client's session.
        follows: whether it is a subscription.
        charged_bytes: memory that the client is charged for it.
    """

    __slots__ = (
        "_of",
        "_owner",
        "_ready",
        "_views",
        "charged_bytes",
        "follows",
        "session",
        "terms",
    )

    def __init__(
        self,
        views: AggregatedViews,
        of: AggregatedView,
        terms: AggregationTerms,
        owner: object,
        session: int,
        follows: bool,
    ) -> None:
        self.terms = terms
        self.session = session
        self.follows = follows
        self.charged_bytes = 0
        self._views = views
        self._of = of
        self._owner = owner
        self._ready: Ready | None = None

    @property
    def topic(self) -> SowTopic:
        """Returns the aggregated records, as a topic that can be queried and followed."""
        return self._of.topic

    @property
    def wanted(self) -> TopicFilter:
        """Returns the filter by which a subscription follows the records."""
        topic = self._of.topic
        return TopicFilter(
            topic.name, frozenset((topic.type_name,)), shown_as=self.terms.topic.encode()
        )

    @property
    def owner(self) -> object:
        """Returns the user for whom the view is counted, by identity; None: nobody."""
        return self._owner

    @property
    def is_ready(self) -> bool:
        """Returns whether the view is built, or will never be."""
        return self._of.scan is None

    def when_ready(self, ready: Ready) -> None:
        """Sets the function that is called, once, when the view is built, with an empty text; or
        when it never will be, with the reason as a sentence."""
        self._ready = ready

    def told(self) -> None:
        """Calls the function of `when_ready`, if it was not called yet."""
        ready, self._ready = self._ready, None
        if ready is not None:
            ready(self._of.topic.refusal)

    def release(self) -> None:
        """Ends the use. Further calls have no effect."""
        self._ready = None
        self._views.released(self._of, self)


class AggregatedViews:
    """The views without a name of an instance, as a feature of the folds. Enlisted while there is
    any.

    Invariant: each view has a user, or is out of service.
    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        kinds: the message types.
        find: returns the SOW topic of a topic and message type; None: there is none.
        functions: the functions that expressions may use.
        enlist: enlists the feature (True), or ends that.
        wake: called when there is something to build.
        memory_bytes_max: limit on the memory of one view, and of all together.
        queues: the queues; None: there are none.
    """

    name = "aggregated"
    may_be_ahead = False

    def __init__(
        self,
        kinds: MessageTypeTable,
        find: Callable[[bytes, bytes], SowTopic | None],
        functions: Functions = BUILT_IN,
        enlist: Callable[[bool], None] = lambda is_used: None,
        wake: Callable[[], None] = lambda: None,
        memory_bytes_max: tuple[int, int] = (MEMORY_BYTES_MAX_DEFAULT, MEMORY_BYTES_MAX),
        queues: AggregatedQueues | None = None,
    ) -> None:
        self._queues = queues
        self._kinds = kinds
        self._find = find
        self._functions = functions
        self._enlist = enlist
        self._wake = wake
        self._one_max, self._all_max = memory_bytes_max
        self._shared: dict[_Key, AggregatedView] = {}
        self._over: dict[int, list[AggregatedView]] = {}
        """The views over a topic, by its id."""
        self._building: list[AggregatedView] = []
        self._refused: list[SowTopic] = []
        self._returned: list[Charge] = []
        self._number = 0

    def __len__(self) -> int:
        """The number of different views."""
        return len(self._shared)

    # -- using a view ----------------------------------------------------------------------------
    def use(
        self,
        terms: AggregationTerms,
        asker: FilterOwner,
        session: int = 0,
        *,
        follows: bool = True,
    ) -> AggregatedUse:
        """Returns the use of the view that a client asks for. It may have to be built first.

        Args:
            session: the client's session.
            follows: whether it asks for a subscription.

        Raises:
            RemoteProtocolError: the view cannot be had: `no_sow`, `bad_filter`, `bad_projection`,
                `not_supported`, `too_many`, or `view_full`.
        """
        source = self._source(terms)
        try:
            return self._used(source, terms, asker, session, follows)
        except Exception:
            self._left(source)
            raise

    def _used(
        self,
        source: SowTopic,
        terms: AggregationTerms,
        asker: FilterOwner,
        session: int,
        follows: bool,
    ) -> AggregatedUse:
        found: Expression | None = None
        if terms.filter:
            found = filter_of(
                terms.filter,
                AGGREGATED_FILTER,
                self._functions,
                surroundings_of(asker),
                asker.budget,
            )
        key = _Key(
            terms.topic,
            source.definition.message_type,
            "" if found is None else found.text,
            terms.projection,
            terms.grouping,
        )
        shared = self._shared.get(key)
        if shared is None:
            self._check_number(asker)
            shared = self._made(key, source, found, asker)
        elif asker.budget is not None and asker.budget not in shared.effort.payers:
            shared.effort.payers.append(asker.budget)
        use = AggregatedUse(self, shared, terms, asker.budget, session, follows)
        shared.users[use] = None
        return use

    def _source(self, terms: AggregationTerms) -> SowTopic:
        name = terms.topic.encode()
        kind = terms.message_type
        found = self._find(name, kind.encode())
        if found is None and self._queues is not None:
            found = self._queues.follow(terms.topic, kind)
        if found is None:
            raise RemoteProtocolError(
                f"there is no SOW topic, view or queue {kind}/{terms.topic[:200]}: only what has a "
                "state of the world can be aggregated",
                "no_sow",
            )
        if found.definition.pattern:
            raise RemoteProtocolError(
                f"{terms.topic[:200]!r} is one of many topics that SOW topic "
                f"{found.definition.name} keeps by a pattern: aggregate a topic that is configured "
                "by its name",
                "not_supported",
            )
        if found.refusal:
            raise RemoteProtocolError(found.refusal, "view_full")
        return found

    def _check_number(self, asker: FilterOwner) -> None:
        if len(self._shared) >= VIEWS_MAX:
            raise RemoteProtocolError(
                f"this instance computes {VIEWS_MAX:,} different aggregations: end some, or ask "
                "for the same one as others",
                "too_many",
            )
        if asker.budget is None:
            return
        own = sum(
            any(use.owner is asker.budget for use in each.users) for each in self._shared.values()
        )
        if own >= VIEWS_MAX // 2:
            raise RemoteProtocolError(
                f"this user has {own:,} different aggregations at this instance: end some, or ask "
                "for the same one as others",
                "too_many",
            )

    def _made(
        self, key: _Key, source: SowTopic, filter_: Expression | None, asker: FilterOwner
    ) -> AggregatedView:
        payers = () if asker.budget is None else (asker.budget,)
        own = None if filter_ is None else filter_.own(*payers)
        effort = EvaluationAccount(", ".join(key.projection)) if own is None else own.effort
        effort.payers[:] = payers
        plan = self._plan(key, effort)._replace(filter=own)
        if asker.budget is not None:
            asker.budget.compiled(CHARACTER_STEPS * sum(map(len, key.projection)))
        view = View(plan, self._kinds, [source])
        self._number += 1
        view.topic.shown_as = view.topic.name
        view.topic.name = UNNAMED + str(self._number).encode()
        shared = self._shared[key] = AggregatedView(key, view, filter_, effort)
        self._over.setdefault(id(source), []).append(shared)
        self._building.append(shared)
        if len(self._shared) == 1:
            self._enlist(True)
        self._wake()
        return shared

    def _plan(self, key: _Key, effort: EvaluationAccount) -> ViewPlan:
        if sum(map(len, (*key.projection, *key.grouping))) > TEXT_CHARACTERS_MAX:
            raise RemoteProtocolError(
                f"projection and grouping have more than {TEXT_CHARACTERS_MAX:,} characters: let a "
                "view be configured for that",
                "bad_projection",
            )
        definition = ViewDefinition(
            key.topic,
            key.message_type,
            topic=key.topic,
            topic_type=key.message_type,
            projection=key.projection,
            grouping=key.grouping,
            # The memory is limited here, together with that of the others.
            memory_bytes_max=sys.maxsize,
        )
        known = [SourceTopic(key.message_type, key.topic)]
        try:
            return view_plan(definition, self._kinds, known, self._functions, effort)
        except ExpressionError as error:
            raise RemoteProtocolError(
                f"{error.expression[:200]!r} cannot be aggregated: {error}", "bad_projection"
            ) from None
        except MessageTypeError as error:
            raise RemoteProtocolError(str(error), "not_supported") from None

    def released(self, shared: AggregatedView, use: AggregatedUse) -> None:
        """Notes that a user has ended. The last one's view is dropped."""
        if use not in shared.users:
            return
        del shared.users[use]
        if use.charged_bytes:
            self._returned.append((use.session, -use.charged_bytes))
        if use.owner is not None and all(each.owner is not use.owner for each in shared.users):
            shared.effort.payers[:] = [
                each for each in shared.effort.payers if each is not use.owner
            ]
        if not shared.users and not shared.topic.refusal:
            self._drop(shared)

    def _drop(self, shared: AggregatedView) -> None:
        del self._shared[shared.key]
        over = self._over[id(shared.source)]
        over.remove(shared)
        self._left(shared.source)
        if not self._shared:
            self._enlist(False)

    def _left(self, source: SowTopic) -> None:
        """Lets a topic go, unless there are views over it."""
        if not self._over.get(id(source)):
            self._over.pop(id(source), None)
            if self._queues is not None:
                self._queues.unfollow(source)

    def _is_told(self, source: SowTopic) -> bool:
        return self._queues is None or self._queues.is_told(source)

    def look_again(self) -> None:
        """Goes on with the views that have waited for the messages of a queue."""
        for shared in self._shared.values():
            if shared.scan is not None and shared not in self._building:
                self._building.append(shared)
                self._wake()

    def _close(self, shared: AggregatedView, refusal: str) -> None:
        """Takes a view out of service. Who asks for it from now on has it built anew."""
        self._drop(shared)
        shared.close(refusal)
        self._refused.append(shared.topic)
        # Those who wait for it are told in a turn of its own, not within a fold.
        if shared not in self._building:
            self._building.append(shared)
        self._wake()

    def newly_refused(self) -> list[SowTopic]:
        """Returns the views that went out of service since the last call."""
        found, self._refused = self._refused, []
        return found

    # -- building ------------------------------------------------------------------------------
    def build(self, is_over: Callable[[], bool]) -> bool:
        """Builds the views that are not built yet, each a part in turn, until the time is over.
        Returns whether any is left."""
        building = self._building
        while building:
            shared = building.pop(0)
            if shared.is_wanted and shared.scan is not None:
                self._take_some(shared, shared.scan)
            if shared.is_wanted and shared.scan is not None:
                # The rest of a queue's messages is awaited: `look_again`.
                if not shared.scan.done:
                    building.append(shared)
            else:
                for use in tuple(shared.users):
                    use.told()
            if is_over():
                break
        return bool(building)

    def _take_some(self, shared: AggregatedView, scan: PresentScan) -> None:
        view = shared.view
        # The changes before the view is built are told to nobody.
        view.is_followed = False
        try:
            for key, value in scan.take(max(1, TAKEN_AT_ONCE // shared.weight)):
                record = decoded(key[1:], value)
                view.take(0, record, record.key, record.txid, record.updated_us)
            view.flush()
        except (StorageError, CorruptRecord) as error:
            self._close(shared, f"{view.definition.name} cannot be read: {error}")
            return
        except Exception as error:
            self._failed(shared, error)
            return
        if scan.done and self._is_told(shared.source):
            shared.scan = None
        shared.takes += TAKEN_AT_ONCE
        self._look_at(shared)

    # -- folding -------------------------------------------------------------------------------
    def fold(self, batch: AggregatedBatch) -> None:
        """Folds a commit's changes, and appends those of the views."""
        changes, over = batch.changes, self._over
        for at in range(len(changes)):
            change = changes[at]
            for shared in tuple(over.get(id(change.topic), ())):
                self._take(shared, change, batch)
        for shared in [each for each in self._shared.values() if each.source.refusal]:
            self._close(
                shared, f"the aggregated topic went out of service: {shared.source.refusal}"
            )

    def _take(self, shared: AggregatedView, change: SowChange, batch: AggregatedBatch) -> None:
        _, previous, current, _ = change.change
        told = current or previous
        assert told is not None, "a change has a record before or after it"
        view = shared.view
        view.is_followed = shared.scan is None and any(use.follows for use in shared.users)
        try:
            view.take(0, current, change.change.key, batch.last_txid, told.updated_us)
            batch.changes += view.flush()
        except Exception as error:
            self._failed(shared, error)
            return
        shared.takes += 1
        if shared.takes % WEIGHED_EVERY == 0 or shared.effort.is_stopped:
            self._look_at(shared)

    def _failed(self, shared: AggregatedView, error: Exception) -> None:
        """Ends an aggregation after an unforeseen error. What a client asks for must not end the
        instance, as a fold that fails would."""
        self._close(
            shared,
            f"the aggregation of {shared.view.definition.name} failed "
            f"({type(error).__name__}: {str(error)[:200]}): this is a fault of the instance",
        )

    def _look_at(self, shared: AggregatedView) -> None:
        """Takes a view out of service that needs too much."""
        name, used_bytes = shared.view.definition.name, shared.view.memory_bytes
        if shared.effort.is_stopped:
            self._close(shared, TOO_COSTLY)
        elif used_bytes > self._one_max:
            self._close(
                shared,
                f"this aggregation of {name} would take more than {self._one_max:,} bytes at this "
                "instance: group by fewer values, or filter more records out",
            )
        elif used_bytes > self._all_max // 8 and self.memory_bytes > self._all_max:
            self._close(
                shared,
                f"the aggregations of all clients would take more than {self._all_max:,} bytes at "
                f"this instance, and this one of {name} takes {used_bytes:,}: end some, group by "
                "fewer values, or filter more records out",
            )

    def is_over(self, topic: SowTopic) -> bool:
        """Returns whether a view here needs the changes of a topic."""
        return id(topic) in self._over

    def failed(self, committed_txid: int) -> None:
        """Does nothing: staged runs are not folded."""

    def weigh(self, run: Run) -> int:
        """Returns the weight that the views add to the records of a run."""
        over = self._over
        if not over:
            return 0
        source = self._find(run.topic, run.message_type)
        return 0 if source is None else sum(each.weight for each in over.get(id(source), ()))

    def charges(self) -> list[Charge]:
        """Returns the differences of what sessions are charged since the last call: the memory of a
        view is shared out to its users."""
        found, self._returned = self._returned, []
        for shared in self._shared.values():
            share = shared.view.memory_bytes // max(1, len(shared.users))
            for use in shared.users:
                if use.charged_bytes != share:
                    found.append((use.session, share - use.charged_bytes))
                    use.charged_bytes = share
        return found

    # -- status --------------------------------------------------------------------------------
    @property
    def memory_bytes(self) -> int:
        """Returns the approximate memory of all views."""
        return sum(each.view.memory_bytes for each in self._shared.values())

    def status(self) -> Sequence[dict[str, object]]:
        """Returns the status of each view."""
        return [
            {
                "topic": key.topic,
                "message_type": key.message_type,
                "filter": key.filter,
                "projection": list(key.projection),
                "grouping": list(key.grouping),
                "users": len(shared.users),
                "is_ready": shared.scan is None,
                **shared.view.status(),
            }
            for key, shared in self._shared.items()
        ]
