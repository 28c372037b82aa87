"""One Spark session for all tests of the pipeline: it takes seconds to start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_cases import Log, mixed_log
from pipeline_child import FOR_SMALL_QUERIES

from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import TopicRule
from raylay.services.server.config import InstanceConfig


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on two threads of this machine."""
    from raylay.services.pipeline import session

    try:
        made = session("local[2,3]", "raylay tests", **FOR_SMALL_QUERIES)
    except ConfigurationError as error:
        if "java" in str(error).lower():
            pytest.skip(str(error))
        raise
    yield made
    made.stop()


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """A log with archived, compressed, sealed and live segments, which no test changes."""
    return mixed_log(tmp_path_factory.mktemp("mixed") / "Chicago-1")


class RunningInstance:
    """One instance in a process of its own, and its data directory."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        InstanceConfig(directory.name, "Chicago", **settings).save(directory)
        self.start()

    def start(self) -> None:
        """Starts it; returns once it serves."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "raylay.services.server.run_instance", str(self.directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.address: str = json.loads(self.process.stdout.readline())["client_address"]

    def stop(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="session")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    """A running instance that all tests share; each uses topics of its own."""
    made = RunningInstance(tmp_path_factory.mktemp("running") / "Chicago-1")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def choosy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    """A running instance that journals topics that begin with `kept/` or `orders`, of type json,
    and no others."""
    directory = tmp_path_factory.mktemp("choosy") / "Chicago-2"
    made = RunningInstance(directory, topics=(TopicRule("^(kept/|orders)", "json"),))
    yield made
    made.stop()
