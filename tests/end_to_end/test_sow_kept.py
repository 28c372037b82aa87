"""The SOW topics of a real instance: what is on disk, what a restart finds, what the journal keeps
for it, and what is said where something is wrong."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import Client as RawClient
from support.instance_processes import Server, Servers
from support.waiting import until

from raylay.services.client import Client
from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import InstanceConfig
from raylay.services.config.journal import JournalConfig, RetentionConfig
from raylay.services.errors import SowDamaged, StorageError, StorageFull
from raylay.services.messages.topics import TopicRule
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.sow import manager, stored_topics
from raylay.services.server.sow.stored_topics import DAMAGED_SUFFIX, SOW_FILE, fingerprint
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.staging import SowStaging
from raylay.services.sow.state import SowRules, SowState, encoded
from raylay.storage import sow as sow_module
from raylay.storage.sow import LmdbSowStore

pytestmark = [
    pytest.mark.covers("SOW", "an instance folds its journal into its SOW topics"),
    pytest.mark.covers("SOW", "the journal is kept until the SOW store has it"),
]

DEADLINE_S = 30.0
ORDERS = SowTopicDefinition("orders", "json", keys=("/id",))
MEMORY = SowTopicDefinition("memory", "json", keys=("/id",), transient=True)
CONFIG = InstanceConfig("A", "g", first=True, sow=(ORDERS, MEMORY))


class Life:
    """One life of an instance, with a publisher."""

    def __init__(self, directory: Path, config: InstanceConfig = CONFIG) -> None:
        self.server = InstanceServer(config, directory)

    async def __aenter__(self) -> Life:
        await self.server.start()
        self.client = Client("p", servers=[self.server.runtime.client_address])
        await self.client.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.server.stop()

    async def publish(self, topic: str, *ids: int, text: str = "x") -> None:
        for each in ids:
            await self.client.publish(topic, b'{"id":%d,"text":"%s"}' % (each, text.encode()))
        await self.client.flush()

    def bodies(self, topic: str = "json/orders") -> list[bytes | None]:
        for each in self.server.parts.sow.book.topics:
            if each.definition.stored_as == topic:
                return sorted((record.body for record in each.state.records()), key=bytes)
        raise AssertionError(topic)

    def status(self, topic: str = "json/orders") -> dict[str, int]:
        found: dict[str, int] = self.server.status()["sow_topics"][topic]
        return found

    def events(self, name: str) -> list[str]:
        return [each.get("text", "") for each in self.server.events() if each["event"] == name]

    async def kill(self) -> None:
        """Nothing more is written to the store."""
        sow = self.server.parts.sow
        if sow._commit is not None:
            await sow._finish(sow._commit)
        self.server.parts.sow._folds.enlist(sow, False)
        sow.feature = None


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WRITE_INTERVAL_S", "IDLE_INTERVAL_S", "RETRY_S"):
        monkeypatch.setattr(manager, name, 0.1)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def of(*ids: int, text: str = "x") -> list[bytes]:
    return [b'{"id":%d,"text":"%s"}' % (each, text.encode()) for each in ids]


@pytest.mark.covers("SOW", "recovery: the store behind the log")
def test_a_restart_has_what_was_folded_saved_or_not(tmp_path: Path) -> None:
    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", 1, 2, 1)
            await life.publish("memory", 7)
            assert life.bodies() == of(1, 2) and life.bodies("json/memory") == of(7)
            await until(lambda: life.status()["pending_bytes"] == 0)
            assert life.status() | {"saved_txid": 0} == {
                "records": 2,
                "txid": 4,
                "saved_txid": 0,
                "pending_bytes": 0,
                "tombstones": 0,
                "deleted": 0,
                "expired": 0,
                "inserted": 2,
                "updated": 1,
            }
            await life.publish("orders", 3)
            await life.kill()
        async with Life(tmp_path) as life:
            assert life.bodies() == of(1, 2, 3) and life.bodies("json/memory") == of(7)
            await life.publish("orders", 4)
        async with Life(tmp_path) as life:
            assert life.bodies() == of(1, 2, 3, 4)
            assert life.status()["saved_txid"] == 6, "the end writes all"
            assert not any(each["event"].startswith("sow") for each in life.server.events())

    run(lives())


def test_the_journal_is_kept_until_the_store_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(
        CONFIG,
        journal=JournalConfig(
            segment_bytes=64 * 1024, retention=RetentionConfig(size_bytes=64 * 1024)
        ),
    )
    full = True
    commit = LmdbSowStore.commit

    def fails(store: LmdbSowStore, changes: Any) -> None:
        if full and any(entries for entries, _ in changes.values() if set(entries) != {b"f"}):
            raise StorageFull("no space left", SOW_FILE)
        commit(store, changes)

    monkeypatch.setattr(LmdbSowStore, "commit", fails)

    async def lives() -> None:
        nonlocal full
        async with Life(tmp_path, config) as life:
            journal = life.server.parts.instance.journal
            for number in range(12):
                await life.publish("orders", number % 3, text="x" * 40_000)
            (failure,) = await until(lambda: life.events("sow_store_failed"))
            assert "no space left; nothing is lost" in failure
            assert life.server.status()["sow_store_failure"]
            assert len(journal.segments()) > 4 and journal.first_txid == 1
            full = False
            await until(lambda: life.events("sow_store_recovered"))
            await until(lambda: not life.status()["pending_bytes"])
            await life.publish("orders", 1, text="y" * 40_000)
            await life.publish("orders", 2, text="y" * 40_000)
            await until(lambda: journal.first_txid > 8)
            await until(lambda: not life.status()["pending_bytes"])
        async with Life(tmp_path, config) as life:
            assert life.bodies() == [*of(0, text="x" * 40_000), *of(1, 2, text="y" * 40_000)]

    run(lives())


def test_what_waits_for_a_store_that_fails_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "UNSAVED_BYTES_MAX", 400_000)
    monkeypatch.setattr(manager, "RETRY_S", 0.0)
    full = True
    commit = LmdbSowStore.commit

    def fails(store: LmdbSowStore, changes: Any) -> None:
        if full and any(entries for entries, _ in changes.values() if set(entries) != {b"f"}):
            raise StorageFull("no space left", SOW_FILE)
        commit(store, changes)

    monkeypatch.setattr(LmdbSowStore, "commit", fails)

    async def lives() -> None:
        nonlocal full
        async with Life(tmp_path) as life:
            for _ in range(20):
                await life.publish("orders", 1, text="x" * 40_000)
            await until(lambda: life.events("sow_store_failed"))
            feature = life.server.parts.sow.feature
            assert feature is not None and feature.unsaved_bytes < 100_000, "one key is there once"

            async def publish() -> None:
                for each in range(30):
                    await life.publish("orders", each, text="y" * 40_000)

            publishing = asyncio.ensure_future(publish())
            (text,) = await until(lambda: life.events("sow_store_behind"))
            assert "400,000 bytes of SOW records wait in memory" in text and "no space left" in text
            status = life.server.status()
            assert status["state"] == "failed" and status["storage_failure"] == text
            for _ in range(10):
                life.server.parts.sow.check()
                assert not life.events("sow_store_caught_up") and not publishing.done()
                await until(lambda: life.server.parts.sow._commit is None)
            # A record that is published while the one before it is written counts twice meanwhile.
            assert 350_000 < feature.unsaved_bytes < 500_000
            full = False
            await publishing
            # The last of them are folded behind their acks, and a slow disk may be behind again.
            await until(lambda: len(life.bodies()) == 30 and not life.status()["pending_bytes"])
            await until(lambda: life.server.status()["state"] == "ready")
            assert len(life.events("sow_store_caught_up")) == len(life.events("sow_store_behind"))
            full = True
            await life.publish("orders", *range(2), text="z" * 40_000)
            await life.kill()
        # A recovery that cannot write does not fill the memory either.
        for module in (manager, stored_topics):
            monkeypatch.setattr(module, "UNSAVED_BYTES_MAX", 50_000)
            monkeypatch.setattr(module, "PENDING_BYTES", 50_000)
        with pytest.raises(StorageFull, match="no space left"):
            await Life(tmp_path).server.start()
        full = False
        async with Life(tmp_path) as life:
            assert life.bodies()[:2] == of(0, 1, text="z" * 40_000) and len(life.bodies()) == 30

    run(lives())


@pytest.mark.covers("SOW", "recovery: the store behind the log")
@pytest.mark.parametrize("how", ["missing", "cut", "garbage"])
def test_a_store_that_cannot_be_used_is_made_anew(tmp_path: Path, how: str) -> None:
    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", *range(100))
        path = tmp_path / SOW_FILE
        whole = path.read_bytes()
        if how == "missing":
            path.unlink()
        else:
            path.write_bytes(whole[: 3 * 4096] if how == "cut" else b"\0garbage" * 4096)
        async with Life(tmp_path) as life:
            assert life.bodies() == sorted(of(*range(100)))
            said = life.events("sow_store_damaged")
            assert len(said) == (how != "missing")
            for text in said:
                assert "made anew from the journal" in text and "what was published" not in text
            assert (tmp_path / (SOW_FILE + DAMAGED_SUFFIX)).exists() == bool(said)

    run(lives())


@pytest.mark.slow
@pytest.mark.parametrize("by", ["start", "fold", "delta", "expiry"])
def test_a_record_that_is_found_damaged_has_the_store_made_anew(tmp_path: Path, by: str) -> None:
    config = CONFIG
    if by == "expiry":
        brief = replace(ORDERS, rules=SowRules(expires=True, lifetime_us=4_000_000))
        config = replace(CONFIG, sow=(brief,))

    async def damage(life: Life) -> list[bytes]:
        sow = life.server.parts.sow
        await until(lambda: not life.status()["pending_bytes"] and sow._commit is None)
        assert sow._stored.store is not None
        txid = sow._stored.store.topic("json/orders").txid
        entries = [
            entry for entry, _ in sow._stored.store.topic("json/orders").chunk(b"v", b"w", 9)
        ]
        sow._stored.store.commit({"json/orders": (dict.fromkeys(entries, b"none"), txid)})
        return [entry[1:] for entry in entries]

    async def lives() -> None:
        life = Life(tmp_path, config)
        await life.server.start()
        async with Client("q", servers=[life.server.runtime.client_address]) as client:
            for each in (1, 2):
                await client.publish("orders", b'{"id":%d,"text":"x"}' % each)
            await client.flush()
            (key, *_) = await damage(life)
            if by == "fold":
                await client.publish("orders", b'{"id":1,"text":"x"}')
            elif by == "delta":
                # As a delta asks for it before it is journaled; no client sends it again.
                (topic,) = (
                    each for each in life.server.parts.sow.book.topics if each.name == b"orders"
                )
                assert isinstance(topic.staging, SowStaging)
                life.server.runtime.loop.call_soon(topic.staging.value, key, 0)
            if by != "start":
                with pytest.raises(SowDamaged, match="has 4 bytes only"):
                    await asyncio.wait_for(life.server.finished(), DEADLINE_S)
            await life.kill()
            await life.server._close_everything()
        async with Life(tmp_path) as again:
            assert again.bodies() == of(1, 2)
            (said,) = again.events("sow_store_damaged")
            assert "made anew" in said

    run(lives())


def test_a_store_that_cannot_be_opened_now_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not damaged, and what the journal does not reach back to is in it alone."""

    def fails(path: Path, map_bytes: int) -> Any:
        raise StorageError(f"{path} cannot be used") from OSError("Too many open files")

    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", 1, 2)
        with monkeypatch.context() as patched:
            patched.setattr(sow_module, "open_store", fails)
            with pytest.raises(StorageError, match="cannot be used"):
                await Life(tmp_path).server.start()
        async with Life(tmp_path) as life:
            assert life.bodies() == of(1, 2) and not life.events("sow_store_damaged")

    run(lives())


