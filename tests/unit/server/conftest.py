"""What all tests of the server have."""

from __future__ import annotations

import pytest

from raylay.services.server import turns


@pytest.fixture(autouse=True)
def a_pass_takes_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test says at once is taken at once, however busy the machine is. Tests of turns set
    the time of a turn themselves."""
    monkeypatch.setattr(turns, "TURN_S", 600.0)
