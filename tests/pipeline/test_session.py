"""What a session does so that a user need not: its workers' Python, and what Spark says."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException

from raylay.services.pipeline.session import (
    LOG_VARIABLE,
    QUERY_LOGGERS,
    _set_query_loggers,
    java_locale,
    log_level_of,
    one_line,
    without_greetings,
    worker_python,
)
from raylay.services.pipeline.spark_worker import print_errors_but_closed_pipes

PATIENCE_S = 120.0
OURS = "raylay.services.errors"


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, a fabric that is down")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"a\nTraceback\n{OURS}.StorageError: no disk\n SQLSTATE: 1", "no disk"),
        (f"[X] Failed to plan: {OURS}.StorageError: no disk SQLSTATE: 38000", "no disk"),
        (
            f"[S] Query ended: {OURS}.A: x\n caused by {OURS}.B: y SQLSTATE: 38000 SQLSTATE: XXKST",
            "y",
        ),
        ("[X] failed SQLSTATE: 42000\nmore", "[X] failed"),
        ("", "Spark failed without giving a reason"),
    ],
)
def test_the_line_that_says_what_is_wrong(text: str, line: str) -> None:
    assert one_line(text) == line
    assert one_line(ValueError(text)) == line


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, a fabric that is down")
def test_only_greetings_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    said = (
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "26/01/02 03:04:05 WARN NativeCodeLoader: Unable to load native-hadoop library",
        "26/01/02 03:04:05 WARN Utils: something else",
        "Exception in thread main: no memory",
    )
    with without_greetings():
        subprocess.run(["sh", "-c", 'printf "%s\\n" "$@" >&2', "sh", *said], check=True)
    found, deadline_s = "", time.monotonic() + PATIENCE_S
    while said[-1] not in found and time.monotonic() < deadline_s:
        found += capfd.readouterr().err
        time.sleep(0.01)
    assert found.splitlines() == list(said[2:])
    os.write(2, b"behind\n")
    assert capfd.readouterr().err == "behind\n"


def test_workers_take_the_pyspark_that_is_installed() -> None:
    home = Path(pyspark.__file__).parent
    zipped = f"{home}/python/lib/pyspark.zip"
    done = subprocess.run(
        [worker_python(), "-c", "import pyspark, sys; print(pyspark.__file__); print(sys.path)"],
        env=os.environ | {"PYTHONPATH": f"{zipped}:/a place:/other.zip"},
        capture_output=True,
        text=True,
        check=True,
    )
    file, path = done.stdout.splitlines()
    assert Path(file).parent == home
    assert zipped not in path and "/a place" in path and "/other.zip" in path


def test_a_worker_whose_rows_are_no_longer_needed_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark closes the pipe of a LIMIT's other tasks."""
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)
    print_errors_but_closed_pipes()
    for error in (BrokenPipeError(32, "Broken pipe"), ConnectionResetError(104, "reset")):
        try:
            raise error
        except OSError:
            traceback.print_exc()
    assert not capsys.readouterr().err
    try:
        raise OSError(28, "no space")
    except OSError:
        traceback.print_exc()
    assert capsys.readouterr().err.endswith("OSError: [Errno 28] no space\n")


@pytest.mark.parametrize(
    ("given", "inside"),
    [
        ({"LC_ALL": "C"}, "C.UTF-8"),
        ({}, "C.UTF-8"),
        ({"LANG": "en_US.ISO-8859-1"}, "C.UTF-8"),
        ({"LC_ALL": "", "LANG": "de_DE.utf8"}, ""),
        ({"LC_ALL": "en_US.UTF-8", "LANG": "C"}, "en_US.UTF-8"),
    ],
)
def test_java_names_files_in_utf8(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], inside: str
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "utf-8")
    with java_locale():
        assert os.environ.get("LC_ALL", "") == inside
    assert os.environ.get("LC_ALL") == given.get("LC_ALL")


@pytest.mark.parametrize(("level", "speaks"), [("OFF", False), ("ERROR", True)])
def test_the_java_of_a_wrong_expression_is_told_on_request_only(level: str, speaks: bool) -> None:
    class Kept(logging.Handler):
        """What was logged."""

        def __init__(self) -> None:
            super().__init__()
            self.said: list[str] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.said.append(record.getMessage())

    class Context:
        """Of a wrong expression, as Spark's errors have one."""

        def contextType(self) -> Any:
            return SimpleNamespace(name="SQL")

    class Wrong(AnalysisException):
        """What Spark raises for one."""

        def getQueryContext(self) -> Any:
            return [Context()]

    before = logging.getLoggerClass()
    _set_query_loggers(level != "OFF")
    assert logging.getLoggerClass() is before
    try:
        logger = logging.getLogger("SQLQueryContextLogger")
        logger.addHandler(handler := Kept())
        Wrong("no column is called x\n\tat org.apache.spark.Java")._log_exception()
        logger.removeHandler(handler)
        assert len(handler.said) == speaks
        assert all(logging.getLogger(name).disabled is not speaks for name in QUERY_LOGGERS)
        assert type(logging.getLogger("raylay.of.a.test")) is before
    finally:
        _set_query_loggers(True)


def test_what_a_session_logs_is_off_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(LOG_VARIABLE, raising=False)
    assert log_level_of("") == "OFF"
    assert log_level_of("WARN") == "WARN"
    monkeypatch.setenv(LOG_VARIABLE, "ERROR")
    assert log_level_of("") == "ERROR"
    assert log_level_of("INFO") == "INFO"
