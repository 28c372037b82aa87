"""One real Ray and one fabric for all cluster tests: starting them costs most of the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raylay.services.fabric import Fabric, Topic
from raylay.services.fabric.records.registry import REGISTRY_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def runtime_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Entries of running fabrics, apart from those of the user."""
    path = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(REGISTRY_VARIABLE, str(path))
        yield path


def declare(name: str = "shops") -> Fabric:
    """A sync pair, and a single instance in another region."""
    fabric = Fabric(
        name,
        topics=[Topic("sales/.*", "json")],
        downgrade_age="700ms",
        tracing={"directory": "traces", "sampling_ratio": 0.01},
        logs={"target": "file"},
        drills="allowed",
    )
    fabric.region("near", instances=2)
    fabric.region("far", instances=1)
    return fabric.connect_regions("async")


@pytest.fixture(scope="session")
def fabric(runtime_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """The shared fabric: near-1, near-2 and far-1."""
    with declare().start(tmp_path_factory.mktemp("shops")) as started:
        yield started


@pytest.fixture
def whole(fabric: Fabric) -> Fabric:
    """The shared fabric with everything up and caught up."""
    fabric.wait_ready()
    fabric.wait_connected()
    return fabric