def test_what_is_of_another_configuration_is_made_anew(tmp_path: Path) -> None:
    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", 1, 2)
            await life.publish("orders", 3, text="y")
        by_text = replace(ORDERS, keys=("/text",))
        async with Life(tmp_path, replace(CONFIG, sow=(by_text,))) as life:
            (said,) = life.events("sow_rebuilt")
            assert "the configuration of SOW topic json/orders has changed" in said
            assert life.bodies() == [*of(2), *of(3, text="y")]
        async with Life(tmp_path, replace(CONFIG, sow=(by_text,))) as life:
            assert not life.events("sow_rebuilt")

    run(lives())


def test_a_topic_that_was_dropped_in_part_is_made_anew(tmp_path: Path) -> None:
    """As by a kill while a large one was dropped."""

    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", 1, 2)
            old = next(iter(life.server.parts.sow.book.topics[0].state.records()))
        store = LmdbSowStore(tmp_path / SOW_FILE)
        store.commit({"json/orders": ({b"f": None, b"c": None, b"vold": encoded(old)}, 0)})
        store.close()
        async with Life(tmp_path) as life:
            assert life.bodies() == of(1, 2) and life.status()["records"] == 2

    run(lives())


def test_a_fold_that_fails_in_the_middle_is_folded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = SowState.delete
    seen: list[bytes] = []

    def fails(state: SowState, key: bytes, txid: int, *arguments: Any) -> Any:
        seen.append(key)
        if type(state) is SowState and len(set(seen)) == 2:
            raise StorageError("sow.lmdb cannot be read", "sow.lmdb")
        return delete(state, key, txid, *arguments)

    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", 1, 2)
            keys = [each.key for each in life.server.parts.sow.book.topics[0].state.records()]
            await until(lambda: not life.status()["pending_bytes"])
        with monkeypatch.context() as patched:
            patched.setattr(SowState, "delete", fails)
            life = Life(tmp_path)
            await life.server.start()
            async with Client("q", servers=[life.server.runtime.client_address]) as client:
                await client.sow_delete("orders", keys=keys)
                with pytest.raises(StorageError, match="cannot be read"):
                    await life.server.finished()
            await life.server._close_everything()
        async with Life(tmp_path) as again:
            assert seen[-1] != seen[0] and again.bodies() == []

    run(lives())


