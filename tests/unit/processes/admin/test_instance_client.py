"""services/processes/admin/instance_client.py: questions to an instance that does not answer."""

from __future__ import annotations

import asyncio

import pytest

from raylay.services.errors import FabricError
from raylay.services.processes.admin import instance_client
from raylay.services.processes.admin.instance_client import InstanceClient
from raylay.services.security.control import NOBODY


def test_a_call_that_takes_long_may_still_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_client, "ANSWER_S_MAX", 0.01)
    sent: list[bytes] = []

    async def run() -> None:
        client = InstanceClient("north", sent.append)
        with pytest.raises(FabricError, match=r"north has not answered .*compress may still go on"):
            await client.perform("compress", NOBODY, {"segments": "all"})
        with pytest.raises(FabricError, match=r"within 0\.01 s: it is busy, or it hangs"):
            await client.status(None)

    asyncio.run(run())
    assert len(sent) == 2
