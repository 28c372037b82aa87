"""In which order the processes that run the tests take them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


def test_groups_come_first_and_then_what_takes_longest(request: pytest.FixtureRequest) -> None:
    def item(folder: str, limit_s: float = 0) -> Any:
        marker = pytest.mark.timeout(limit_s).mark if limit_s else None
        return SimpleNamespace(
            path=TESTS / folder / "test_it.py",
            limit_s=limit_s,
            get_closest_marker=lambda name: marker if name == "timeout" else None,
            add_marker=lambda mark: None,
        )

    items = [item("unit"), item("sim", 900), item("unit"), item("sim", 1_300), item("pipeline")]
    (order,) = (
        each
        for each in request.config.pluginmanager.get_plugins()
        if getattr(each, "__file__", "") == str(TESTS / "conftest.py")
    )
    wanted = [items[4], items[3], items[1], items[0], items[2]]
    order.pytest_collection_modifyitems(items)
    assert items == wanted
