"""An instance that is given back an old copy of its data directory, with real processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.instance_processes import Client, Server, Servers, pair

from raylay.services.messages.records import publisher_id
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY, STATE_FILE

KEPT, LAST = 100, 200


def with_an_old_copy(servers: Servers, path: Path) -> tuple[Server, Server, Path]:
    """A pair, of which A has acknowledged twice as much as there is in the copy of its directory;
    half of the rest by numbers of its own. A is killed."""
    a, b = pair(servers, path)
    client = Client(a.address, "publisher")
    client.publish_numbered(1, KEPT)
    assert a.stop() == 0
    copy = path / "copy"
    shutil.copytree(a.directory, copy)
    a.start()
    a.wait_for("link_caught_up", times=2)
    client = Client(a.address, "publisher")
    assert client.answer["highest"] == KEPT
    client.publish_numbered(KEPT + 1, LAST)
    a.kill()
    return a, b, copy


def sequences(server: Server) -> list[int]:
    publisher = publisher_id("publisher")
    return [number for found, number in server.journal() if found == publisher]


def goes_on(a: Server, b: Server) -> None:
    """A has everything again, serves, and what it numbers is taken for nothing that it numbered."""
    client = Client(a.address, "publisher")
    assert client.answer["status"] == "success" and client.answer["highest"] == LAST
    client.publish_numbered(LAST + 1, LAST + 10)
    for server in (a, b):
        assert sorted(sequences(server)) == list(range(1, LAST + 11))
        assert len(server.journal()) == 2 * (LAST + 10)
        assert server.events(" conflict ") == 0


@pytest.mark.covers("Replication", "an old copy of a data directory begins anew and takes")
def test_a_copy_of_the_directory_takes_back_what_it_lacks_before_it_serves(
    servers: Servers, tmp_path: Path
) -> None:
    a, b, copy = with_an_old_copy(servers, tmp_path)
    before = a.status["incarnation"]
    shutil.rmtree(a.directory)
    copy.rename(a.directory)
    # Nobody is there to say what is missing: no client is let in.
    b.kill()
    a.start()
    assert a.status["incarnation"] != before and not a.status["ready"]
    a.wait_for("data_directory_copied")
    refused = Client(a.address, "publisher").answer
    assert (refused["status"], refused["reason"]) == ("failure", "not_ready")
    assert "copy" in refused["text"], refused
    ready = a.events(" 00-0002 ready")
    b.start()
    a.wait_for(" 00-0002 ready", times=ready + 1)
    goes_on(a, b)
    # It is no copy any more.
    incarnation = a.status["incarnation"]
    assert a.stop() == 0
    a.start()
    assert a.status["incarnation"] == incarnation and a.status["ready"]


@pytest.mark.slow
@pytest.mark.covers("Replication", "an old copy of a data directory begins anew and takes")
def test_what_went_back_in_place_is_found_by_the_peer_and_begins_anew(
    servers: Servers, tmp_path: Path
) -> None:
    """As by a snapshot of the disk."""
    a, b, copy = with_an_old_copy(servers, tmp_path)
    shutil.rmtree(a.directory / JOURNAL_DIRECTORY)
    shutil.copytree(copy / JOURNAL_DIRECTORY, a.directory / JOURNAL_DIRECTORY)
    # Into the same file.
    shutil.copyfile(copy / STATE_FILE, a.directory / STATE_FILE)
    before = a.status["incarnation"]
    a.start()
    a.wait_for("went_back")
    a.wait_for(" 00-0002 ready")
    goes_on(a, b)
    assert a.stop() == 0
    a.start()
    assert a.status["incarnation"] != before and a.events("went_back text") == 1


@pytest.mark.covers("Replication", "an old copy of a data directory begins anew and takes")
def test_a_journal_that_is_shorter_than_the_state_says_is_an_old_copy(
    servers: Servers, tmp_path: Path
) -> None:
    """Only the journal was put back."""
    a, b = pair(servers, tmp_path)
    client = Client(a.address, "publisher")
    client.publish_numbered(1, KEPT)
    assert a.stop() == 0
    shutil.copytree(a.directory / JOURNAL_DIRECTORY, tmp_path / "copy")
    a.start()
    Client(a.address, "publisher").publish_numbered(KEPT + 1, LAST)
    a.wait_for("link_caught_up", times=2)
    assert a.stop() == 0
    shutil.rmtree(a.directory / JOURNAL_DIRECTORY)
    shutil.copytree(tmp_path / "copy", a.directory / JOURNAL_DIRECTORY)
    a.start()
    a.wait_for("which was on disk")
    a.wait_for(" 00-0002 ready")
    goes_on(a, b)
