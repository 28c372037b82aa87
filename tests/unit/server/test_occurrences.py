"""Occurrences in an instance, told to listeners (services/server/occurrences.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from unit.server.clients.test_queries import CONFIG

from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.occurrences import SHUTDOWN, STARTUP, Occurrences


def test_only_those_who_listen_to_a_kind_are_told() -> None:
    occurrences = Occurrences()
    told: list[tuple[str, Mapping[str, str]]] = []

    def take(kind: str, variables: Mapping[str, str]) -> None:
        told.append((kind, variables))

    assert not occurrences.wanted("connect-client")
    occurrences.tell("connect-client", {"AMPS_CLIENT_NAME": "nobody listens"})
    occurrences.listen(["connect-client", "logon-client"], take)
    assert occurrences.wanted("connect-client")
    occurrences.tell("connect-client", {"AMPS_CLIENT_NAME": "a"})
    occurrences.tell("subscribe", {"AMPS_TOPIC": "other kind"})
    assert told == [("connect-client", {"AMPS_CLIENT_NAME": "a"})]
    occurrences.ignore(take)
    assert not occurrences.wanted("logon-client")


@pytest.mark.covers("Actions", "On AMPS Startup or Shutdown")
def test_a_start_and_a_stop_are_told_while_the_instance_serves(tmp_path: Path) -> None:
    async def run() -> None:
        server = InstanceServer(CONFIG, tmp_path)
        told: list[tuple[str, bool]] = []
        server.runtime.occurrences.listen(
            [STARTUP, SHUTDOWN], lambda kind, _: told.append((kind, server.runtime.is_serving))
        )
        await server.start()
        assert told == [(STARTUP, True)]
        await server.stop()
        assert told == [(STARTUP, True), (SHUTDOWN, True)]
        await server.stop()
        assert len(told) == 2, "once"

    asyncio.run(run())
