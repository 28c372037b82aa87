"""Who is turned away when too many have come."""

from __future__ import annotations

import resource

import pytest

from raylay.services.server.clients.connection_limit import ConnectionLimit, connections_max


class Visitor:
    def __init__(self, connection_limit: ConnectionLimit) -> None:
        self.connection_limit, self.why = connection_limit, ""

    def turn_away(self, text: str) -> None:
        self.why = text
        self.connection_limit.left(self)


def test_the_oldest_that_has_not_logged_on_gives_way() -> None:
    connection_limit = ConnectionLimit(3)
    known, first, second, third = (Visitor(connection_limit) for _ in range(4))
    connection_limit.came(known)
    connection_limit.admitted(known)
    for each in (first, second, third):
        connection_limit.came(each)
    assert [bool(each.why) for each in (known, first, second, third)] == [False, True, False, False]
    assert "ulimit -n" in first.why and len(connection_limit) == 3
    for each in (second, third):
        connection_limit.admitted(each)
    last = Visitor(connection_limit)
    connection_limit.came(last)
    assert last.why and len(connection_limit) == 3, "who is in stays in"
    connection_limit.left(second)
    again = Visitor(connection_limit)
    connection_limit.came(again)
    assert not again.why and len(connection_limit) == 3


@pytest.mark.parametrize(
    ("files", "connections"), [(65_536, 49_152), (256, 192), (128, 80), (64, 16), (32, 1)]
)
def test_an_instance_keeps_the_files_that_it_needs_itself(
    files: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert connections_max() == connections