def test_what_is_no_record_of_its_topic_is_said_once(tmp_path: Path) -> None:
    """As what another instance brought, which has the topic configured otherwise."""

    async def lives() -> None:
        async with Life(tmp_path, replace(CONFIG, sow=())) as life:
            await life.client.publish("orders", b"{}")
            await life.client.publish("orders", b"{")
            await life.publish("orders", 1)
        async with Life(tmp_path) as life:
            (said,) = await until(lambda: life.events("sow_unreadable"))
            assert re.search(r"on orders is in the log and not in SOW topic orders: .* /id", said)
            assert life.server.status()["sow_unreadable"] == 2 and life.bodies() == of(1)

    run(lives())


def test_a_new_journal_beside_the_store_goes_on_from_it(tmp_path: Path) -> None:
    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", 1, 2, 3)
        for path in sorted((tmp_path / "journal").iterdir()):
            path.unlink()
        async with Life(tmp_path) as life:
            (said,) = life.events("sow_ahead")
            assert "its records are kept" in said
            assert life.bodies() == of(1, 2, 3)
            await life.client.publish("orders", b'{"id":2,"text":"y"}')
            await life.client.flush()
        async with Life(tmp_path) as life:
            assert life.bodies() == [*of(1), *of(2, text="y"), *of(3)]
            assert not life.events("sow_ahead")

    run(lives())


