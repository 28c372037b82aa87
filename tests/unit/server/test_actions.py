"""The administrator's actions at an instance: what each does, and what it says where there is
nothing to do it to (services/server/control_calls.py)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.one_instance import events, in_instance
from unit.server.test_access import guarded, logged_on
from unit.test_counted_calls import links_here, sync_to

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig
from raylay.services.config.journal import JournalConfig
from raylay.services.errors import (
    AdmissionRefused,
    ConfigurationError,
    FabricError,
    StorageError,
)
from raylay.services.messages.topics import TopicRule
from raylay.services.server.diagnostics import diagnostic_lines
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry.logs import LogOptions

DEADLINE_S = 60.0
CONFIG = InstanceConfig(
    "A", "g", first=True, topics=(TopicRule(".*"),), log=LogOptions(target="none"),
    journal=JournalConfig(segment_bytes=64 * 1024),
    sow=(
        SowTopicDefinition("state", "json", keys=("/id",)),
        SowTopicDefinition("fleeting", "json", keys=("/id",), transient=True),
    ),
)  # fmt: skip


@asynccontextmanager
async def client_of(server: InstanceServer, name: str = "writer") -> AsyncIterator[Client]:
    client = Client(name, [server.runtime.client_address])
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


async def until(holds: Callable[[], Any]) -> None:
    """Returns when something holds; the test's own deadline ends it otherwise."""
    while not holds():
        await asyncio.sleep(0.005)


def pair(tmp_path: Path, visit: Callable[[InstanceServer], Awaitable[None]]) -> None:
    """Visits A, which replicates to B."""

    async def run() -> None:
        link = links_here(asyncio.get_running_loop())
        config = InstanceConfig("B", "g", topics=(TopicRule("orders"),), first=True)
        b = InstanceServer(config, tmp_path / "B", link)
        await b.start()
        to = sync_to("B", b.runtime.replication_address)
        a = InstanceServer(replace(config, name="A", destinations=(to,)), tmp_path / "A", link)
        await a.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await until(lambda: a.status()["destinations"]["B"]["caught_up"])
                await visit(a)
        finally:
            await a.stop()
            await b.stop()

    asyncio.run(run())


def test_a_link_begins_again(tmp_path: Path) -> None:
    async def visit(a: InstanceServer) -> None:
        def link() -> dict[str, Any]:
            found: dict[str, Any] = a.status()["destinations"]["B"]
            return found

        starts = link()["starts"]
        said = await a.parts.calls.reconnect("B")
        assert said.startswith("the link of A to B begins again")
        # Said twice, it does no more harm.
        assert "is beginning already" in await a.parts.calls.reconnect("B")
        await until(lambda: link()["starts"] > starts and link()["caught_up"])
        async with client_of(a) as client:
            await client.publish("orders", b"{}")
            await client.flush()
        with pytest.raises(ConfigurationError, match="A has no Destination 'C': it has B"):
            await a.parts.calls.reconnect("C")

    pair(tmp_path, visit)


def test_an_admission_asks_those_that_it_replicates_to(tmp_path: Path) -> None:
    async def visit(a: InstanceServer) -> None:
        await a.parts.calls.admit()  # It is ready: nothing is to be done.

    pair(tmp_path, visit)

    async def waits(server: InstanceServer) -> None:
        assert not server.status()["ready"]
        with pytest.raises(AdmissionRefused, match="B"):
            await server.parts.calls.admit()
        await server.parts.calls.admit(force=True)
        assert server.status()["ready"]

    alone = replace(CONFIG, first=False, destinations=(sync_to("B", "127.0.0.1:1"),))
    in_instance(tmp_path / "alone", waits, alone)


