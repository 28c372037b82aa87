"""Durable subscriptions of a client: asks the instances for the place of a name, and tells each of
them how far the application has come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from raylay.services.client.arguments import Tls
from raylay.services.client.machine import ClientOptions
from raylay.services.client.named_readers import ReaderCommands, ReaderPlace
from raylay.services.client.runtime import ClientRuntime
from raylay.services.client.subscriptions.durable_place import (
    DurablePlace,
    DurableTerms,
    start_of,
)
from raylay.services.client.subscriptions.subscriber import Subscriber
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.errors import ConnectionLost, RaylayError
from raylay.services.messages.bookmarks import EPOCH
from raylay.services.messages.ranges import PublisherRanges

PLACE_INTERVAL_S = 1.0
"""Seconds between two looks at how far the application is: the instances are told what is new."""
RETRY_S = 5.0
"""Seconds after which an instance is tried again that could not be reached."""
OTHERS_WAIT_S = 3.0
"""Seconds for which another instance is waited for, when a subscription begins."""
CLOSE_WAIT_S = 2.0
"""Seconds for which a client that closes waits until the instances have been told."""
ALIVE_PART = 4
"""Divisor of the time after which a place expires: it is told that often even without a change."""

_LOG = logging.getLogger(__name__)

Addresses = tuple[str, ...]


class PlaceClient(Protocol):
    """The parts of a client of one other instance that are used here (`Client`)."""

    readers: ReaderCommands

    @property
    def instance(self) -> str:
        """Returns the name of the instance to which the client is logged on; empty: none."""

    async def connect(self) -> None:
        """Connects."""

    async def close(self, *, flush: bool = True) -> None:
        """Ends the client."""


MakePlaceClient = Callable[[Addresses], PlaceClient]


class OtherInstances:
    """Connections to the instances that a client could fail over to, by their addresses.

    Args:
        make: makes a client of the server with these addresses.

    Owner: the client's event loop.
    """

    def __init__(self, runtime: ClientRuntime, make: MakePlaceClient) -> None:
        self._runtime = runtime
        self._make = make
        self._clients: dict[Addresses, tuple[PlaceClient, str]] = {}
        """The clients, each with the instance at which it first was."""
        self._connecting: dict[Addresses, asyncio.Task[PlaceClient | None]] = {}
        self._failed_s: dict[Addresses, float] = {}
        """Times at which the last attempts failed, by the loop's clock."""

    async def found(self) -> tuple[dict[str, ReaderCommands], list[str]]:
        """Returns the commands of each other instance that can be reached, by its name, and the
        addresses at which none was found."""
        servers = self._runtime.machine.chooser.other_servers()
        clients = await asyncio.gather(*map(self._client, servers))
        found: dict[str, ReaderCommands] = {}
        silent: list[str] = []
        for addresses, client in zip(servers, clients, strict=True):
            instance = "" if client is None else client.instance
            if client is None or not instance:
                silent.append(addresses[0])
            elif instance != self._runtime.machine.instance:
                found.setdefault(instance, client.readers)
        return found, silent

    async def _client(self, addresses: Addresses) -> PlaceClient | None:
        """Returns a client of the server with these addresses; None: it cannot be reached now."""
        known, instance = self._clients.get(addresses, (None, ""))
        if known is not None:
            if known.instance == instance:
                return known
            # It was lost, or went to another instance.
            del self._clients[addresses]
            await known.close(flush=False)
        task = self._connecting.get(addresses)
        if task is None:
            failed_s = self._failed_s.get(addresses)
            if failed_s is not None and _now_s() - failed_s < RETRY_S:
                return None
            task = asyncio.ensure_future(self._connected(addresses))
            self._connecting[addresses] = task
            task.add_done_callback(lambda _: self._connecting.pop(addresses, None))
        return await asyncio.shield(task)

    async def _connected(self, addresses: Addresses) -> PlaceClient | None:
        client = self._make(addresses)
        try:
            await client.connect()
        except RaylayError as error:
            _LOG.debug("%s is not told any place: %s", addresses[0], error)
            self._failed_s[addresses] = _now_s()
            return None
        self._failed_s.pop(addresses, None)
        self._clients[addresses] = client, client.instance
        return client

    async def close(self) -> None:
        """Ends all connections."""
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        clients = list(self._clients.values())
        self._clients.clear()
        await asyncio.gather(*(client.close(flush=False) for client, _ in clients))


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def place_client(
    make: Callable[..., PlaceClient], options: ClientOptions, tls: Tls, addresses: Addresses
) -> PlaceClient:
    """Returns a client that tells one other instance the places, with the credentials of the client
    that has these options.

    Args:
        make: the class of clients.
        addresses: addresses of the instance.
    """
    return make(
        f"{options.client_name}|places|{addresses[0]}",
        list(addresses),
        group=options.group,
        allow_other_groups=options.allow_other_groups,
        failover="any",
        user_id=options.user_id,
        password=options.password,
        answers=options.answers,
        tls=tls,
        heartbeat_s=options.heartbeat_s,
        connect_timeout_s=options.connect_timeout_s,
        connect_wait_s=OTHERS_WAIT_S,
        sampling_ratio=0.0,
    )


