"""The documented way to free a full disk, while the instance on it runs and has readers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.instance_processes import DEADLINE_S, Client, Server, Servers, single
from support.small_disk import small_disk_at
from typer.testing import CliRunner

from raylay.services.commands import journal as journal_commands
from raylay.services.commands.journal import journal_app
from raylay.services.config.journal import JournalConfig
from raylay.services.messages.records import RecordBuilder
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.storage.maintenance import read_floor

pytestmark = pytest.mark.covers("Journal", "the documented way frees a full disk")

BODY = bytes(100_000)
PAGE_BYTES = 4_096
MESSAGES = 60
REMOVED_BEFORE_TXID = 30


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "disk", 24) as disk:
        yield disk


class Desk:
    """A publisher, which counts what is acknowledged."""

    def __init__(self, server: Server) -> None:
        self.client = Client(server.address, "desk")
        self._builder = RecordBuilder(self.client.answer["publisher"], "orders", "json")
        self.acked = 0

    def publish(self) -> None:
        number = self.acked + 1
        record = self._builder.build(number, BODY, time.time_ns() // 1000)
        self.client.send({"c": "pb", "n": 1}, record)
        self.client.persisted(number)
        self.acked = number


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(PAGE_BYTES))
    assert os.statvfs(disk).f_bavail == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["archive", "remove"])
def test_a_full_disk_is_freed_beside_a_running_instance_that_has_read_all(
    servers: Servers, small_disk: Path, tmp_path: Path, command: str
) -> None:
    server = single(servers, small_disk, journal=JournalConfig(segment_bytes=1024 * 1024))
    journal = server.directory / JOURNAL_DIRECTORY
    desk = Desk(server)
    for _ in range(MESSAGES):
        desk.publish()
    fill(small_disk)
    # What may be removed is told on the full disk, too.
    deadline_s = time.monotonic() + DEADLINE_S
    while read_floor(journal) < REMOVED_BEFORE_TXID:
        assert time.monotonic() < deadline_s, server.log[-2_000:]
        time.sleep(0.05)
    reader = Client(server.address, "reader")
    reader.send({"c": "subscribe", "sub": "s", "t": "orders", "bm": "0", "cid": "s"})
    reader.receive(MESSAGES)
    options = {
        "archive": ["--archive", str(tmp_path / "archive")],
        "remove": ["--before", str(REMOVED_BEFORE_TXID)],
    }
    done = CliRunner().invoke(journal_app, [command, str(journal), *options[command]])
    assert done.exit_code == 0, done.output
    assert "in use" not in done.output and done.output.count("d\n") >= 2, done.output
    assert os.statvfs(small_disk).f_bavail > 0
    desk.publish()


def test_who_holds_a_segment_is_named_by_the_command(
    servers: Servers, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_commands, "READERS_AWAITED_S", 0.0)
    server = single(servers, small_disk, journal=JournalConfig(segment_bytes=1024 * 1024))
    journal = server.directory / JOURNAL_DIRECTORY
    desk = Desk(server)
    for _ in range(MESSAGES):
        desk.publish()
    server.stop()
    program = (
        "import sys\nfrom raylay.storage.journal_reader import LmdbJournalReader\n"
        "reader = LmdbJournalReader(sys.argv[1])\nreader.read(0)\nprint('has', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(journal)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        assert reader.stdout.readline() == b"has\n"
        arguments = ["remove", str(journal), "--before", str(REMOVED_BEFORE_TXID), "--force"]
        done = CliRunner().invoke(journal_app, arguments)
        assert done.exit_code == 2 and f"in use by a reader (process {reader.pid})" in done.output
        # Where it ends meanwhile, the command goes on.
        monkeypatch.setattr(journal_commands, "READERS_AWAITED_S", DEADLINE_S)
        # Of this module alone: other threads of this process sleep, too.
        ends = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: reader.communicate())
        monkeypatch.setattr(journal_commands, "time", ends)
        done = CliRunner().invoke(journal_app, arguments)
        assert done.exit_code == 0 and "removed" in done.output, done.output
