"""One Chromium for the console's tests of a process. All but the smoke tests are slow, since two
processes run the others beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.console_browser import Browser, make_browser

HERE = Path(__file__).parent
QUICK = "test_smoke.py"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and item.path.name != QUICK:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    yield from make_browser()
