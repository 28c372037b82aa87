"""Durable subscriptions at instances with TLS, users and permissions: the place is of the user who
has the name, over restarts and at the other instance."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from end_to_end.test_durable_subscriptions import publish, run, take
from support.instance_processes import Server, Servers, pair
from support.tls_files import tls_files

from raylay.services.client import Client, Subscription
from raylay.services.client.named_readers import ReaderPlace
from raylay.services.config.transport import CLIENT_TRANSPORT, TransportConfig
from raylay.services.errors import CommandFailed, RaylayError
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.security.modules import ModuleConfig

pytestmark = pytest.mark.covers("Configuration", "a durable subscription's name is its user's")
PASSWORD = "words"
ORDERS = {"topic": "orders", "read": True}
PERMISSIONS: dict[str, Any] = {
    "desk": {"logon": True, "topic": [{**ORDERS, "write": True}]},
    "anna": {"logon": True, "client-names": ["billing.*"], "topic": [ORDERS]},
    "ben": {"logon": True, "topic": [ORDERS]},
    "carl": {"logon": True, "topic": [{"topic": "trades", "read": True}]},
}


def guarded(servers: Servers, path: Path) -> tuple[Server, Server]:
    hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    passwords, permissions = path / "passwords", path / "permissions.json"
    passwords.write_text(
        "".join(f"{user}:{hasher.hash(PASSWORD)}\n" for user in PERMISSIONS), encoding="ascii"
    )
    permissions.write_text(json.dumps(PERMISSIONS), encoding="ascii")
    transport = TransportConfig(
        CLIENT_TRANSPORT,
        tls=tls_files().serving(),
        authentication=ModuleConfig("passwords", {"File": str(passwords)}),
        entitlement=ModuleConfig("permissions", {"File": str(permissions)}),
    )
    return pair(servers, path, DowngradePolicy(300), of_each={"client_transports": (transport,)})


def client_of(user: str, *given: Server, name: str = "") -> Client:
    return Client(
        name or f"{user}-program",
        [each.address for each in given],
        failover="any",
        user_id=user,
        password=PASSWORD,
        tls=tls_files().dialling(),
    )


async def place_of(
    client: Client, wanted: Callable[[ReaderPlace | None], bool]
) -> ReaderPlace | None:
    """Returns the place that the client's instance keeps, as soon as it is the wanted one."""
    while not wanted(found := await client.readers.place("billing")):
        await asyncio.sleep(0.05)
    return found


async def numbers_upto(subscription: Subscription, last: int) -> AsyncIterator[int]:
    async for message in subscription:
        yield int(message.body)
        if int(message.body) == last:
            return


@run
async def test_a_place_is_kept_over_a_restart_and_at_the_other_instance(
    servers: Servers, path: Path
) -> None:
    one, other = guarded(servers, path)
    async with client_of("desk", one, other) as desk:
        await publish(desk, 1, 100)
        # The user's name admits the client, and its connections to the other instances.
        async with client_of("anna", one, other, name="billing-desk") as anna:
            orders = await anna.subscribe("orders", durable="billing")
            assert anna.instance == "A" and await take(orders, 100) == list(range(1, 101))
        async with client_of("anna", other, name="billing-look") as anna:
            await place_of(anna, lambda found: found is not None and found.have.count >= 100)
        await publish(desk, 101, 120)
        other.kill()
        one.kill()
        one.start()
        other.start()
    async with client_of("anna", one, name="billing-desk") as anna:
        orders = await anna.subscribe("orders", durable="billing")
        assert await take(orders, 20) == list(range(101, 121)), "each once"
    async with client_of("anna", other, name="billing-desk") as anna:
        orders = await anna.subscribe("orders", durable="billing")
        async with client_of("desk", other) as desk:
            await publish(desk, 121, 121)
        # This instance knows of the first hundred, and the first instance may have told it of more.
        again = [number async for number in numbers_upto(orders, 121)]
        assert again == list(range(again[0], 122)) and again[0] >= 101


@run
async def test_nobody_else_takes_reads_or_drops_the_place(servers: Servers, path: Path) -> None:
    one, other = guarded(servers, path)
    async with client_of("desk", one, other) as desk:
        await publish(desk, 1, 10)
    async with client_of("anna", one, other, name="billing-desk") as anna:
        orders = await anna.subscribe("orders", durable="billing")
        assert await take(orders, 10) == list(range(1, 11))
    for server in (one, other):
        async with client_of("anna", server, name="billing-look") as anna:
            before = await place_of(anna, lambda found: found is not None)
            for user in ("ben", "carl", "desk"):
                async with client_of(user, server) as thief:
                    for attempt in (
                        thief.subscribe("orders", durable="billing"),
                        thief.readers.place("billing"),
                        thief.readers.drop("billing"),
                    ):
                        with pytest.raises(RaylayError, match="another user's"):
                            await attempt
                    assert await thief.readers.known() == []
            assert await anna.readers.place("billing") == before
            assert [each["name"] for each in await anna.readers.known()] == ["billing"]
            await anna.readers.drop("billing")
            assert await anna.readers.place("billing") is None
            assert await anna.readers.known() == []


@run
async def test_who_may_not_read_the_topic_leaves_no_place(servers: Servers, path: Path) -> None:
    one, _ = guarded(servers, path)
    async with client_of("carl", one) as carl:
        with pytest.raises(CommandFailed, match=r"not_entitled|may not"):
            await carl.subscribe("orders", durable="billing")
        assert await carl.readers.known() == []
