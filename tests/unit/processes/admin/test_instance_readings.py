"""services/processes/admin/instance_readings.py: what is read of an instance from outside."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from raylay.services.processes.admin.instance_readings import (
    SEGMENTS_S,
    InstanceReadings,
    shown_environment,
    socket_queues,
)
from raylay.storage.journal_reader import LmdbJournalReader

TCP = """  sl  local_address rem_address   st tx_queue rx_queue
   0: 0100007F:2328 00000000:0000 0A 00000000:00000000 00:00000000
   1: 0100007F:2328 0200007F:9C40 01 00000010:00000020 00:00000000
   2: short
"""
LOOPBACK = "00000000000000000000000001000000"
MAPPED = "0000000000000000FFFF00000100007F"
TCP6 = f"""  sl  local_address  remote_address  st tx_queue rx_queue
   0: {LOOPBACK}:2328 {LOOPBACK}:9C41 01 00000001:00000002 0
   1: {MAPPED}:2328 {MAPPED.replace("0100007F", "0300007F")}:9C42 01 00000003:00000004 0
"""


def test_the_kernels_queues_are_found_by_the_address_of_the_other_side(tmp_path: Path) -> None:
    folder = tmp_path / "7" / "net"
    folder.mkdir(parents=True)
    (folder / "tcp").write_text(TCP)
    (folder / "tcp6").write_text(TCP6)
    assert socket_queues(7, str(tmp_path)) == {
        "127.0.0.2:40000": (32, 16),
        "::1:40001": (2, 1),
        "127.0.0.3:40002": (4, 3),
    }
    assert socket_queues(8, str(tmp_path)) == {}


def test_bytes_that_nobody_reads_lie_in_the_kernel() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        here, _ = listener.accept()
        with here:
            client.sendall(b"x" * 100)
            host, port = client.getsockname()
            while socket_queues(os.getpid())[f"{host}:{port}"][0] < 100:
                pass


@pytest.mark.covers("Administration", "`instance`: clients, subscriptions with seconds behi")
def test_only_variables_that_are_no_secrets_are_shown() -> None:
    found = shown_environment(
        {"LANG": "C", "PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "x", "PGPASS": "y", "LC_ALL": "C"}
    )
    assert found == {
        "AWS_SECRET_ACCESS_KEY": "***",
        "LANG": "C",
        "LC_ALL": "C",
        "PATH": "/bin",
        "PGPASS": "***",
    }


def test_a_process_that_has_ended_has_no_values_and_the_rest_is_told() -> None:
    readings = InstanceReadings()
    snapshot = {"pid": 2**22 + 5, "destinations": {"south": {"pid": 2**22 + 6}}}
    found = readings.read(snapshot)
    assert "memory" not in found and found["processes"] == []
    assert "json" in found["message_types"] and found["config_path"] == ""
    own = readings.read({"pid": os.getpid(), "queues": {"jobs": {"pid": os.getpid()}}})
    assert own["memory"]["rss"] > 0 and own["cwd"] == os.getcwd()
    assert [each["name"] for each in own["processes"]] == ["queue jobs"]


def test_the_journals_files_are_read_now_and_then_and_a_problem_is_told(
    tmp_path: Path,
) -> None:
    now = [0.0]
    readings = InstanceReadings(clock=lambda: now[0])
    snapshot = {
        "pid": os.getpid(),
        "ready": True,
        "directory": str(tmp_path),
        "journal_directory": str(tmp_path / "none"),
    }
    found = readings.read(snapshot)
    assert found["segments"] == [] and found["journal_problem"]
    (tmp_path / "none").mkdir()
    assert readings.read(snapshot)["journal_problem"]
    now[0] += SEGMENTS_S
    found = readings.read(snapshot)
    assert (found["segments"], found["journal_problem"]) == ([], "")
    (tmp_path / "sow.lmdb").write_bytes(b"x" * 10_000)
    assert readings.read(snapshot)["sow_bytes"] > 0
    assert isinstance(readings._journal, LmdbJournalReader)
    readings.close()
