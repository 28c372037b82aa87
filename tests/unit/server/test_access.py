"""Who is let in by a transport, and what he may do there: real sockets, a real journal."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from argon2 import PasswordHasher
from support.journal_runs import every_run
from support.one_instance import events, in_instance, server_on, transports

from raylay.services.client import Client
from raylay.services.config.instance import (
    InstanceConfig,
    TransportConfig,
    split_address,
)
from raylay.services.errors import LogonRefused, RaylayError
from raylay.services.messages.ranges import CHUNK
from raylay.services.messages.records import (
    Command,
    RecordBuilder,
    iterate_records,
    publisher_id,
    run_of,
    scan,
)
from raylay.services.messages.stateful import PreparedRun
from raylay.services.messages.topics import TopicRule
from raylay.services.plugins import authentication as modules
from raylay.services.protocol.frames import FrameReader, encode_frame
from raylay.services.queues.decisions import ConsumerSubscription, DeliverLeased, LeasedDelivery
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.records import (
    Acknowledgment,
    keys_of,
    pack_acknowledgment,
    read_acknowledgment,
)
from raylay.services.replication import gap_limit
from raylay.services.security.connection_shares import ShareHolder
from raylay.services.security.credentials import (
    Answer,
    Challenge,
    Credentials,
    LogonAccepted,
    LogonDenied,
)
from raylay.services.security.modules import ModuleConfig
from raylay.services.security.permissions import Permissions, read_permissions
from raylay.services.server import access
from raylay.services.server.clients import connection, subscriptions
from raylay.services.server.clients import logon as logon_module
from raylay.services.server.clients.queue_clients import QueueClients
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry.logs import LogOptions

DEADLINE_S = 60.0
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
PERMISSIONS = {
    "amy": {
        "logon": True,
        "topic": [{"topic": ".*", "read": True, "write": True}],
    },
    "bob": {
        "logon": True,
        "topic": [
            {"topic": "orders", "read": "/desk = 'fx'", "write": "/desk = 'fx'"},
            {"topic": "public/.*", "read": True},
            {"topic": "staff", "read": True, "select": "-/pay"},
            {"topic": "quiet", "write": True},
        ],
    },
    "eve": {"logon": False},
}
CONFIG = InstanceConfig(
    "solo", "g", first=True, topics=(TopicRule(".*"),), unjournaled=(TopicRule("^quick"),),
    log=LogOptions(target="none"),
    sow=(
        SowTopicDefinition("orders", "json", keys=("/id",)),
        SowTopicDefinition("staff", "json", keys=("/id",)),
        SowTopicDefinition("secret", "json", keys=("/id",)),
    ),
)  # fmt: skip


def guarded(tmp_path: Path) -> InstanceConfig:
    """Passwords and permissions; each user's password is his name twice."""
    passwords, permissions = tmp_path / "passwords", tmp_path / "permissions"
    users = (*PERMISSIONS, "zoe")
    passwords.write_text("".join(f"{user}:{CHEAP.hash(user * 2)}\n" for user in users))
    permissions.write_text(json.dumps(PERMISSIONS))
    return replace(
        CONFIG,
        authentication=ModuleConfig("passwords", {"File": str(passwords)}),
        entitlement=ModuleConfig("permissions", {"File": str(permissions)}),
    )


@asynccontextmanager
async def logged_on(server: InstanceServer, user: str, **options: Any) -> Any:
    name = options.pop("name", f"client of {user}")
    options.setdefault("password", user * 2)
    client = Client(name, [server.runtime.client_address], user_id=user, **options)
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


async def refusal(work: Awaitable[Any]) -> str:
    with pytest.raises(RaylayError) as told:
        await work
    return f"{getattr(told.value, 'reason', '')}: {told.value}"


async def rows(query: Any) -> list[Any]:
    return [row async for row in query]


class Renaming:
    """An entitlement module that knows bob by another name."""

    def __init__(self, **more: Any) -> None:
        self.document = {"logon": True, "user_name": "robert", **more}

    async def permissions(self, *asked: str) -> Permissions:
        return read_permissions(self.document, "here")


# -- who is let in -------------------------------------------------------------------------------
@pytest.mark.parametrize("is_control", [False, True])
def test_a_user_is_known_by_the_name_that_his_permissions_give(is_control: bool) -> None:
    runtime: Any = SimpleNamespace(report=lambda *_, **__: None)
    asked = Credentials("a client", "bob", "", is_control=is_control)
    found = asyncio.run(access.AccessCheck(runtime, None, Renaming(), "here").ask(asked))
    assert isinstance(found, access.AccessGranted) and found.user == "robert"
    assert found.permissions is not None


