"""How the tests are spread over processes (`make test` runs two, by pytest-xdist): what shares a
Ray or a Spark stays together, and the rest goes where there is time."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from raylay.services.fabric import plan

TESTS = Path(__file__).parent
pytest_plugins = ["support.private_files"]
TOGETHER = ("cluster", "console", "pipeline")
# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("raylay", deadline=None)
settings.load_profile("raylay")
# Who starts the tests in the background lets them ignore Ctrl-C, and what they start inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A port found free is free until another takes it, and a server of a test is away at times: each of
# several processes has ports of its own.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
PORTS = plan.ports_to_give()[WORKER :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
plan.ports_to_give = lambda: PORTS


@pytest.fixture(autouse=True)
def client_log() -> Iterator[None]:
    """The shell's `main` lets clients log errors only; a test in the same process must not have
    that of the tests before it."""
    logger = logging.getLogger("raylay.client")
    level = logger.level
    yield
    logger.setLevel(level)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long groups first, so that none is begun last, then what has a limit of its own, as it may
    take longer than the rest: else one process ends with it while the others have nothing."""
    items.sort(key=lambda item: (_folder(item) not in TOGETHER, -_limit_s(item)))
    for item in items:
        if _folder(item) in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(_folder(item)))


def _limit_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker and marker.args else 0.0


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]
