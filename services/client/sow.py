"""A client asks for the state of the world: queries, and subscriptions that begin with one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from raylay.services.client.arguments import remembered_as, sow_keys
from raylay.services.client.base import QUEUE_BYTES_MAX_DEFAULT
from raylay.services.client.keywords import checks_keywords
from raylay.services.client.queries import PendingQuery, QueryReplay, QuerySubscription
from raylay.services.client.sow_query import SowQuery
from raylay.services.client.sow_replay import SowReplay
from raylay.services.client.subscribe import SubscribeOperations
from raylay.services.client.subscription import Subscription

ROWS_A_FRAME = 100
"""Asked for when nothing else is: a frame costs the instance and the client more than a row."""


class SowOperations(SubscribeOperations):
    """The SOW operations of a client (docs/sow.md)."""

    @checks_keywords
    def sow(
        self,
        topic: str,
        *,
        message_type: str = "",
        filter: str = "",
        order_by: str = "",
        top_n: int | None = None,
        skip_n: int = 0,
        select: str = "",
        keys: Sequence[bytes] | None = None,
        as_of: str = "",
        non_regex_topic: bool = False,
        batch: int = ROWS_A_FRAME,
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        timeout_s: float = 30.0,
    ) -> SowQuery:
        """Asks for the records of a SOW topic: `async for row in client.sow("orders")`, or `rows =
        await client.sow("orders").all()`. It is sent, and refused, when the first row is asked for
        (`SowQuery`).

        Args:
            topic: literal, or a regular expression.
            message_type: only topics of this type; empty: any.
            filter: only records that pass it (docs/filters.md).
            order_by: `/price DESC, /symbol`; empty: no order that may be relied on.
            top_n, skip_n: so many rows at most, behind so many that are left out.
            select: the fields that are sent: `[-/,+/price]`.
            keys: only the records of these SOW keys.
            as_of: what there was then, on a topic with history: `20260102T030405Z`.
            batch: rows a frame, at most.
            queue_bytes_max: bytes that wait for the consumer before reading stops.
            non_regex_topic: `topic` is a literal name, whatever characters it has.
            timeout_s: for the server's answer.

        Raises:
            TypeError: a keyword argument is misspelt.
        """
        given = self._given(
            filter=filter,
            order_by=order_by,
            top_n=top_n,
            skip_n=skip_n or None,
            select=select,
            keys=sow_keys(keys),
            as_of=as_of,
            non_regex_topic=non_regex_topic,
            batch=batch,
        )
        self._subscription_number += 1
        query = PendingQuery(f"query-{self._subscription_number}", topic, message_type, given)
        return SowQuery(
            query,
            queue_bytes_max,
            self._congestion_changed,
            self._unsubscribe,
            partial(self._begin_asking, timeout_s=timeout_s),
        )

    @checks_keywords
    async def sow_and_subscribe(
        self,
        topic: str,
        *,
        message_type: str = "",
        filter: str = "",
        order_by: str = "",
        select: str = "",
        keys: Sequence[bytes] | None = None,
        oof: bool = False,
        delta: bool = False,
        no_empties: bool = False,
        no_sowkey: bool = False,
        batch: int = ROWS_A_FRAME,
        bookmark: str = "",
        bookmark_not_found: str = "",
        fully_durable: bool = False,
        rate: str = "",
        rate_max_gap: str = "",
        persisted_ms: int | None = None,
        non_regex_topic: bool = False,
        subscription_id: str = "",
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        timeout_s: float = 30.0,
    ) -> Subscription:
        """The records of a SOW topic, and then every change of them: nothing between is lost, and
        nothing comes twice. Messages say by `kind` what they are: `sow` a record that was there,
        `publish` a change, `oof` what left. `group_end` is set when all records have come.

        It goes on at another instance: of what that has, only what the consumer does not hold is
        handed out (services/client/delivered_rows.py). The client keeps about 200 bytes a record
        for it.

        Args:
            oof: tells, as messages of kind `oof` with a `reason`, of records that are deleted or
                expired, or do not pass the filter any more.
            delta: changes come with the key fields and what has changed, and nothing else.
            no_empties: of fields that a record lost, a delta says nothing.
            no_sowkey: deltas come without SOW key.
            bookmark: the records as they were there, on a topic with history, and then every
                message behind it: a time, a bookmark, a list, a range, `EPOCH`. On others, and with
                `NOW`, the records as they are. Deletions are not told of; `oof`, `delta`, `select`
                and `keys` do not go with it. It goes on exactly where it was, after a failover and,
                with a bookmark store, after a restart: without rows then (`SowReplay`).
            bookmark_not_found: `now`, `epoch` or `fail`.
            subscription_id: made up when it is not given; with a bookmark store from topic, type
                and filter.
            fully_durable, rate, rate_max_gap, persisted_ms: As of `subscribe`, with a bookmark.
            the others: as of `sow`.

        Raises:
            CommandFailed: the server refused, with its reason (`bad_filter`, …).
            BookmarkNotFound: with `bookmark_not_found="fail"`.
            ConnectionLost: no server answered in time; NoSafeInstance: those left are not safe.
            LocalProtocolError: the id is in use.
            TypeError: a keyword argument is misspelt.
        """
        options = self._given(
            filter=filter,
            order_by=order_by,
            select=select,
            keys=sow_keys(keys),
            oof=oof,
            delta=delta,
            no_empties=no_empties,
            no_sowkey=no_sowkey,
            batch=batch,
            bookmark_not_found=bookmark_not_found,
            fully_durable=fully_durable,
            rate=rate,
            rate_max_gap=rate_max_gap,
            persisted_ms=persisted_ms,
            non_regex_topic=non_regex_topic,
        )
        store = self._bookmark_store if bookmark else None
        if not subscription_id and store is not None:
            subscription_id = f"sow|{remembered_as(topic, message_type, filter)}"
        if not subscription_id:
            self._subscription_number += 1
            subscription_id = f"sub-{self._subscription_number}"
        asked: QueryReplay | QuerySubscription
        subscription: Subscription
        taken = self._tell_tracer if self._tracer is not None else None
        shell = queue_bytes_max, self._congestion_changed, self._unsubscribe
        if bookmark:
            asked = QueryReplay(subscription_id, topic, message_type, bookmark, options, store)
            changed = None if store is None else self._bookmarks_changed
            subscription = SowReplay(asked, *shell, changed, taken, self._replace)
        else:
            asked = QuerySubscription(subscription_id, topic, message_type, options)
            subscription = Subscription(asked, *shell, None, taken, self._replace)
        await self._begin(subscription, asked, timeout_s)
        return subscription

    @checks_keywords
    async def delta_subscribe(
        self,
        topic: str,
        *,
        message_type: str = "",
        filter: str = "",
        select: str = "",
        oof: bool = False,
        no_empties: bool = False,
        no_sowkey: bool = False,
        non_regex_topic: bool = False,
        subscription_id: str = "",
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        timeout_s: float = 30.0,
    ) -> Subscription:
        """Subscribes to what changes of the records of a SOW topic: key fields and changed fields.
        The arguments and errors of `subscribe`; a delta subscription has no bookmark."""
        return await self.subscribe(
            topic,
            message_type=message_type,
            filter=filter,
            select=select,
            oof=oof,
            delta=True,
            no_empties=no_empties,
            no_sowkey=no_sowkey,
            non_regex_topic=non_regex_topic,
            subscription_id=subscription_id,
            queue_bytes_max=queue_bytes_max,
            timeout_s=timeout_s,
        )

    async def _begin_asking(self, asked: SowQuery, query: PendingQuery, timeout_s: float) -> None:
        await self._begin(asked, query, timeout_s)