def test_a_client_is_disconnected_by_number_or_name_and_comes_back(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        async with client_of(server, "desk") as client:
            for given in ("number", "name"):
                await until(lambda: server.parts.clients.sessions)
                (number,) = server.parts.clients.sessions
                said = await server.parts.calls.disconnect(
                    str(number) if given == "number" else "desk"
                )
                assert said.startswith("desk at ") and said.endswith("is disconnected from A")
                await until(lambda n=number: n not in server.parts.clients.sessions)
                await client.publish("orders", b"{}")
                await client.flush()
            told = events(server, "client_disconnected")
            assert [each["reason"] for each in told] == ["disconnected"] * 2
            assert events(server, "client_left") == []
        # What the client ends by itself has its own event.
        await until(lambda: events(server, "client_left"))
        (left,) = events(server, "client_left")
        assert (left["client"], left["reason"]) == ("desk", "connection_closed")
        for unknown in ("nobody", "7" * 50, "-1", "99999"):
            with pytest.raises(ConfigurationError, match="is connected to A; give the number"):
                await server.parts.calls.disconnect(unknown)

    in_instance(tmp_path, visit, CONFIG)


def test_a_compacted_topic_takes_less_and_keeps_its_records(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        async with client_of(server) as client:
            for number in range(300):
                await client.publish("state", b'{"id": %d, "text": "%s"}' % (number, b"x" * 2_000))
            await client.flush()
            await until(lambda: _saved(server))
            await client.sow_delete("state", filter="/id > 1")
            await until(lambda: server.status()["sow_topics"]["json/state"]["records"] == 2)
            await until(lambda: _saved(server))
            path = server.runtime.directory / "sow.lmdb"
            before = path.stat().st_size
            first, second = await asyncio.gather(
                server.parts.calls.table["compact"](topic="state"),
                server.parts.calls.table["compact"](topic="json/state"),
                return_exceptions=True,
            )
            assert isinstance(first, str) and f"it took {before:,}" in first
            assert isinstance(second, StorageError) and "are being compacted" in str(second)
            assert path.stat().st_size < before / 2
            assert path.stat().st_mode & 0o077 == 0
            # It goes on: what is published later is kept, too.
            await client.publish("state", b'{"id": 7}')
            await client.flush()
            found = [row.body async for row in client.sow("state")]
            assert len(found) == 3
        assert events(server, "sow_compacted")[0]["bytes_before"] == before
        with pytest.raises(ConfigurationError, match=r"fleeting .*is kept in memory"):
            await server.parts.calls.table["compact"](topic="fleeting")
        with pytest.raises(ConfigurationError, match="no SOW topic 'else': it has json/state"):
            await server.parts.calls.table["compact"](topic="else")

    in_instance(tmp_path, visit, CONFIG)

    async def again(server: InstanceServer) -> None:
        async with client_of(server) as client:
            found = [row.body async for row in client.sow("state")]
            assert len(found) == 3

    in_instance(tmp_path, again, CONFIG)


def _saved(server: InstanceServer) -> bool:
    status = server.status()
    found = status["sow_topics"]["json/state"]
    return bool(found["saved_txid"] >= status["committed_txid"] and not found["pending_bytes"])


def test_journals_are_treated_with_all_older_ones_by_id(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        async with client_of(server) as client:
            while len(server.parts.instance.journal.segments()) < 5:
                for _ in range(50):
                    await client.publish("orders", os.urandom(1_000))
                await client.flush()
        journal = server.parts.instance.journal
        await until(lambda: sum(each.state == "sealed" for each in journal.segments()) >= 3)
        full = [each for each in journal.segments() if each.state == "sealed"]
        live = journal.segments()[-1]
        found = await server.parts.calls.maintain("compress", str(full[1].first_txid))
        assert [each["first_txid"] for each in found if each["done"]] == [
            each.first_txid for each in full[:2]
        ]
        assert [each.state for each in journal.segments()[:3]] == [
            "compressed", "compressed", "sealed"
        ]  # fmt: skip
        for journal_id, why in (
            (str(live.first_txid), f"journal {live.first_txid} of A is being written"),
            ("no", "A has no journal 'no': its full ones are"),
            ("2" * 40, "A has no journal"),
        ):
            for action in ("compress", "archive", "remove"):
                with pytest.raises(ConfigurationError, match=why):
                    await server.parts.calls.maintain(action, journal_id)
        await server.parts.calls.maintain("remove", str(full[0].first_txid), force=True)
        assert journal.segments()[0].first_txid == full[1].first_txid

    in_instance(tmp_path, visit, replace(CONFIG, sow=()))


def test_what_cannot_be_done_to_any_journal_is_an_error(tmp_path: Path) -> None:
    async def visit(a: InstanceServer) -> None:
        async def nothing(*_: Any, **__: Any) -> list[dict[str, Any]]:
            return [{"first_txid": 1, "done": False, "note": "still needed", "outcome": ""}]

        async def end(journal: str) -> int:
            return 9

        a.parts.maintenance.perform = nothing  # type: ignore[method-assign]
        a.parts.maintenance.end_of = end  # type: ignore[method-assign]
        with pytest.raises(StorageError, match=r"nothing was done to journal 1 .*1: still needed"):
            await a.parts.calls.maintain("remove", "1")

    pair(tmp_path, visit)


def test_a_reset_of_authentication_ends_those_whom_a_module_knows(tmp_path: Path) -> None:
    config = guarded(tmp_path)

    async def visit(server: InstanceServer) -> None:
        async with logged_on(server, "bob"), logged_on(server, "amy"):
            assert await server.parts.calls.reset_authentication("nobody") == 0
            assert await server.parts.calls.reset_authentication("bob") == 1
            await until(lambda: len(server.parts.clients.sessions) == 2)
            assert await server.parts.calls.reset_authentication() == 2
        told = [each["reason"] for each in events(server, "client_disconnected")]
        assert told.count("authentication_reset") == 3

    in_instance(tmp_path / "data", visit, config)

    async def open_to_all(server: InstanceServer) -> None:
        async with client_of(server):
            assert await server.parts.calls.reset_authentication() == 0

    in_instance(tmp_path / "open", open_to_all, CONFIG)


def test_a_dump_is_in_the_log_and_in_the_answer(tmp_path: Path) -> None:
    async def visit(server: InstanceServer) -> None:
        written: list[str] = []

        def write(event: str, details: dict[str, Any]) -> None:
            if event == "diagnostics":
                written.append(details["text"])

        server.runtime.events_log.write = write  # type: ignore[method-assign]
        lines = await server.parts.calls.dump()
        assert written == lines and lines[0].startswith("instance 'A': ")
        assert any(each.startswith("sow 'json/state': records=0") for each in lines)
        assert any(each.startswith("transport 'client': ") for each in lines)
        assert events(server, "diagnostics_dumped")[0]["lines"] == len(lines)

    in_instance(tmp_path, visit, CONFIG)


def test_a_dump_of_very_many_clients_is_cut() -> None:
    clients = [{"number": number, "client": "c"} for number in range(5_000)]
    began_s = time.monotonic()
    lines = diagnostic_lines({"name": "A", "client_connections": clients}, lines_max=100)
    assert len(lines) == 101 and lines[-1] == "and 4,901 more lines"
    assert time.monotonic() - began_s < DEADLINE_S


@pytest.mark.covers("Actions", "On a REST Request")
def test_a_request_begins_actions_of_the_configuration(tmp_path: Path) -> None:
    on = ActionModule("on", "admin", (("Path", "again"), ("RequiredParameter", "who")))
    action = ActionDefinition("recover", (on,), (ActionModule("do", "nothing"),))

    async def visit(server: InstanceServer) -> None:
        runtime = server.runtime
        told: list[tuple[str, Mapping[str, str]]] = []
        runtime.config = replace(runtime.config, actions=(action,))
        perform = server.parts.calls.perform
        asked = {"action": "again", "parameters": {"who": "amy", "AMPS_ADMIN_PATH": "no"}}
        with pytest.raises(FabricError, match="A performs no actions now"):
            await perform("run_action", asked, None)
        runtime.occurrences.listen(["admin"], lambda *each: told.append(each))
        assert await perform("run_action", asked, None) == "A begins recover"
        assert told == [("admin", {"who": "amy", "AMPS_ADMIN_PATH": "again"})]
        assert events(server, "control")[-1]["path"] == "/amps/administrator/actions/again"
        with pytest.raises(ConfigurationError, match="needs the parameter 'who'"):
            await perform("run_action", {"action": "again"}, None)
        with pytest.raises(ConfigurationError, match="no action at 'else': it has again"):
            await perform("run_action", {"action": "else", "parameters": {}}, None)
        assert len(told) == 1

    in_instance(tmp_path, visit, CONFIG)
