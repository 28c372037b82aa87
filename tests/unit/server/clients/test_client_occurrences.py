"""Occurrences of clients, told to listeners (services/server/clients/client_occurrences.py)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from unit.server.clients.test_queries import CONFIG, House, ask, frames_until, in_house
from unit.test_doors import Door

from raylay.services.config.transport import TransportConfig
from raylay.services.messages.records import Command
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import encode_frame
from raylay.services.queues.definition import QueueDefinition
from raylay.services.security.modules import ModuleConfig
from raylay.services.security.permissions import Grant, read_permissions, restricted, unrestricted
from raylay.services.server.clients.client_occurrences import CONNECTION_CLOSED

KINDS = (
    "connect-client", "logon-client", "disconnect-client", "subscribe", "unsubscribe", "sow",
    "sow-delete", "authentication-failure", "entitlement-failure", "offline-start", "offline-stop",
)  # fmt: skip
FX = {"topic": [{"topic": "orders", "read": "/desk = 'fx'"}, {"topic": "public", "read": True}]}
WHOLE = replace(CONFIG, topics=(TopicRule(".*"),))

Told = tuple[str, Mapping[str, str]]


class Ear:
    """All that was told since it listens."""

    def __init__(self, house: House, kinds: tuple[str, ...] = KINDS) -> None:
        self.told: list[Told] = []
        house.server.runtime.occurrences.listen(kinds, self._take)

    def _take(self, kind: str, variables: Mapping[str, str]) -> None:
        assert all(type(each) is str for each in variables.values()), variables
        self.told.append((kind, dict(variables)))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told]

    def take(self, *kinds: str) -> list[Mapping[str, str]]:
        """The variables of what was told, which was of these kinds."""
        told, self.told = self.told, []
        assert [kind for kind, _ in told] == list(kinds)
        return [variables for _, variables in told]


def known_users(tmp_path: Path, permissions: dict[str, Any]) -> TransportConfig:
    """A transport that believes each user, and has these permissions."""
    file = tmp_path / "permissions"
    file.write_text(json.dumps(permissions))
    return TransportConfig(
        "known",
        authentication=ModuleConfig(
            "amps-default-authentication-module", {"AllowSpoofing": "true"}
        ),
        entitlement=ModuleConfig("permissions", {"File": str(file)}),
    )


async def subscribe(door: Door, name: str, topic: str = "orders", **header: Any) -> None:
    options = header.pop("o", {})
    door.send(
        encode_frame(
            {"c": "subscribe", "sub": name, "t": topic, "cid": name, "o": options, **header}
        )
    )
    await door.answer_to(name)


@pytest.mark.covers("Actions", "On Client Connect or Disconnect")
@pytest.mark.covers("Actions", "On Client Logon")
def test_connections_are_told_from_their_begin_to_their_end(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        ear = Ear(house)
        door = await house.client("amy", user_id="amy-id")
        connected, logged_on = ear.take("connect-client", "logon-client")
        name = connected["AMPS_CONNECTION_NAME"]
        assert name.startswith("solo-door-") and connected["AMPS_CLIENT_NAME"] == name
        assert logged_on["AMPS_CLIENT_NAME"] == "amy"
        assert logged_on["AMPS_CONNECTION_NAME"] == name
        assert logged_on["AMPS_AUTHENTICATION_ID"] == "amy-id"
        assert logged_on["client_address"] == door.connection.peer
        door.connection.connection_lost(None)
        (gone,) = ear.take("disconnect-client")
        assert gone["reason"] == CONNECTION_CLOSED
        assert gone["AMPS_CLIENT_NAME"] == "amy" and gone["AMPS_AUTHENTICATION_ID"] == "amy-id"

    in_house(tmp_path, visit)


@pytest.mark.covers("Actions", "On Client Connect or Disconnect")
def test_a_disconnect_has_the_reason_that_the_client_was_given(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        ear = Ear(house, ("disconnect-client",))
        door = await house.client("amy")
        again = await house.client("amy")
        assert [each["reason"] for each in ear.take("disconnect-client")] == ["name in use"]
        assert door.transport.is_over
        again.connection.end("heartbeat", "nothing came")
        late = await house.client("late")
        late.send(encode_frame({"c": "logon", "v": 1, "client_name": "late", "cid": "again"}))
        nobody = ear.take("disconnect-client", "disconnect-client")
        assert [each["reason"] for each in nobody] == ["heartbeat", "bad command"]

    in_house(tmp_path, visit)


@pytest.mark.covers("Actions", "On Subscribe or Unsubscribe")
def test_subscriptions_are_told_with_what_the_client_asked_for(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("amy")
        ear = Ear(house)
        await subscribe(door, "live", mt="json", o={"filter": "/id > 1"})
        await subscribe(door, "oof", o={"oof": True, "filter": "/id > 2"})
        await subscribe(door, "replay", bm="0", o={"rate": "500", "filter": "/id > 3"})
        await subscribe(door, "regex", topic="^ord")
        live, oof, replay, regex = ear.take(*["subscribe"] * 4)
        assert live["AMPS_TOPIC"] == "orders" and live["AMPS_MESSAGE_TYPE"] == "json"
        assert live["AMPS_FILTER"] == "/id > 1" and live["AMPS_OPTIONS"] == ""
        assert live["sub_id"] == "live" and live["AMPS_CLIENT_NAME"] == "amy"
        assert live["command"] == "subscribe" and live["query_id"] == ""
        assert oof["AMPS_OPTIONS"] == "oof" and oof["AMPS_MESSAGE_TYPE"] == ""
        assert replay["AMPS_FILTER"] == "/id > 3"
        assert replay["AMPS_OPTIONS"].startswith("bookmark=0,rate=")
        assert regex["AMPS_TOPIC"] == "^ord"
        await subscribe(door, "live", mt="json", o={"filter": "/id > 9", "replace": True})
        (live,) = ear.take("subscribe")
        assert live["AMPS_FILTER"] == "/id > 9" and live["AMPS_OPTIONS"] == "replace"
        door.send(encode_frame({"c": "unsubscribe", "sub": "live", "cid": "u"}))
        door.send(encode_frame({"c": "unsubscribe", "sub": "replay", "cid": "u"}))
        live, replay = ear.take("unsubscribe", "unsubscribe")
        assert live["AMPS_FILTER"] == "/id > 9" and live["reason"] == "unsubscribe"
        assert replay["AMPS_OPTIONS"].startswith("bookmark=0,rate=")
        door.connection.connection_lost(None)
        _, *ended = ear.take("disconnect-client", "unsubscribe", "unsubscribe")
        assert {each["sub_id"]: each["reason"] for each in ended} == {
            "oof": "disconnect", "regex": "disconnect",
        }  # fmt: skip

    in_house(tmp_path, visit, WHOLE)


def test_a_refused_subscription_is_not_told(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("amy")
        ear = Ear(house)
        await subscribe(door, "one", o={"filter": "/id >"})
        await subscribe(door, "two", bm="5|", o={"bookmark_not_found": "fail"})
        await subscribe(door, "three", topic="(")
        assert not ear.told

    in_house(tmp_path, visit)


def test_queries_are_told_and_those_that_subscribe_twice(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("amy")
        ear = Ear(house)
        door.send(ask("q", filter="/id > 1", top_n=3, order_by="/id"))
        await frames_until(door, lambda each: each["c"] == "group_end")
        (query,) = ear.take("sow")
        assert query["query_id"] == "q" and query["sub_id"] == ""
        assert query["AMPS_TOPIC"] == "orders" and query["AMPS_FILTER"] == "/id > 1"
        assert query["AMPS_OPTIONS"] == "top_n=3,order_by=[/id]"
        door.send(ask("both", command="sow_and_subscribe", oof=True))
        await frames_until(door, lambda each: each["c"] == "group_end")
        began, asked = sorted(ear.told, key=lambda each: each[0], reverse=True)
        assert (began[0], asked[0]) == ("subscribe", "sow")
        for _, each in (began, asked):
            assert each["query_id"] == each["sub_id"] == "both"
            assert each["command"] == "sow_and_subscribe"
        ear.told.clear()
        door.send(ask("bad", filter="/id >"))
        assert not ear.told

    in_house(tmp_path, visit)


def test_the_filter_of_permissions_is_told_apart_from_the_clients_own(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("amy")
        door.connection.permissions = read_permissions(FX, "test")
        ear = Ear(house)
        await subscribe(door, "own", o={"filter": "/id > 1"})
        await subscribe(door, "none")
        await subscribe(door, "regex", topic="^orders$")
        door.send(ask("q", filter="/id > 2"))
        await frames_until(door, lambda each: each["c"] == "group_end")
        own, none, regex, query = ear.take("subscribe", "subscribe", "subscribe", "sow")
        assert own["AMPS_FILTER"] == "/id > 1" and own["entitlement_filter"] == "/desk = 'fx'"
        assert none["AMPS_FILTER"] == "" and none["entitlement_filter"] == "/desk = 'fx'"
        assert regex["entitlement_filter"] == ""
        assert query["AMPS_FILTER"] == "/id > 2" and query["entitlement_filter"] == "/desk = 'fx'"

    in_house(tmp_path, visit, WHOLE)


@pytest.mark.parametrize("own", ["", "/a = 1", "(/a = 1) AND (/b = 2)"])
@pytest.mark.parametrize("restriction", ["", "/desk = 'fx'"])
def test_a_combined_filter_is_taken_apart(own: str, restriction: str) -> None:
    combined = restricted(own, Grant(True, restriction))
    assert unrestricted(combined, restriction) == own


def test_what_permissions_do_not_allow_is_told(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("amy", "known", user_id="amy")
        ear = Ear(house)
        await subscribe(door, "s", topic="secret", mt="json")
        door.send(ask("q", topic="secret"), ask("b", topic="secret", command="sow_and_subscribe"))
        door.send(encode_frame({"c": "p", "t": "secret", "cid": "p", "a": "persisted"}, b"{}"))
        denied = ear.take(*["entitlement-failure"] * 4)
        assert [each["command"] for each in denied] == [
            "subscribe", "sow", "sow_and_subscribe", "publish",
        ]  # fmt: skip
        assert {each["AMPS_TOPIC"] for each in denied} == {"secret"}
        assert {each["reason"] for each in denied} == {"entitlement"}
        assert denied[0]["AMPS_MESSAGE_TYPE"] == "json" and "secret" in denied[0]["text"]
        payload = house.records("amy", b"{}", topic="secret")
        door.send(encode_frame({"c": "pb", "n": 1}, payload))
        await door.until(lambda each: each.get("a") == "persisted" and "s" in each)
        (denied,) = ear.take("entitlement-failure")
        assert denied["command"] == "publish" and "secret" in denied["text"]

    known = known_users(tmp_path, {"amy": {"logon": True, **FX}})
    in_house(tmp_path, visit, replace(WHOLE, client_transports=(*WHOLE.client_transports, known)))


def test_refused_logons_are_told_by_whether_the_user_is_known(tmp_path: Path) -> None:
    nobody = TransportConfig(
        "nobody", authentication=ModuleConfig("amps-default-no-authentication-module")
    )
    known = known_users(tmp_path, {"amy": {"logon": False}})

    async def visit(house: House) -> None:
        ear = Ear(house, ("authentication-failure", "entitlement-failure", "disconnect-client"))
        ended = asyncio.Event()
        house.server.runtime.occurrences.listen(["disconnect-client"], lambda *_: ended.set())
        for transport, user in (("nobody", "eve"), ("known", "amy")):
            ended.clear()
            await house.client(user, transport, user_id=user)
            await ended.wait()
        refused, gone, denied, left = ear.take(
            "authentication-failure", "disconnect-client", "entitlement-failure",
            "disconnect-client",
        )  # fmt: skip
        assert refused["AMPS_CLIENT_NAME"] == refused["AMPS_AUTHENTICATION_ID"] == "eve"
        assert refused["reason"] == "auth" and gone["reason"] == "auth"
        assert refused["transport"] == "nobody"
        assert denied["AMPS_AUTHENTICATION_ID"] == "amy" and denied["reason"] == "entitlement"
        assert left["reason"] == "auth", "as it was told"

    config = replace(CONFIG, client_transports=(*CONFIG.client_transports, nobody, known))
    in_house(tmp_path, visit, config)


def test_deletes_are_told_with_their_filter(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("amy")
        ear = Ear(house)
        await house.publish(door, "amy", {"id": 1}, {"id": 2})
        for body in ({"filter": "/id = 1"}, {"data": b'{"id": 2}'}):
            await house.publish(door, "amy", msgpack.packb(body), command=Command.DELETE)
        first, second = ear.take("sow-delete", "sow-delete")
        assert first["AMPS_TOPIC"] == "orders" and first["AMPS_FILTER"] == "/id = 1"
        assert first["AMPS_MESSAGE_TYPE"] == "json" and second["AMPS_FILTER"] == ""
        door.send(
            encode_frame(
                {"c": "p", "t": "orders", "cid": "d", "a": "persisted", "cmd": 2, "mt": "json"},
                msgpack.packb({"filter": "/id = 7"}),
            )
        )
        await door.answer_to("d")
        assert ear.take("sow-delete")[0]["AMPS_FILTER"] == "/id = 7"

    in_house(tmp_path, visit)


@pytest.mark.covers("Actions", "On Subscribe or Unsubscribe")
def test_subscriptions_of_queues_are_told(tmp_path: Path) -> None:
    async def visit(house: House) -> None:
        door = await house.client("amy")
        ear = Ear(house)
        await subscribe(door, "q", topic="jobs", o={"max_backlog": 7, "filter": "/id > 1"})
        (began,) = ear.take("subscribe")
        assert began["AMPS_TOPIC"] == "jobs" and began["AMPS_MESSAGE_TYPE"] == "json"
        assert began["AMPS_OPTIONS"] == "max_backlog=7" and began["AMPS_FILTER"] == "/id > 1"
        await subscribe(door, "q", topic="jobs", o={"max_backlog": 8, "replace": True})
        assert ear.take("subscribe")[0]["AMPS_OPTIONS"] == "replace,max_backlog=8"
        await subscribe(door, "other", topic="jobs")
        ear.take("subscribe")
        door.send(encode_frame({"c": "unsubscribe", "sub": "q", "cid": "u"}))
        (ended,) = ear.take("unsubscribe")
        assert ended["AMPS_OPTIONS"] == "max_backlog=8" and ended["reason"] == "unsubscribe"
        door.connection.connection_lost(None)
        _, ended = ear.take("disconnect-client", "unsubscribe")
        assert (ended["sub_id"], ended["reason"]) == ("other", "disconnect")

    queue = QueueDefinition("jobs", "json", underlying="work")
    in_house(tmp_path, visit, replace(WHOLE, queue_definitions=(queue,)))