def test_what_expires_is_counted_and_gone(tmp_path: Path) -> None:
    brief = replace(ORDERS, rules=SowRules(expires=True, lifetime_us=300_000))

    async def lives() -> None:
        async with Life(tmp_path, replace(CONFIG, sow=(brief,))) as life:
            await life.publish("orders", 1, 2)
            await until(lambda: life.status()["expired"] == 2)
            assert life.bodies() == [] and life.status()["records"] == 0
            found = life.server.parts.status.snapshot()["sow_topics"]["json/orders"]
            assert (found["records"], found["expired"]) == (0, 2)

    run(lives())


def test_a_failed_append_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store claims nothing that the journal has not committed."""

    async def lives() -> None:
        async with Life(tmp_path) as life:
            await life.publish("orders", 1)
            machine = life.server.parts.instance.machine
            before = life.status()["txid"]
            life.server.parts.commits.cycle.failed(
                machine.next_txid, StorageFull("no space left", "x")
            )
            await until(lambda: life.status()["saved_txid"] == before)
            await asyncio.sleep(0.3)  # Another write, if there were one, would be within 0.1 s.
            store = life.server.parts.sow._stored.store
            assert store is not None
            assert store.topic("json/orders").txid == before == machine.committed_txid

    run(lives())


def test_no_topics_no_store(tmp_path: Path) -> None:
    async def lives() -> None:
        async with Life(tmp_path, replace(CONFIG, sow=(MEMORY,))) as life:
            await life.publish("memory", 1)
            assert life.bodies("json/memory") == of(1)
        async with Life(tmp_path, replace(CONFIG, sow=())) as life:
            await life.publish("orders", 1)
            assert "sow_topics" not in life.server.status()
        assert not (tmp_path / SOW_FILE).exists()

    run(lives())


def test_what_decides_which_records_there_are() -> None:
    same = (replace(ORDERS, rules=SowRules(expires=True)), replace(ORDERS, recovery_point="now"))
    others = (
        replace(ORDERS, message_type="xml"),
        replace(ORDERS, keys=("/no",)),
        replace(ORDERS, key_domain="d"),
        replace(ORDERS, pattern="o"),
        replace(ORDERS, last_writer=True),
        replace(ORDERS, rules=SowRules(window_us=1)),
        replace(ORDERS, keys=(), key_generator="g"),
        replace(ORDERS, keys=(), key_generator="g", key_generator_options={"a": "b"}),
    )
    prints = [fingerprint(each, None) for each in (ORDERS, *others)]
    assert len({*prints, fingerprint(ORDERS, {"kind": "fix"})}) == 10
    assert {fingerprint(each, None) for each in same} == {prints[0]}


@pytest.mark.covers("SOW", "a bootstrap copies of SOW topics what the log does not reach back")
@pytest.mark.parametrize("as_before", [True, False])
def test_a_copy_has_what_the_log_does_not_reach_back_to(tmp_path: Path, as_before: bool) -> None:
    small = replace(
        CONFIG,
        journal=JournalConfig(
            segment_bytes=64 * 1024, retention=RetentionConfig(size_bytes=64 * 1024)
        ),
    )

    async def lives() -> None:
        async with Life(tmp_path / "A", small) as life:
            await life.publish("orders", *range(20))
            for number in range(12):
                await life.publish("orders", number % 3, text="x" * 40_000)
            await until(lambda: life.server.parts.instance.journal.first_txid > 20)
            address = life.server.runtime.replication_address
            wanted = life.bodies()
            assert len(wanted) == 20
            copying = replace(CONFIG, name="B", bootstrap=BootstrapConfig((address,)))
            if as_before:
                # Of another log: nothing of it may be left.
                async with Life(tmp_path / "B", replace(CONFIG, name="B")) as before:
                    await before.publish("orders", 100, 101)
                for path in sorted((tmp_path / "B" / "journal").iterdir()):
                    path.unlink()
            else:
                other = replace(ORDERS, keys=("/text", "/id"))
                copying = replace(copying, sow=(other,))
            async with Life(tmp_path / "B", copying) as copy:
                (said,) = copy.events("bootstrap_sow")
                if as_before:
                    assert copy.bodies() == wanted and re.search("1[789] records of SOW", said)
                    assert copy.status()["records"] == 20
                    await copy.publish("orders", 5, text="new")
                else:
                    assert 1 <= len(copy.bodies()) <= 3 and " 0 records of SOW topics" in said
        if as_before:
            async with Life(tmp_path / "B", copying) as copy:
                assert sorted([*wanted, *of(5, text="new")]) == sorted([*copy.bodies(), *of(5)])

    run(lives())


@pytest.mark.slow
def test_sigkill_at_any_instant(servers: Servers, tmp_path: Path) -> None:
    """What was acknowledged is in the SOW of the next life, whatever of it was on disk."""
    server = Server(tmp_path / "solo", replace(CONFIG, name="solo", topics=(TopicRule(".*"),)))
    servers.append(server)
    last: dict[int, int] = {}
    sequence = 0
    for _ in range(4):
        client = RawClient(server.address, "publisher")
        end_s = time.monotonic() + 1.3
        while time.monotonic() < end_s:
            begin = sequence + 1
            sequence += 50
            numbers = range(begin, sequence + 1)
            from raylay.services.messages.records import RecordBuilder

            builder = RecordBuilder(client.answer["publisher"], "orders", "json")
            records = (
                builder.build(n, b'{"id":%d,"n":%d}' % (n % 97, n), time.time_ns() // 1000)
                for n in numbers
            )
            client.send({"c": "pb", "n": len(numbers)}, b"".join(records))
            client.persisted(sequence)
            last |= {n % 97: n for n in numbers}
        server.kill()
        server.start()
    server.stop()
    store = LmdbSowStore(tmp_path / "solo" / SOW_FILE)
    from raylay.services.plugins.sow import sow_book

    (topic,) = sow_book((ORDERS,), (), store).topics
    found = {topic.type.parse(record.body or b"")["id"]: record for record in topic.state.records()}
    assert {key: each.sequence for key, each in found.items()} == last
    store.close()
