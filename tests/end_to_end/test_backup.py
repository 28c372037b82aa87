"""Backups of instances that run, and what begins from them, with real processes."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from end_to_end.test_queues import Consumer
from support.instance_processes import Client, Server, Servers, pair, single

from raylay.services.commands.shared.separate_backup import (
    BackupRequest,
    make_there,
    manifest_of,
)
from raylay.services.config.journal import JournalConfig
from raylay.services.errors import StorageError, StorageFull, StorageLocked
from raylay.services.inspection.store_rows import sow_rows
from raylay.services.messages.records import publisher_id
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.server.data import backup_manifest
from raylay.services.server.data.backup import make_backup
from raylay.services.server.data.backup_manifest import (
    DATA_DIRECTORY,
    MANIFEST_FILE,
    BackupFile,
)
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY, STATE_FILE
from raylay.services.server.data.restore import RestoreTarget, check_backup, restore
from raylay.services.server.sow.stored_topics import SOW_FILE
from raylay.services.sow.definition import SowTopicDefinition
from raylay.storage.maintenance import SegmentMaintenance

PUBLISHER = publisher_id("publisher")
READY = " 00-0002 ready"


def backed_up(server: Server, place: Path) -> Path:
    *_, last = make_backup(server.directory, place, "orders", "")
    return Path(last["backup"])


def restored(path: Path, server: Server, *, force: bool = False, generation: int = 0) -> None:
    restore(path, check_backup(path), RestoreTarget(server.directory, generation), force=force)


def sequences(server: Server) -> list[int]:
    return sorted(number for found, number in server.journal() if found == PUBLISHER)


class Publishing:
    """A client that publishes one message after the other in a thread until it is told to stop."""

    def __init__(self, server: Server, first: int) -> None:
        self.acknowledged = first - 1
        self._grew = threading.Condition()
        self._stopping = threading.Event()
        self._client = Client(server.address, "publisher")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            number = self.acknowledged + 1
            self._client.publish(range(number, number + 1))
            self._client.persisted(number)
            with self._grew:
                self.acknowledged = number
                self._grew.notify_all()

    def goes_on(self, count: int = 20) -> None:
        with self._grew:
            wanted = self.acknowledged + count
            assert self._grew.wait_for(lambda: self.acknowledged >= wanted, 60)

    def stop(self) -> int:
        self._stopping.set()
        self._thread.join()
        self._client.close()
        return self.acknowledged


@pytest.mark.covers("Journal", "a backup of an instance of another host")
def test_a_worker_of_another_host_makes_and_verifies_a_backup(
    servers: Servers, tmp_path: Path
) -> None:
    solo = single(servers, tmp_path)
    Client(solo.address, "publisher").publish_numbered(1, 20)
    place = tmp_path / "backups"
    answer = make_there(BackupRequest(str(solo.directory), str(place), "orders", "{}"))
    path, manifest = manifest_of(answer)
    assert manifest.messages == 40 and check_backup(Path(path)) == manifest
    assert [each.name for each in place.iterdir()] == [Path(path).name]


@pytest.mark.covers("Journal", "a backup of an instance that runs")
def test_an_instance_that_lost_its_disk_begins_from_a_backup_and_catches_up(
    servers: Servers, tmp_path: Path
) -> None:
    a, b = pair(servers, tmp_path)
    Client(a.address, "publisher").publish_numbered(1, 50)
    publishing = Publishing(a, 51)
    publishing.goes_on()
    acknowledged = publishing.acknowledged
    path = backed_up(a, tmp_path / "backups")
    publishing.goes_on()
    last = publishing.stop()
    manifest = check_backup(path)
    assert acknowledged + 50 <= manifest.messages < last + 50
    Client(a.address, "publisher").publish_numbered(last + 1, last + 30)
    last += 30
    before = a.status["incarnation"]
    assert manifest.incarnation == before
    a.kill()
    shutil.rmtree(a.directory)
    restored(path, a)
    in_backup = sequences(a)
    assert in_backup == [*range(1, len(in_backup) + 1)] and len(in_backup) >= acknowledged
    # What is newer is with the peer: no client is let in before it came.
    b.kill()
    a.start()
    assert a.status["incarnation"] != before and not a.status["ready"]
    a.wait_for("data_directory_copied")
    ready = a.events(READY)
    b.start()
    a.wait_for(READY, times=ready + 1)
    client = Client(a.address, "publisher")
    assert client.answer["status"] == "success" and client.answer["highest"] == last
    # What the instance numbers itself is taken for nothing that it numbered before.
    client.publish_numbered(last + 1, last + 10)
    last += 10
    for server in (a, b):
        assert sequences(server) == [*range(1, last + 1)]
        assert len(server.journal()) == len({*server.journal()}) == last + 90
        assert server.events(" conflict ") == 0
    assert a.stop() == 0
    a.start()
    assert a.status["ready"], "it is no copy any more"


@pytest.mark.covers("Journal", "a backup of an instance that runs")
def test_a_whole_fabric_begins_from_backups_of_two_moments(
    servers: Servers, tmp_path: Path
) -> None:
    a, b = pair(servers, tmp_path)
    publishing = Publishing(a, 1)
    publishing.goes_on()
    first = backed_up(a, tmp_path / "backups")
    publishing.goes_on()
    acknowledged = publishing.acknowledged
    second = backed_up(b, tmp_path / "backups")
    publishing.goes_on()
    publishing.stop()
    for server, path in ((a, first), (b, second)):
        server.kill()
        shutil.rmtree(server.directory)
        restored(path, server)
    later = len(sequences(b))
    assert acknowledged <= later and len(sequences(a)) < later
    for server in (a, b):
        server.begin_start()
    for server in (a, b):
        server.await_start()
        server.wait_for("data_directory_copied")
    for server in (a, b):
        server.wait_for_behind(READY, "data_directory_copied", 1)
    client = Client(a.address, "publisher")
    assert client.answer["highest"] == later
    client.publish_numbered(later + 1, later + 10)
    for server in (a, b):
        assert sequences(server) == [*range(1, later + 11)]
        assert server.events(" conflict ") == 0


def test_sow_records_are_those_of_the_backup(servers: Servers, tmp_path: Path) -> None:
    topic = SowTopicDefinition("orders", "json", keys=("/id",))
    solo = single(servers, tmp_path, sow=(topic,))
    client = Client(solo.address, "publisher")

    def put(first: int, last: int) -> None:
        for number in range(first, last + 1):
            body = json.dumps({"id": number % 10, "n": number}).encode()
            client.send({"c": "p", "t": "orders", "cid": f"n{number}", "a": "persisted"}, body)
            assert client.ack(cid=f"n{number}", a="persisted").header["status"] == "success"

    put(1, 25)
    path = backed_up(solo, tmp_path / "backups")
    put(26, 60)
    solo.kill()
    restored(path, solo, force=True)
    solo.start()
    assert solo.stop() == 0
    rows = [row for row in sow_rows(solo.directory / SOW_FILE) if row["row"] == "record"]
    assert sorted(json.loads(row["body"])["n"] for row in rows) == [*range(16, 26)]
    assert solo.events("sow_ahead") == solo.events("sow_gap") == 0


def test_a_queue_begins_with_what_the_backup_has_not_acknowledged(
    servers: Servers, tmp_path: Path
) -> None:
    queue = QueueDefinition(
        "work", "json", underlying="orders", lease_us=60_000_000, subscription_backlog_max=100
    )
    solo = single(servers, tmp_path, topics=(TopicRule(".*", "json"),), queue_definitions=(queue,))
    publisher = Client(solo.address, "publisher")
    publisher.publish(range(1, 11))
    publisher.persisted(10)

    def taken(consumer: Consumer, count: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while len(found) < count:
            found += [key for key, _ in consumer.take()]
        return found

    consumer = Consumer(solo.address, "billing", max_backlog=100)
    keys = taken(consumer, 10)
    consumer.persisted(consumer.done(keys[:4]))
    path = backed_up(solo, tmp_path / "backups")
    manifest = check_backup(path)
    assert manifest.messages == 10 < manifest.last_txid, "an acknowledgment is no message"
    consumer.persisted(consumer.done(keys[4:]))
    solo.kill()
    restored(path, solo, force=True)
    solo.start()
    publisher = Client(solo.address, "publisher")
    assert publisher.answer["highest"] == 10
    publisher.publish(range(11, 13))
    publisher.persisted(12)
    again = taken(Consumer(solo.address, "shipping", max_backlog=100), 8)
    assert sorted(again) == [*sorted(keys[4:]), (PUBLISHER, 11), (PUBLISHER, 12)]


@pytest.fixture
def stopped(servers: Servers, tmp_path: Path) -> tuple[Server, Path]:
    """An instance of 20 messages that is down, and a backup of 10."""
    solo = single(servers, tmp_path)
    client = Client(solo.address, "publisher")
    client.publish_numbered(1, 5)
    path = backed_up(solo, tmp_path / "backups")
    client.publish_numbered(6, 10)
    assert solo.stop() == 0
    return solo, path


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("lock", "backup.json")
    }


def test_what_is_there_is_moved_aside_only_by_force(stopped: tuple[Server, Path]) -> None:
    solo, path = stopped
    before = content(solo.directory)
    with pytest.raises(StorageError, match="solo is not empty: move it away, or give --force"):
        restored(path, solo)
    assert content(solo.directory) == before
    result = restore(path, check_backup(path), RestoreTarget(solo.directory), force=True)
    ((there, aside),) = result.moved
    assert there == solo.directory and content(aside) == before
    assert len(solo.journal()) == 10
    assert [each.name for each in solo.directory.parent.glob("*.restoring")] == []


def test_a_running_instance_is_not_replaced(servers: Servers, tmp_path: Path) -> None:
    solo = single(servers, tmp_path)
    Client(solo.address, "publisher").publish_numbered(1, 5)
    path = backed_up(solo, tmp_path / "backups")
    with pytest.raises(StorageLocked, match=f"pid {solo.process.pid}"):
        restored(path, solo, force=True)
    Client(solo.address, "publisher").publish_numbered(6, 10)
    assert len(solo.journal()) == 20


def test_files_that_are_damaged_are_named_and_nothing_is_changed(
    stopped: tuple[Server, Path],
) -> None:
    solo, path = stopped
    before = content(solo.directory)
    names = [file.path for file in check_backup(path).files]
    assert f"{DATA_DIRECTORY}/{STATE_FILE}" in names
    for name in (*names, MANIFEST_FILE):
        file = path / name
        sound = file.read_bytes()
        flipped = bytearray(sound)
        flipped[len(sound) // 2] ^= 1
        for damaged in (bytes(flipped), sound[:-1], None):
            if damaged is None:
                file.unlink()
            else:
                file.write_bytes(damaged)
            with pytest.raises(StorageError, match=str(file.relative_to(path))):
                restored(path, solo, force=True)
            file.write_bytes(sound)
    assert content(solo.directory) == before
    restored(path, solo, force=True)


def test_a_backup_that_was_not_finished_is_refused(stopped: tuple[Server, Path]) -> None:
    solo, path = stopped
    partial = path.rename(path.with_name(path.name + ".partial"))
    (partial / MANIFEST_FILE).unlink()
    with pytest.raises(StorageError, match=r"\.partial is a backup that was not finished"):
        restored(partial, solo)
    with pytest.raises(StorageError, match=r"is no backup of an instance: backup\.json: No such"):
        restored(solo.directory, solo)


def test_a_file_that_is_damaged_while_it_is_copied_leaves_what_is_there(
    stopped: tuple[Server, Path],
) -> None:
    solo, path = stopped
    before = content(solo.directory)
    manifest = check_backup(path)
    (path / manifest.files[-1].path).write_bytes(b"x")
    with pytest.raises(StorageError, match="is damaged: it has 1 bytes of"):
        restore(path, manifest, RestoreTarget(solo.directory), force=True)
    assert content(solo.directory) == before
    assert [*solo.directory.parent.glob("solo*")] == [solo.directory]


@pytest.mark.parametrize(
    "name", ["../instance.json", "data/../../x", "/etc/passwd", "elsewhere/x", "."]
)
def test_a_manifest_names_no_file_outside_of_the_backup(
    stopped: tuple[Server, Path], name: str
) -> None:
    solo, path = stopped
    manifest = check_backup(path)
    forged = replace(manifest, files=(BackupFile(name, 1, "00"), *manifest.files))
    (path / MANIFEST_FILE).write_text(forged.text())
    with pytest.raises(StorageError, match="names a file outside of the backup"):
        restored(path, solo, force=True)


def test_a_disk_without_room_is_told_before_anything_is_written(
    stopped: tuple[Server, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    solo, path = stopped
    before = content(solo.directory)
    monkeypatch.setattr(backup_manifest, "LEFT_BYTES_MIN", 1 << 60)
    with pytest.raises(
        StorageFull, match=r"bytes are needed, and .* more are to stay free; .* are free"
    ):
        backed_up(solo, path.parent / "more")
    with pytest.raises(
        StorageFull, match=r"bytes are needed, and .* more are to stay free; .* are free"
    ):
        restored(path, solo, force=True)
    assert content(solo.directory) == before
    assert [*(path.parent / "more").iterdir()] == []


def test_a_damaged_journal_gives_no_backup(stopped: tuple[Server, Path]) -> None:
    solo, path = stopped
    (live,) = (solo.directory / JOURNAL_DIRECTORY).glob("*.live")
    content = bytearray(live.read_bytes())
    at = content.index(b"m7")
    content[at] ^= 1
    live.write_bytes(content)
    with pytest.raises(StorageError, match=r"the copy is not sound: .*byte"):
        backed_up(solo, path.parent / "more")
    assert [*(path.parent / "more").iterdir()] == []


def test_a_directory_that_is_no_data_directory_gives_no_backup(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is nothing to back up"):
        [*make_backup(tmp_path, tmp_path / "backups", "orders", "")]
    assert not (tmp_path / "backups").exists()


def test_an_archive_is_in_the_backup_and_moves_aside_with_the_data(
    servers: Servers, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    journal = JournalConfig(segment_bytes=64 * 1024, archive_directory=str(archive))
    solo = single(servers, tmp_path, journal=journal)
    client = Client(solo.address, "publisher")
    for first in range(1, 101, 10):
        client.publish(range(first, first + 10), text="m" * 4_000)
        client.persisted(first + 9)
    assert solo.stop() == 0
    maintenance = SegmentMaintenance(solo.directory / JOURNAL_DIRECTORY, archive)
    assert any(outcome.done for outcome in maintenance.archive())
    path = backed_up(solo, tmp_path / "backups")
    assert check_backup(path).messages == 100
    shutil.rmtree(solo.directory)
    with pytest.raises(StorageError, match="archive is not empty"):
        restored(path, solo)
    restored(path, solo, force=True)
    assert len(solo.journal()) == 100
    solo.start()
    client = Client(solo.address, "publisher")
    assert client.answer["highest"] == 100


def test_an_instance_that_was_moved_since_gets_its_present_generation(
    stopped: tuple[Server, Path],
) -> None:
    solo, path = stopped
    solo.config = replace(solo.config, generation=3)
    shutil.rmtree(solo.directory)
    restored(path, solo, generation=3)
    solo.config.save(solo.directory)
    solo.start()
    assert solo.status["generation"] == 3
    Client(solo.address, "publisher").publish_numbered(6, 10)
