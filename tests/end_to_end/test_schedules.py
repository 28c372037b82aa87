"""What is done on a schedule, on a real instance's journal and by the clock on the wall."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.instance_processes import Client, Server, Servers, servers, single  # noqa: F401

from raylay.services.config.journal import JournalConfig
from raylay.services.replication.timetable import JournalAction, Occasion
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.storage.journal_reader import LmdbJournalReader

BODY = "x" * 60_000
ACTIONS_IN_S = (3, 10, 40)
"""Enough to prepare them; more where the machine is busy."""
NEVER = (Occasion(at="00:00Z"),)


def states(server: Server) -> list[str]:
    with LmdbJournalReader(server.directory / JOURNAL_DIRECTORY) as reader:
        return [
            "archived" if segment.archived else segment.state
            for segment in reader.segments()
            if segment.records
        ]


def prepared(made: Servers, path: Path, actions_in_s: int) -> tuple[Server, int]:
    """An instance with sealed segments whose actions are due in so many seconds, and how many
    segments it has; none: it became too late."""
    due = datetime.now(UTC) + timedelta(seconds=actions_in_s)
    at = (Occasion(at=f"{due:%A} at {due:%H:%M:%S}Z"),)
    elsewhen = (Occasion(at=f"{due + timedelta(days=3):%A} at {due:%H:%M:%S}Z"),)
    server = single(
        made,
        path,
        journal=JournalConfig(
            segment_bytes=1024 * 1024,
            archive_directory=str(path / "archive"),
            actions=(
                JournalAction("remove", 0, elsewhen),
                JournalAction("remove", 3_600_000, at),
                JournalAction("archive", 0, at),
            ),
        ),
    )
    client = Client(server.address, "publisher")
    for number in range(1, 61):
        client.publish(range(number, number + 1), text=BODY)
        if not number % 10:
            # Each ten in a commit of its own: one commit goes into one segment.
            client.persisted(number)
    while set(before := states(server)) != {"sealed", "live"} or len(before) < 3:
        # Segments are sealed behind the commits.
        if datetime.now(UTC) >= due:
            return server, 0
        time.sleep(0.02)
    return server, len(before)


@pytest.mark.slow
@pytest.mark.covers("Configuration", "Actions: journal is compressed")
def test_old_journal_is_archived_and_removed_at_its_time_and_not_before(
    servers: Servers,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A weekly removal does not happen all the time; what is due happens in its order, to segments
    of its age only."""
    for actions_in_s in ACTIONS_IN_S:
        server, segments = prepared(servers, tmp_path / str(actions_in_s), actions_in_s)
        if segments:
            break
    assert segments, "never ready in time"
    server.wait_for("journal_action", 2)
    # Nothing is an hour old; the rest but the live one is archived.
    assert states(server) == ["archived"] * (segments - 1) + ["live"]
    assert server.events("action=archive") == server.events("action=remove") == 1
    assert server.log.index("action=remove") < server.log.index("action=archive")