@pytest.mark.covers("Configuration", "Authentication: the modules")
def test_who_is_not_known_is_told_no_more_than_that(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        said = set()
        for user, password in (("bob", "wrong"), ("nobody", "x"), ("eve", "eveeve"), ("", "")):
            with pytest.raises(LogonRefused) as told:
                async with logged_on(server, user, password=password):
                    pass
            assert told.value.reason == "auth"
            # The text begins with the address and the client's name, which the client knows.
            said.add(str(told.value).partition(": ")[2])
        assert len(said) == 1, "what was wrong would help who guesses"
        # Each once: a client whose connection was slow tries again.
        why = list(dict.fromkeys(each["text"] for each in events(server, "logon_denied")))
        assert "does not match" in why[0] and "does not have this user" in why[1]
        assert why[2] == "eve has no logon in his permissions"
        assert not any("wrong" in str(each) for each in server.events(0))
        async with logged_on(server, "bob"):
            pass

    in_instance(tmp_path / "data", visit, guarded(tmp_path))


def test_no_password_is_computed_for_who_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that had begun."""
    may_end, begun = threading.Event(), []

    def waits(self: Any, kept: str, password: str) -> bool:
        begun.append(password)
        return may_end.wait(DEADLINE_S)

    async def visit(server: InstanceServer) -> None:
        address, connected = (
            split_address(server.runtime.client_address),
            server.parts.clients.connected,
        )
        gone = []
        for number in range(6):
            _, writer = await asyncio.open_connection(*address)
            logon = {"c": "logon", "v": 1, "client_name": f"c{number}", "cid": "1"}
            writer.write(encode_frame(logon | {"user_id": "bob", "pw": f"x{number}"}))
            gone.append(writer)
        while len(begun) < modules.HASHES_AT_ONCE or server.runtime.tasks_running < len(gone):
            await asyncio.sleep(0)
        for writer in gone:
            writer.close()
        while connected:
            await asyncio.sleep(0)
        may_end.set()
        while server.runtime.tasks_running:
            await asyncio.sleep(0)
        assert len(begun) == modules.HASHES_AT_ONCE

    monkeypatch.setattr(modules.PasswordAuthentication, "_fits", waits)
    in_instance(tmp_path / "data", visit, guarded(tmp_path))


@pytest.mark.covers("Configuration", "a flood of wrong logons keeps nobody out at other")
def test_a_flood_of_wrong_logons_of_one_address_keeps_nobody_else_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It filled the queue, and of 22 right logons one came in. An address takes its turn."""
    may_end, looked_at = threading.Event(), []

    def waits(self: Any, kept: str, password: str) -> bool:
        looked_at.append(password)
        return password == "right" or (may_end.wait(DEADLINE_S) and False)

    async def visit(server: InstanceServer) -> None:
        answers: list[asyncio.Task[bytes]] = []
        writers = []

        async def log_on(host: str, user: str, password: str) -> asyncio.Task[bytes]:
            reader, writer = await asyncio.open_connection(
                *split_address(server.runtime.client_address), local_addr=(host, 0)
            )
            name = f"c{len(writers)}"
            writers.append(writer)
            logon = {"c": "logon", "v": 1, "client_name": name, "cid": "1"}
            writer.write(encode_frame(logon | {"user_id": user, "pw": password}))
            answers.append(asyncio.create_task(reader.readuntil(b"cid")))
            return answers[-1]

        flood = [await log_on("127.0.0.2", f"u{number}", "wrong") for number in range(300)]
        too_many = len(flood) - modules.HASHES_WAITING_MAX
        while sum(each.done() for each in flood) < too_many:
            await asyncio.sleep(0)
        right = [await log_on("127.0.0.1", "amy", "right") for _ in range(22)]
        while sum(each.done() for each in flood) < too_many + len(right):
            assert not any(each.done() for each in right), "it was refused"
            await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(*right)
        while len(server.parts.clients.sessions) < len(right):
            await asyncio.sleep(0)
        behind = [place for place, each in enumerate(looked_at) if each == "right"]
        assert len(behind) == len(right)
        assert behind[-1] < 3 * len(right), "one of each address after the other"
        for each in answers:
            each.cancel()
        for writer in writers:
            writer.close()

    monkeypatch.setattr(modules.PasswordAuthentication, "_fits", waits)
    monkeypatch.setattr(connection, "LOGON_TIMEOUT_S", 10 * DEADLINE_S)
    in_instance(tmp_path / "data", visit, guarded(tmp_path))


async def answer_to(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The header of the first frame that comes."""
    frames = FrameReader()
    while not (found := frames.feed(await reader.read(65_536))):
        assert not reader.at_eof()
    return dict(found[0].header)


@pytest.mark.covers("Configuration", "one user, and one address")
def test_one_user_takes_no_more_than_its_share(tmp_path: Path) -> None:
    """20 logons of one user filled `connections_max`, and nobody else came in."""
    config = replace(
        guarded(tmp_path), client_transports=(TransportConfig("client", connections_max=20),)
    )

    async def visit(server: InstanceServer) -> None:
        writers: list[asyncio.StreamWriter] = []

        async def log_on(user: str, name: str = "") -> dict[str, Any]:
            reader, writer = await asyncio.open_connection(
                *split_address(server.runtime.client_address)
            )
            writers.append(writer)
            name = name or f"c{len(writers)}"
            logon = {"c": "logon", "v": 1, "client_name": name, "cid": "1"}
            writer.write(encode_frame(logon | {"user_id": user, "pw": user * 2}))
            return await answer_to(reader)

        assert transports(server)["client"]["connections_per_user_max"] == 10
        for _ in range(10):
            assert (await log_on("amy"))["status"] == "success"
        for _ in range(5):
            refused = await log_on("amy")
            assert refused["reason"] == "too_many" and "this user has 10" in refused["text"]
        (told, *_) = events(server, "client_over_share")
        assert (told["user"], told["transport"], told["limit"]) == ("amy", "client", "user")
        for _ in range(5):
            assert (await log_on("bob"))["status"] == "success", "amy keeps him out"
        # The newer connection of a name takes the place of the older one.
        assert (await log_on("amy", "c1"))["status"] == "success"
        # What has gone counts no more.
        writers[1].close()
        while sum(each.user_id == "amy" for each in server.parts.clients.sessions.values()) > 9:
            await asyncio.sleep(0)
        assert (await log_on("amy"))["status"] == "success"
        for writer in writers:
            writer.close()

    in_instance(tmp_path / "data", visit, config)


@pytest.mark.covers("Configuration", "one user, and one address")
def test_one_address_takes_no_more_than_its_share(tmp_path: Path) -> None:
    """Where nothing says who somebody is, that is all that is known. This host is limited only
    where the configuration says so."""
    few = TransportConfig("few", connections_per_address_max=2)
    own = TransportConfig("client", connections_max=8)
    config = replace(
        CONFIG,
        client_transports=(own, few),
    )

    async def visit(server: InstanceServer) -> None:
        writers: list[asyncio.StreamWriter] = []

        async def log_on(transport: str, host: str) -> str:
            reader, writer = await asyncio.open_connection(
                *split_address(transports(server)[transport]["address"]), local_addr=(host, 0)
            )
            writers.append(writer)
            name = f"c{len(writers)}"
            writer.write(encode_frame({"c": "logon", "v": 1, "client_name": name, "cid": "1"}))
            answer = await answer_to(reader)
            return str(answer.get("reason") or answer["status"])

        found = [await log_on("few", "127.0.0.2") for _ in range(3)]
        assert found == ["success", "success", "too_many"]
        assert await log_on("few", "127.0.0.3") == "success"
        assert {await log_on("client", "127.0.0.2") for _ in range(7)} == {"success"}
        writers[0].close()
        while len(server.parts.clients.sessions) > 9:
            await asyncio.sleep(0)
        assert await log_on("few", "127.0.0.2") == "success"
        (told,) = events(server, "client_over_share")
        assert told["limit"] == "address" and "connections_per_address_max" in told["text"]
        for writer in writers:
            writer.close()

    in_instance(tmp_path / "data", visit, config)


@pytest.mark.covers("Configuration", "frames that are not whole are bounded for all")
def test_half_frames_of_one_user_hold_no_more_than_its_share(tmp_path: Path) -> None:
    """30 of them, of 16 MiB each, held 450 MB for as long as their connections lasted."""

    async def visit(server: InstanceServer) -> None:
        frames = server.parts.clients.incomplete
        frames.bytes_max = 400_000
        writers: list[asyncio.StreamWriter] = []
        readers: list[asyncio.StreamReader] = []

        async def begins(user: str, held_bytes: int) -> None:
            reader, writer = await asyncio.open_connection(
                *split_address(server.runtime.client_address)
            )
            writers.append(writer)
            readers.append(reader)
            logon = {"c": "logon", "v": 1, "client_name": f"c{len(writers)}", "cid": "1"}
            writer.write(encode_frame(logon | {"user_id": user, "pw": user * 2}))
            assert (await answer_to(reader))["status"] == "success"
            whole = encode_frame({"c": "pb", "n": 1}, bytes(10_000_000))
            writer.write(whole[:held_bytes])

        await begins("amy", 150_000)
        while frames.bytes < 150_000:
            await asyncio.sleep(0)
        await begins("amy", 60_000)
        refused = await answer_to(readers[0])
        assert refused["reason"] == "too_many" and "one user" in refused["text"]
        await begins("bob", 150_000)
        while frames.bytes < 210_000:
            await asyncio.sleep(0)
        (told,) = events(server, "client_over_share")
        assert (told["limit"], told["client"], told["user"]) == ("frames", "c1", "amy")
        assert server.status()["shares_reached"] == {"client_frames": 1}
        taken = server.parts.status.snapshot()
        assert taken["shares"] == {"client_frames": {"reached": 1}}
        assert taken["incomplete_bytes"] == frames.bytes == 210_000
        for writer in writers:
            writer.close()
        while len(frames):
            await asyncio.sleep(0)

    in_instance(tmp_path / "data", visit, guarded(tmp_path))


@pytest.mark.covers("Configuration", "gaps in what a user's names number are bounded")
def test_gaps_of_a_user_count_in_the_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gap_limit, "PIECES_UNCOUNTED", 2)
    monkeypatch.setattr(gap_limit, "USER_PIECES_MAX", 20)

    async def publish(server: InstanceServer, name: str, count: int) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(
            *split_address(server.runtime.client_address)
        )
        logon = {"c": "logon", "v": 1, "client_name": name, "cid": "1"}
        writer.write(encode_frame(logon | {"user_id": "amy", "pw": "amyamy"}))
        assert (await answer_to(reader))["status"] == "success"
        build = RecordBuilder(publisher_id(name), "open", "json").build
        records = b"".join(build(1 + at * 3 * CHUNK, b"{}", 0) for at in range(count))
        writer.write(encode_frame({"c": "pb", "n": count}, records))
        answer = await answer_to(reader)
        writer.close()
        return answer

    async def first(server: InstanceServer) -> None:
        assert (await publish(server, "one", 15))["status"] == "success"
        key = f"gaps/{publisher_id('one'):016x}"
        while server.parts.instance.state.get(key) != b"amy":
            await asyncio.sleep(0.01)

    async def second(server: InstanceServer) -> None:
        refused = await publish(server, "two", 15)
        assert refused["reason"] == "too_many_gaps" and "of its user" in refused["text"]

    for visit in (first, second):
        in_instance(tmp_path / "data", visit, guarded(tmp_path))


@pytest.mark.covers("Configuration", "gaps in what a user's names number are bounded")
def test_gaps_count_for_an_address_where_nobody_asks_for_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no limit for all names then."""
    monkeypatch.setattr(gap_limit, "PIECES_UNCOUNTED", 2)
    monkeypatch.setattr(gap_limit, "USER_PIECES_MAX", 20)
    monkeypatch.setattr(logon_module, "is_local", lambda network: False)
    open_to_all = InstanceConfig(
        "A", "g", first=True, topics=(TopicRule(".*"),), log=LogOptions(target="none")
    )

    async def publish(server: InstanceServer, name: str) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(
            *split_address(server.runtime.client_address)
        )
        writer.write(encode_frame({"c": "logon", "v": 1, "client_name": name, "cid": "1"}))
        assert (await answer_to(reader))["status"] == "success"
        build = RecordBuilder(publisher_id(name), "open", "json").build
        records = b"".join(build(1 + at * 3 * CHUNK, b"{}", 0) for at in range(15))
        writer.write(encode_frame({"c": "pb", "n": 15}, records))
        answer = await answer_to(reader)
        writer.close()
        return answer

    async def visit(server: InstanceServer) -> None:
        assert (await publish(server, "one"))["status"] == "success"
        refused = await publish(server, "two")
        assert refused["reason"] == "too_many_gaps" and "or address" in refused["text"]

    in_instance(tmp_path / "data", visit, open_to_all)


def test_this_host_and_known_users_are_no_addresses() -> None:
    for user, network, owner in (
        ("amy", "10.0.0.1", "amy"),
        ("", "10.0.0.1", "address 10.0.0.1"),
        ("", "127.0.0.1", ""),
        ("", "", ""),
    ):
        assert logon_module._owner_of_gaps(ShareHolder(user, network)) == owner


@pytest.mark.covers("Configuration", "Authentication: the modules")
def test_a_transport_may_have_modules_of_its_own(tmp_path: Path) -> None:
    config = replace(
        guarded(tmp_path),
        client_transports=(
            TransportConfig("client"),
            TransportConfig(
                "open",
                authentication=ModuleConfig(modules.DEFAULT),
                entitlement=ModuleConfig("amps-default-entitlement-module"),
            ),
        ),
    )

    async def visit(server: InstanceServer) -> None:
        (address,) = server.status()["client_transports"].values()
        client = Client("anybody", [address], user_id="bob")
        await client.connect()
        await client.publish("secret", b'{"id": 1}')
        await client.flush()
        await client.close()

    in_instance(tmp_path / "data", visit, config)


@pytest.mark.covers("Configuration", "a challenge (`retry`) is answered on the same")
def test_a_challenge_is_answered_on_the_same_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    class Challenging:
        def __init__(self, config: ModuleConfig, where: str) -> None:
            pass

        async def authenticate(self, given: Credentials) -> Answer:
            asked.append((given.password, given.round))
            if given.password == "for ever":
                return Challenge("", "again")
            if given.round == 0:
                return Challenge("bob-2", "2 + 2")
            ok = (given.user_id, given.password) == ("bob-2", "4")
            return LogonAccepted("bob") if ok else LogonDenied("no")

    monkeypatch.setitem(modules._BUILT_IN, "challenging", Challenging)  # type: ignore[index]
    config = replace(CONFIG, authentication=ModuleConfig("challenging"))

    async def visit(server: InstanceServer) -> None:
        def answers(user: str, question: str) -> tuple[str, str]:
            return user, str(sum(map(int, question.split("+"))))

        async with logged_on(server, "bob", answers=answers):
            assert asked == [("bobbob", 0), ("4", 1)]
        said = await refusal(logged_on(server, "bob").__aenter__())
        assert "log on again with the answer" in said
        asked.clear()
        said = await refusal(
            logged_on(
                server, "bob", answers=lambda user, question: ("bob", "for ever")
            ).__aenter__()
        )
        assert said.startswith("auth: ") and len(asked) == 9

    in_instance(tmp_path / "data", visit, config)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        True,
        "bob",
        LogonAccepted(None),  # type: ignore[arg-type]
        LogonDenied(7),  # type: ignore[arg-type]
        Challenge("a", b"b"),  # type: ignore[arg-type]
        SystemExit(3),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_module_that_gives_no_answer_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    class Wrong:
        def __init__(self, config: ModuleConfig, where: str) -> None:
            pass

        async def authenticate(self, given: Credentials) -> Any:
            if isinstance(answer, SystemExit):
                raise answer
            return answer

    monkeypatch.setitem(modules._BUILT_IN, "wrong", Wrong)  # type: ignore[index]

    async def visit(server: InstanceServer) -> None:
        assert "auth" in await refusal(logged_on(server, "bob").__aenter__())
        (told,) = events(server, "logon_denied")
        assert type(answer).__name__ in told["text"]

    in_instance(tmp_path / "data", visit, replace(CONFIG, authentication=ModuleConfig("wrong")))


def test_a_module_that_fails_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __init__(self, config: ModuleConfig, where: str) -> None:
            pass

        async def authenticate(self, given: Credentials) -> Answer:
            raise KeyError(f"no {given.password}")

    monkeypatch.setitem(modules._BUILT_IN, "failing", Failing)  # type: ignore[index]

    async def visit(server: InstanceServer) -> None:
        assert "auth" in await refusal(logged_on(server, "bob").__aenter__())
        (told,) = events(server, "logon_denied")
        assert "its module failed: KeyError: 'no ***'" in told["text"]

    in_instance(tmp_path / "data", visit, replace(CONFIG, authentication=ModuleConfig("failing")))


def test_who_comes_in_a_flood_of_logons_is_told_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "HASHES_WAITING_MAX", 0)

    async def visit(server: InstanceServer) -> None:
        reader, writer = await opened(server)
        writer.write(logon_frame("bob", "b"))
        said = await reader.read()
        writer.close()
        assert b"not_ready" in said and b"auth" not in said, "`auth` would be for good"

    in_instance(tmp_path / "data", visit, guarded(tmp_path))


# -- what he may do ------------------------------------------------------------------------------
@pytest.mark.covers("Configuration", "Entitlement: publishes")
def test_publishes_are_taken_as_far_as_they_are_allowed(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        failed: list[Any] = []
        async with logged_on(server, "bob", on_publish_failed=failed.append) as bob:
            for topic, body in (
                ("orders", b'{"id": 1, "desk": "fx"}'),
                ("orders", b'{"id": 2, "desk": "eq"}'),
                ("secret", b'{"id": 3}'),
                ("public/a", b"{}"),
                ("quiet", b"{}"),
                ("quick", b"{}"),
            ):
                await bob.publish(topic, body)
            await bob.flush()
        failed.sort(key=lambda each: each.sequence)
        assert [each.sequence - failed[0].sequence for each in failed] == [0, 1, 2, 4]
        assert {each.error.reason for each in failed} == {"not_entitled"}
        assert "bob may not publish to 'secret'" in str(failed[1].error)
        assert server.status()["committed_txid"] == 2

    in_instance(tmp_path / "data", visit, guarded(tmp_path))


@pytest.mark.covers("Configuration", "who may write some records of a SOW topic takes over")
def test_nobody_takes_over_a_record_that_he_may_not_write(tmp_path: Path) -> None:
    """A delta shows a key and a desk, and took the whole record over."""

    async def visit(server: InstanceServer) -> None:
        failed: list[Any] = []
        async with (
            logged_on(server, "amy") as amy,
            logged_on(server, "bob", on_publish_failed=failed.append) as bob,
        ):
            await amy.publish("orders", b'{"id": 1, "desk": "eq", "px": 7}')
            await amy.flush()
            first = await bob.publish("orders", b'{"id": 2, "desk": "fx", "px": 1}')
            await bob.delta_publish("orders", b'{"id": 1, "desk": "fx"}')
            await bob.publish("orders", b'{"id": 1, "desk": "fx"}')
            await bob.delta_publish("orders", b'{"id": 2, "px": 2}')
            await bob.delta_publish("orders", b'{"id": 2, "desk": "eq"}')
            await bob.flush()
            failed.sort(key=lambda each: each.sequence)
            assert [each.sequence - first for each in failed] == [1, 2, 4]
            assert {each.error.reason for each in failed} == {"not_entitled"}
            assert "may not change the record of this key in 'orders'" in str(failed[0].error)
            # What the server numbers goes another way.
            reader, writer = await raw_logon(server, "bob", "b")
            for number, (said, answer) in enumerate(
                (
                    (b'{"id": 1, "desk": "fx"}', b"not_entitled"),
                    (b'{"id": 2, "desk": "eq"}', b"not_entitled"),
                    (b'{"id": 2, "px": 3}', b"persisted"),
                )
            ):
                header = {"c": "p", "t": "orders", "mt": "json", "cmd": Command.DELTA_PUBLISH}
                header |= {"a": "persisted", "cid": f"{number}"}
                writer.write(encode_frame(header, said))
                await writer.drain()
                assert answer in await until(reader, f"{number}")
            writer.close()
            rows = [json.loads(row.body) async for row in amy.sow("orders")]
            assert sorted(rows, key=lambda row: int(row["id"])) == [
                {"id": 1, "desk": "eq", "px": 7},
                {"id": 2, "desk": "fx", "px": 3},
            ]

    in_instance(tmp_path / "data", visit, guarded(tmp_path))


@pytest.mark.covers("Configuration", "subscriptions and queries")
def test_what_is_read_is_restricted(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        async with logged_on(server, "amy") as amy, logged_on(server, "bob") as bob:
            every = await bob.subscribe(".*")
            some = await bob.subscribe("orders")
            past = await bob.subscribe("orders", bookmark="0")
            for topic, body in (
                ("orders", b'{"id": 1, "desk": "fx"}'),
                ("orders", b'{"id": 2, "desk": "eq"}'),
                ("secret", b'{"id": 3}'),
                ("staff", b'{"id": 4, "pay": 9}'),
                ("public/a", b'{"id": 5}'),
                ("orders", b'{"id": 6, "desk": "fx"}'),
                ("public/b", b'{"id": 7}'),
            ):
                await amy.publish(topic, body)
            await amy.flush()

            async def ids(subscription: Any, count: int) -> list[int]:
                return [json.loads((await anext(subscription)).body)["id"] for _ in range(count)]

            assert await ids(every, 4) == [1, 5, 6, 7], "no topic of which fields are kept back"
            assert await ids(some, 2) == [1, 6] == await ids(past, 2)
            assert [json.loads(row.body) async for row in bob.sow("staff")] == [{"id": 4}]
            assert [json.loads(row.body)["id"] async for row in bob.sow("orders")] == [1, 6]
            for filter_ in ("/id > 1", "/id > 1 OR /desk = 'eq'"):
                found = await rows(bob.sow("orders", filter=filter_))
                assert [json.loads(row.body)["id"] for row in found] == [6]
            assert [json.loads(row.body)["id"] async for row in bob.sow(".*")] == [1, 6]

    in_instance(tmp_path / "data", visit, guarded(tmp_path))


@pytest.mark.covers("Configuration", "subscriptions and queries")
@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda bob: bob.subscribe("secret"), "not_entitled: .*bob may not read 'secret'"),
        (lambda bob: bob.subscribe("secret", bookmark="0"), "not_entitled"),
        (lambda bob: bob.subscribe("quiet"), "not_entitled"),
        (lambda bob: rows(bob.sow("secret")), "not_entitled"),
        (lambda bob: bob.subscribe("staff", bookmark="0"), "some fields of 'staff' only"),
        (lambda bob: rows(bob.sow("staff", filter="/pay > 1")), "leave out filter, select"),
        (lambda bob: rows(bob.sow("staff", order_by="/pay")), "leave out filter, select"),
        (
            lambda bob: bob.subscribe("staff", conflation="1s", conflation_key=["/pay"]),
            "leave out filter, select",
        ),
        (
            lambda bob: bob.sow_and_subscribe("staff", conflation="1s", conflation_key=["/pay"]),
            "leave out filter, select",
        ),
        # Between parentheses it would be one, and say something else.
        (lambda bob: rows(bob.sow("orders", filter="1 = 1) OR (1 = 1")), "bad_filter"),
        (lambda bob: bob.subscribe("orders", filter="1 = 1) OR (1 = 1"), "bad_filter"),
    ],
)
def test_what_may_not_be_read_is_refused(
    guarded_server: Callable[..., None], ask: Callable[[Any], Awaitable[Any]], says: str
) -> None:
    async def visit(bob: Any) -> None:
        import re

        said = await refusal(ask(bob))
        assert re.search(says, said), said

    guarded_server(visit)


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One instance for what is refused; bob visits it."""
    tmp_path = tmp_path_factory.mktemp("guarded")
    loop = asyncio.new_event_loop()
    server = server_on(loop, guarded(tmp_path), tmp_path / "data")
    loop.run_until_complete(server.start())

    def visited(visit: Callable[[Any], Awaitable[None]]) -> None:
        async def run() -> None:
            async with asyncio.timeout(DEADLINE_S), logged_on(server, "bob") as bob:
                await visit(bob)

        loop.run_until_complete(run())

    yield visited
    loop.run_until_complete(server.stop())
    loop.close()


@pytest.mark.covers("Configuration", "results are kept until a reset")
def test_a_reset_asks_for_permissions_anew(tmp_path: Path) -> None:
    config = guarded(tmp_path)

    async def visit(server: InstanceServer) -> None:
        async with logged_on(server, "bob") as bob, logged_on(server, "amy") as amy:
            assert "not_entitled" in await refusal(bob.subscribe("secret"))
            given = {**PERMISSIONS, "bob": PERMISSIONS["amy"]}
            (tmp_path / "permissions").write_text(json.dumps(given))
            assert "not_entitled" in await refusal(bob.subscribe("secret"))
            assert await server.parts.calls.reset_entitlement("bob") == 1
            found = await bob.subscribe("secret")
            await amy.publish("secret", b'{"id": 1}')
            assert (await anext(found)).body == b'{"id": 1}'
            assert await server.parts.calls.reset_entitlement() == 2
        ended = [each for each in events(server, "client_disconnected")]
        assert [each["reason"] for each in ended].count("entitlement_reset") == 3

    in_instance(tmp_path / "data", visit, config)


@pytest.mark.covers("Configuration", "a known user's client name is kept from everybody else")
def test_names_are_of_the_user_who_has_them(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        async with logged_on(server, "amy", name="desk"):
            said = await refusal(logged_on(server, "bob", name="desk").__aenter__())
            assert "name_in_use" in said

    in_instance(tmp_path / "data", visit, guarded(tmp_path))


@pytest.mark.covers("Configuration", "a known user's client name is kept from everybody else")
@pytest.mark.parametrize(("says", "has_module"), [("", False), ("zoe", False), ("", True)])
def test_who_is_known_gives_way_to_nobody_else(says: str, has_module: bool, tmp_path: Path) -> None:
    """By a transport that lets everybody in: without a module, or with one that believes him."""
    known = guarded(tmp_path)
    config = replace(
        CONFIG,
        authentication=ModuleConfig(modules.DEFAULT) if has_module else None,
        client_transports=(
            TransportConfig("client"),
            TransportConfig(
                "known", authentication=known.authentication, entitlement=known.entitlement
            ),
        ),
    )

    async def visit(server: InstanceServer) -> None:
        address = server.status()["client_transports"]["known"]

        def amy() -> Client:
            return Client("desk", [address], user_id="amy", password="amyamy")

        async def stranger() -> tuple[dict[str, Any], asyncio.StreamWriter]:
            connection = await asyncio.open_connection(
                *split_address(server.runtime.client_address)
            )
            logon = {"c": "logon", "v": 1, "client_name": "desk", "user_id": says, "cid": "l"}
            return await said(*connection, logon, b""), connection[1]

        async with amy() as first:
            answer, writer = await stranger()
            assert answer["status"] == "failure" and answer["reason"] == "name_in_use"
            writer.close()
            await first.publish("orders", b'{"id": 1}')
            await first.flush()
        while server.parts.clients.sessions:
            await asyncio.sleep(0)
        # A stranger's name is taken from him by somebody who is known.
        answer, writer = await stranger()
        assert answer["status"] == "success"
        async with amy() as second:
            await second.publish("orders", b'{"id": 2}')
            await second.flush()
        writer.close()

    in_instance(tmp_path / "data", visit, config)


@pytest.mark.covers("Configuration", "who publishes is who his client name says")
def test_a_user_has_names_of_his_own(tmp_path: Path) -> None:
    """Amy is away; bob cannot publish as her meanwhile."""
    config = guarded(tmp_path)
    given = {
        user: {**permissions, "client-names": [f"{user}-.*"]}
        for user, permissions in PERMISSIONS.items()
    }
    (tmp_path / "permissions").write_text(json.dumps(given))

    async def visit(server: InstanceServer) -> None:
        assert "auth" in await refusal(logged_on(server, "bob", name="amy-desk").__aenter__())
        (told,) = events(server, "logon_denied")
        assert told["text"] == "bob may not use this client name"
        async with logged_on(server, "amy", name="amy-desk"):
            pass

    in_instance(tmp_path / "data", visit, config)


def test_an_instance_with_a_module_that_cannot_be_used_does_not_start(tmp_path: Path) -> None:
    config = replace(CONFIG, authentication=ModuleConfig("passwords", {"File": "/none"}))
    with pytest.raises(RaylayError, match=r"transport client: Authentication: .*cannot be read"):
        in_instance(tmp_path, lambda server: asyncio.sleep(0), config)


@pytest.mark.parametrize("right", ["read", "write"])
def test_permissions_with_a_filter_that_is_none_let_nobody_in(tmp_path: Path, right: str) -> None:
    config = guarded(tmp_path)
    given = {"bob": {"logon": True, "topic": [{"topic": "a", right: "/a = = 1"}]}}
    (tmp_path / "permissions").write_text(json.dumps(given))

    async def visit(server: InstanceServer) -> None:
        for _ in range(2):
            assert "auth" in await refusal(logged_on(server, "bob").__aenter__())
        told = events(server, "logon_denied")
        assert len(told) == 2, "what was refused once is refused again"
        for each in told:
            assert "permissions of bob: '/a = = 1' is no filter" in each["text"]

    in_instance(tmp_path / "data", visit, config)


def test_filters_are_read_once_and_not_at_each_logon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = access.subscription_filter_problem

    def problem(text: str) -> str:
        read.append(text)
        return real(text)

    monkeypatch.setattr(access, "subscription_filter_problem", problem)

    async def visit(server: InstanceServer) -> None:
        for _ in range(2):
            async with logged_on(server, "bob"):
                pass
        assert read == ["/desk = 'fx'"]

    in_instance(tmp_path / "data", visit, guarded(tmp_path))


# -- what somebody tries who is let in with little -----------------------------------------------
def test_what_left_the_focus_is_not_shown_as_it_is_now(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        async with logged_on(server, "amy") as amy, logged_on(server, "bob") as bob:
            await amy.publish("orders", b'{"id": 1, "desk": "fx", "px": 1}')
            await amy.flush()
            rows = await bob.sow_and_subscribe("orders", oof=True)
            assert (await anext(rows)).body == b'{"id": 1, "desk": "fx", "px": 1}'
            await amy.publish("orders", b'{"id": 1, "desk": "eq", "px": 999}')
            left = await anext(rows)
            while left.kind == "group_end":
                left = await anext(rows)
            assert (left.kind, left.reason) == ("oof", "match")
            assert json.loads(left.body) == {"id": 1, "desk": "fx", "px": 1}

    in_instance(tmp_path / "data", visit, guarded(tmp_path))


def test_a_sequence_that_is_known_lets_nothing_pass_to_a_topic_without_journal(
    tmp_path: Path,
) -> None:
    given = {
        **PERMISSIONS,
        "bob": {"logon": True, "topic": [{"topic": "quiet", "write": True}]},
    }
    config = replace(guarded(tmp_path), topics=(TopicRule("quiet"),), sow=())
    (tmp_path / "permissions").write_text(json.dumps(given))

    async def visit(server: InstanceServer) -> None:
        async with logged_on(server, "amy") as amy:
            every = await amy.subscribe("quick.*")
            async with logged_on(server, "bob", name="b") as bob:
                await bob.publish("quiet", b'{"forged": 1}')
                await bob.flush()
                sessions = server.parts.clients.sessions
                (sequence,) = [each.published_upto for each in sessions.values()
                               if each.client_name == "b"]  # fmt: skip
            reader, writer = await raw_logon(server, "bob", "b")
            writer.write(
                encode_frame(
                    {"c": "p", "t": "quick", "mt": "json", "s": sequence, "a": "processed",
                     "cid": "1"},
                    b'{"forged": 1}',
                )
            )  # fmt: skip
            writer.write(encode_frame({"c": "ping", "cid": "2"}, b""))
            await writer.drain()
            said = await until(reader, "2")
            assert b"not_entitled" in said
            await amy.publish("quick", b'{"real": 1}')
            assert (await anext(every)).body == b'{"real": 1}'
            writer.close()

    in_instance(tmp_path / "data", visit, config)


def test_two_logons_of_one_segment_are_one_too_many(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        reader, writer = await opened(server)
        frames = [
            encode_frame({"c": "logon", "v": 1, "client_name": name, "cid": name}, b"")
            for name in ("one", "two")
        ]
        writer.write(b"".join(frames))
        await writer.drain()
        assert b"bad_command" in await reader.read()
        writer.close()
        async with asyncio.timeout(DEADLINE_S):
            while server.parts.clients.sessions:
                await asyncio.sleep(0)
        assert not server.parts.clients._by_name

    in_instance(tmp_path / "data", visit, CONFIG)


async def opened(server: InstanceServer) -> Any:
    host, port = server.runtime.client_address.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


def logon_frame(user: str, name: str) -> bytes:
    header = {"c": "logon", "v": 1, "client_name": name, "cid": "l"}
    return encode_frame({**header, "user_id": user, "pw": user * 2})


async def raw_logon(server: InstanceServer, user: str, name: str) -> Any:
    reader, writer = await opened(server)
    writer.write(logon_frame(user, name))
    await until(reader, "l")
    return reader, writer


async def until(reader: asyncio.StreamReader, command_id: str) -> bytes:
    """What comes up to the answer to a command."""
    said = b""
    while f"cid\xa1{command_id}".encode("latin-1") not in said:
        more = await reader.read(65536)
        assert more, said
        said += more
    return said


async def told_of(server: InstanceServer, kind: str, count: int) -> dict[str, Any]:
    while len(events(server, kind)) < count:
        await asyncio.sleep(0.01)
    assert len(events(server, kind)) == count
    return events(server, kind)[-1]


@pytest.mark.covers("Configuration", "a file of passwords or permissions that is gone")
def test_a_file_of_users_that_is_gone_or_wrong_is_told_once_and_shown(tmp_path: Path) -> None:
    """Its users stay: nobody would hear of it before somebody is missing."""
    passwords = tmp_path / "passwords"
    config = guarded(tmp_path)
    good = passwords.read_text()

    async def visit(server: InstanceServer) -> None:
        look = server.parts.listening.keep_looking
        look()
        passwords.unlink()
        look()
        told = await told_of(server, "security_file_failed", 1)
        assert (told["transport"], told["file"]) == ("client", str(passwords))
        assert "cannot be read: No such file" in told["text"]
        assert "the passwords of the last reading hold" in told["text"]
        assert transports(server)["client"]["problem"] == told["text"]
        # A logon looks as well, and what is known is not told again.
        async with logged_on(server, "amy"):
            pass
        passwords.write_text("amy")
        async with logged_on(server, "amy"):
            pass
        told = await told_of(server, "security_file_failed", 2)
        assert "line 1 is no `user:hash`" in told["text"]
        passwords.write_text(good)
        look()
        told = await told_of(server, "security_file_recovered", 1)
        assert told["file"] == str(passwords) and not transports(server)["client"]["problem"]
        (tmp_path / "permissions").write_text("[")
        look()
        told = await told_of(server, "security_file_failed", 3)
        assert "nobody new is let in" in told["text"]

    in_instance(tmp_path / "data", visit, config)


def test_acknowledgments_of_who_reads_some_of_a_queue_are_judged_by_what_he_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = PreparedRun(())
    monkeypatch.setattr(QueueClients, "held_only", lambda self, run: held)

    async def visit(server: InstanceServer) -> None:
        build = RecordBuilder(publisher_id("bob"), "work", "json").build
        payload = build(1, b"", 1, command=Command.QUEUE_ACKNOWLEDGMENT)
        (chunk,) = scan(payload, commands=frozenset(Command))
        run = run_of(chunk, payload)
        for read, found in ((True, PreparedRun((run,))), ("/desk = 'fx'", held)):
            given = read_permissions({"topic": [{"topic": "work", "read": read}]}, "here")
            assert server.parts.clients.judge(given, "bob", "bob", "")(run) == found

    in_instance(tmp_path / "data", visit, CONFIG)


async def said(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, header: dict[str, Any], body: bytes
) -> dict[str, Any]:
    """The answer to one command on a plain connection."""
    writer.write(encode_frame(header, body))
    frames = FrameReader()
    while True:
        async with asyncio.timeout(DEADLINE_S):
            data = await reader.read(1 << 16)
        assert data, "the server closed the connection"
        for frame in frames.feed(data):
            if frame.header.get("cid") == header["cid"]:
                return dict(frame.header)


def test_so_they_are_where_the_instance_numbers_them(tmp_path: Path) -> None:
    """Of what he does not hold nothing is journaled, and what he holds is done."""
    config = replace(
        guarded(tmp_path),
        queue_definitions=(QueueDefinition("public/work", "json", underlying="orders"),),
    )
    permissions = {"bob": {"logon": True, "topic": [{"topic": "public/.*", "read": "/n = 1"}]}}
    (tmp_path / "permissions").write_text(json.dumps(permissions))

    async def visit(server: InstanceServer) -> None:
        queues = server.parts.clients.queued._manager.queues
        assert queues is not None
        (frontend,) = queues.frontends.values()
        connection = await asyncio.open_connection(*split_address(server.runtime.client_address))
        logon = {"c": "logon", "v": 1, "client_name": "bob", "user_id": "bob", "pw": "bobbob"}
        assert (await said(*connection, logon | {"cid": "1"}, b""))["status"] == "success"
        consumer = next(iter(server.parts.clients.sessions)), "s"
        frontend.subscribed(ConsumerSubscription(consumer, "bob", "", 5))
        frontend.decide(
            DeliverLeased(consumer, [LeasedDelivery(at, (7, at), at, 0) for at in (1, 2)], 0), 0
        )

        async def acknowledge(*sequences: int) -> dict[str, Any]:
            keys = keys_of((7, each) for each in sequences)
            header = {"c": "p", "t": "public/work", "mt": "json", "cmd": 3, "a": "persisted"}
            body = pack_acknowledgment(Acknowledgment(keys))
            return await said(*connection, header | {"cid": f"ack {sequences}"}, body)

        assert (await acknowledge(3, 4))["reason"] == "not_leased"
        assert (await acknowledge(1, 3))["reason"] == "not_leased"
        assert (await acknowledge(2))["status"] == "success"
        journaled = {
            each
            for run in every_run(server.parts.instance.journal)
            if run.topic == b"public/work"
            for record in iterate_records(run.payload)
            if record.command == Command.QUEUE_ACKNOWLEDGMENT
            for ranges in read_acknowledgment(record.body).keys.values()
            for each in ranges
        }
        assert journaled == {(1, 1), (2, 2)}
        connection[1].close()

    in_instance(tmp_path / "data", visit, config)


def test_subscriptions_of_queues_count_for_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS_MAX", 3)
    config = replace(
        CONFIG, queue_definitions=(QueueDefinition("work", "json", underlying="orders"),)
    )

    async def visit(server: InstanceServer) -> None:
        connection = await asyncio.open_connection(*split_address(server.runtime.client_address))

        async def says(header: dict[str, Any]) -> dict[str, Any]:
            return await said(*connection, header, b"")

        async def subscribes(name: str, topic: str, **options: Any) -> dict[str, Any]:
            header = {"c": "subscribe", "sub": name, "t": topic, "mt": "json", "o": options}
            return await says(header | {"cid": f"{name} {topic} {options}"})

        await says({"c": "logon", "v": 1, "client_name": "c", "cid": "l"})
        for name, topic in (("a", "work"), ("b", "quick"), ("c", "work")):
            assert (await subscribes(name, topic))["status"] == "success"
        for name, topic in (("d", "work"), ("e", "quick"), ("f", ".*")):
            assert (await subscribes(name, topic))["reason"] == "too_many"
        # One that is there may have another backlog, and one that ends makes room.
        assert (await subscribes("a", "work", replace=True, max_backlog=2))["status"] == "success"
        await says({"c": "unsubscribe", "sub": "a", "cid": "u"})
        assert (await subscribes("d", "quick"))["status"] == "success"
        connection[1].close()

    in_instance(tmp_path / "data", visit, config)


@pytest.mark.parametrize(
    ("user", "names"), [("bob", ["public/work"]), ("amy", ["public/work", "secret-work"]), ("", [])]
)
def test_the_status_of_all_queues_is_of_those_that_may_be_read(
    user: str, names: list[str], tmp_path: Path
) -> None:
    config = replace(
        guarded(tmp_path),
        queue_definitions=tuple(
            QueueDefinition(name, "json", underlying="orders")
            for name in ("public/work", "secret-work")
        ),
    )
    given = {**PERMISSIONS, "zoe": {"logon": True, "topic": []}}
    (tmp_path / "permissions").write_text(json.dumps(given))

    async def visit(server: InstanceServer) -> None:
        reader, writer = await asyncio.open_connection(
            *split_address(server.runtime.client_address)
        )
        who = user or "zoe"
        logon = {"c": "logon", "v": 1, "client_name": who, "user_id": who, "pw": who * 2}
        assert (await said(reader, writer, logon | {"cid": "l"}, b""))["status"] == "success"
        writer.write(encode_frame({"c": "queue_status", "cid": "q"}))
        frames = FrameReader()
        answer = None
        while answer is None:
            for frame in frames.feed(await reader.read(1 << 16)):
                if frame.header.get("cid") == "q":
                    answer = frame
        assert answer.header["status"] == "success"
        found = msgpack.unpackb(answer.body)
        assert sorted(each["topic"] for each in found.values()) == names
        writer.close()

    in_instance(tmp_path / "data", visit, config)
