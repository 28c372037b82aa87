"""One Chromium for the console's tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.console_browser import Browser, make_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    yield from make_browser()
