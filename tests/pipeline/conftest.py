"""One Spark session for all tests of the pipeline: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.pipeline_cases import Log, RunningInstance, mixed_log
from support.pipeline_child import FOR_SMALL_QUERIES

from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import TopicRule
from raylay.services.sow.definition import SowTopicDefinition


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two threads of this machine."""
    from raylay.services.pipeline import session

    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    settings = FOR_SMALL_QUERIES | {"spark.sql.warehouse.dir": warehouse}
    try:
        made = session("local[2,3]", "raylay tests", **settings)
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


@pytest.fixture(scope="session")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    """A running instance with SOW topics: `board/…` by the field `/id`, `given` by the publishers'
    keys."""
    directory = tmp_path_factory.mktemp("stateful") / "Chicago-3"
    made = RunningInstance(
        directory,
        sow=(
            SowTopicDefinition("boards", "json", pattern="^board/", keys=("/id",)),
            SowTopicDefinition("given", "json"),
        ),
    )
    yield made
    made.stop()