class _Keeper:
    """One durable subscription: tells the instances its place. Owner: the client's event loop."""

    def __init__(
        self, terms: DurableTerms, have: PublisherRanges, owner: DurableSubscriptions
    ) -> None:
        self._owner = owner
        self._told: dict[str, int] = {}
        """The version of the place that each instance has."""
        self._complained: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self.place = DurablePlace(terms, have)
        self.subscription: Subscription | None = None

    def start(self, subscription: Subscription) -> None:
        """Begins to tell the place, where it has changed."""
        self.subscription = subscription
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        alive_s = self.place.terms.expires_s / ALIVE_PART
        alive_until_s = _now_s() + alive_s
        while True:
            await asyncio.sleep(min(PLACE_INTERVAL_S, alive_s))
            if self.subscription is not None:
                self.subscription.settle_finished()
            if _now_s() >= alive_until_s:
                self._told.clear()
                alive_until_s = _now_s() + alive_s
            await self.tell()

    async def tell(self, *, strict: bool = False) -> None:
        """Tells each instance the place that does not have it.

        Args:
            strict: whether an error of the instance to which the client is connected is raised.
        """
        here = self._tell(*self._owner.here(), strict=strict)
        await asyncio.gather(here, self._tell_others())

    async def _tell_others(self) -> None:
        others, _ = await self._owner.others.found()
        await asyncio.gather(*(self._tell(name, readers) for name, readers in others.items()))

    async def _tell(self, instance: str, readers: ReaderCommands, strict: bool = False) -> None:
        version, terms = self.place.version, self.place.terms
        if self._told.get(instance) == version:
            return
        try:
            await readers.tell(
                terms.name,
                terms.topic,
                self.place.have,
                expires_s=terms.expires_s,
                message_type=terms.message_type,
                filter=terms.filter,
                add=True,
            )
        except RaylayError as error:
            if strict:
                raise
            # Between two instances there is nobody to tell it.
            if instance and instance not in self._complained:
                self._complained.add(instance)
                _LOG.warning(
                    "%s is not told the place of durable subscription %s: %s",
                    instance,
                    terms.name,
                    error,
                )
            return
        self._complained.discard(instance)
        self._told[instance] = version

    async def end(self) -> None:
        """Tells the place a last time, as far as that can be done soon."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self.tell()
        except TimeoutError:
            pass  # Some messages come again.


class DurableSubscriptions:
    """The durable subscriptions of a client.

    Args:
        readers: commands of the client itself.
        make: makes a client of the server with these addresses, which tells it the places.

    Owner: the client's event loop.
    """

    def __init__(
        self,
        runtime: ClientRuntime,
        subscriber: Subscriber,
        readers: ReaderCommands,
        make: MakePlaceClient,
    ) -> None:
        self._runtime = runtime
        self._subscriber = subscriber
        self._readers = readers
        self._keepers: dict[str, _Keeper] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.others = OtherInstances(runtime, make)

    def here(self) -> tuple[str, ReaderCommands]:
        """Returns the instance to which the client is connected, and its commands."""
        return self._runtime.machine.instance, self._readers

    async def subscribe(
        self,
        terms: DurableTerms,
        bookmark: str,
        subscription_id: str,
        options: dict[str, Any],
        explicit_discard: bool,
        paused: bool,
        queue_bytes_max: int,
        timeout_s: float,
        body_type: Any,
    ) -> Subscription:
        """Begins or resumes a durable subscription; raises as `Client.subscribe`."""
        terms.check(bookmark)
        name = subscription_id or f"durable|{terms.name}"
        before = self._keepers.get(name)
        if before is not None and name not in self._runtime.subscriptions:
            self._ended(name)  # The server ended it.
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*self._ending)
                position, have = await self._start(terms, bookmark)
        except TimeoutError:
            raise ConnectionLost(
                f"no instance said the place of durable subscription {terms.name!r} within "
                f"{timeout_s} s: {self._runtime.status}"
            ) from None
        keeper = _Keeper(terms, have, self)
        what = terms.topic, terms.message_type, terms.filter, position, name
        state = self._subscriber.subscription(
            *what, options, explicit_discard, paused, keeper.place
        )
        subscription = await self._subscriber.subscribe(
            state, queue_bytes_max, timeout_s, body_type, partial(self._ended, name)
        )
        # From here on the place says where it is, also after a failover.
        state.bookmark = EPOCH
        try:
            await keeper.tell(strict=True)
        except BaseException:
            subscription.unsubscribe()
            raise
        self._keepers[name] = keeper
        keeper.start(subscription)
        return subscription

    async def _start(self, terms: DurableTerms, bookmark: str) -> tuple[str, PublisherRanges]:
        others, silent = await self.others.found()
        asked = [self._place(terms.name, readers) for readers in others.values()]
        found = await asyncio.gather(*asked)
        places = [await self._readers.place(terms.name)]
        for instance, place in zip(others, found, strict=True):
            if isinstance(place, RaylayError):
                _LOG.debug("%s does not say the place of %s: %s", instance, terms.name, place)
                silent.append(instance)
            else:
                places.append(place)
        return start_of(terms, bookmark, places, silent)

    async def _place(self, name: str, readers: ReaderCommands) -> ReaderPlace | RaylayError | None:
        try:
            return await readers.place(name)
        except RaylayError as error:
            return error

    def _ended(self, name: str) -> None:
        """Ends the place of a subscription that the application has ended."""
        keeper = self._keepers.pop(name, None)
        if keeper is not None:
            task = asyncio.ensure_future(keeper.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self, settle: bool) -> None:
        """Tells the instances all places a last time, and ends the connections.

        Args:
            settle: whether the application is done with the messages that it was handed out.
        """
        keepers = list(self._keepers.values())
        self._keepers.clear()
        for keeper in keepers:
            if keeper.subscription is None:
                continue
            if settle:
                keeper.subscription.settle()
            else:
                keeper.subscription.settle_finished()
        await asyncio.gather(*(keeper.end() for keeper in keepers), *self._ending)
        await self.others.close()
