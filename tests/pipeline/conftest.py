"""One Spark session for all tests of the pipeline: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pipeline_cases import Log, mixed_log

from raylay.services.errors import ConfigurationError


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on two threads of this machine."""
    from raylay.services.pipeline import session

    try:
        made = session("local[2]", "raylay tests", **{"spark.sql.shuffle.partitions": "2"})
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
