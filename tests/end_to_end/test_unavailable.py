"""What every upstream has removed is recorded by the one that lacks it: real files, real links."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.instance_processes import Client, Server, Servers, pair

from raylay.services.config.journal import JournalConfig
from raylay.services.messages.records import publisher_id
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.storage.lmdb_journal import LmdbJournal

pytestmark = pytest.mark.covers("Resync and bootstrap", "what no upstream has any more is recorded")

MESSAGES = 4_000
BATCH = 100


def restarted(server: Server) -> Server:
    server.stop()
    server.start()
    return server


def test_what_was_removed_before_a_disk_was_lost_is_unavailable(
    servers: Servers, tmp_path: Path
) -> None:
    a, b = pair(servers, tmp_path)
    a.config.journal = JournalConfig(segment_bytes=64 * 1024)
    a.config.save(a.directory)
    restarted(a)
    client = Client(a.address, "publisher")
    for first in range(1, MESSAGES + 1, BATCH):
        client.publish(range(first, first + BATCH))
        client.persisted(first + BATCH - 1)
    b.kill()
    a.stop()
    journal = LmdbJournal(a.directory / JOURNAL_DIRECTORY)
    before_txid = journal.last_txid // 2
    assert any(outcome.done for outcome in journal.remove(before_txid, force=True))
    gone = journal.first_txid - 1
    journal.close()
    assert 0 < gone < MESSAGES
    shutil.rmtree(b.directory / JOURNAL_DIRECTORY)
    (b.directory / "state.lmdb").unlink()
    b.start()
    a.start()
    b.wait_for("messages_unavailable")
    publisher = publisher_id("publisher")
    assert b.journal() == [(publisher, number) for number in range(gone + 1, MESSAGES + 1)]
    assert b.events("messages_unavailable") == 1

    # It goes on, and knows it after a restart.
    client = Client(a.address, "publisher", low=MESSAGES + 1)
    client.publish(range(MESSAGES + 1, MESSAGES + 11))
    client.persisted(MESSAGES + 10)
    for _ in range(2):
        assert restarted(b).status["unavailable"] == gone
        assert b.status["unavailable_ranges"] == [[publisher, 1, gone]]
    assert len(b.journal()) == MESSAGES + 10 - gone
