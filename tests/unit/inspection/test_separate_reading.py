"""services/inspection/separate_reading.py: rows and errors come over, and a crash is an error."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from raylay.services.errors import CorruptRecord, StorageError
from raylay.services.inspection.separate_reading import read_separately


def test_rows_come_over_in_their_order() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for number in range(20_000):
            yield {"number": number, "big": (1 << 64) - 1, "text": "\udce9", "body": b"\xff"}

    found = list(read_separately(rows, "file"))
    assert [each["number"] for each in found] == list(range(20_000))
    assert found[0] == {"number": 0, "big": (1 << 64) - 1, "text": "\udce9", "body": b"\xff"}
    assert list(read_separately(lambda: iter(()), "file")) == []


@pytest.mark.covers("Utilities", "a damaged file is an error that names it")
@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_is_damage_that_names_the_file(number: signal.Signals) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"number": 1}
        os.kill(os.getpid(), number)

    with pytest.raises(CorruptRecord, match=rf"^the-file is damaged: .*{number.name}"):
        list(read_separately(rows, "the-file"))


def test_a_process_that_is_killed_is_no_damage() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield {}

    with pytest.raises(StorageError, match="ended by SIGKILL: try again") as found:
        list(read_separately(rows, "file"))
    assert not isinstance(found.value, CorruptRecord)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (CorruptRecord("it is torn", "file", 3), CorruptRecord, "it is torn"),
        (StorageError("it is away"), StorageError, "it is away"),
        (OSError(errno.EACCES, "Permission denied", "file"), PermissionError, "Permission denied"),
        (KeyError("x"), CorruptRecord, "KeyError"),
    ],
)
def test_errors_come_over_behind_the_rows(
    error: Exception, kind: type[Exception], text: str
) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"number": 1}
        raise error

    found = []
    with pytest.raises(kind, match=text):
        for row in read_separately(rows, "file"):
            found.append(row)
    assert found == [{"number": 1}]


def test_a_reader_that_goes_away_ends_the_process() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        while True:
            yield {"pid": os.getpid(), "text": "x" * 1000}

    reading = read_separately(rows, "file")
    pid = next(reading)["pid"]
    reading.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
