"""`raylay bench` as a process against a scripted server: the sum of a load that is ended before all
of it is sent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.fake_server import FakeServer

pytestmark = pytest.mark.covers("Utilities", "Command-Line Basic Client: `raylay bench`")


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("ended_by", ["time", "Ctrl-C"])
def test_a_load_that_is_ended_counts_every_message_that_was_sent(
    answered: bool, ended_by: str, tmp_path: Path
) -> None:
    async def main() -> None:
        server = await FakeServer().start()
        server.auto_ack = answered
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "raylay.services.cli", "bench", "pub", "t", "--json",
            *("--count", "10000000", "--rate", "2000"),
            *(("--seconds", "2") if ended_by == "time" else ()),
            "--server", server.address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "RAYLAY_RUNTIME_DIR": str(tmp_path)},
        )  # fmt: skip
        if ended_by == "Ctrl-C":
            await server.wait(lambda: server.sessions and len(server.session.published) > 500)
            process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert process.returncode == (130 if ended_by == "Ctrl-C" else 0), err
        told = json.loads(out)
        sent = told["messages"] + told["unanswered"]
        # The server may still read the last ones.
        await server.wait(lambda: len(server.session.published) >= sent)
        assert len(server.session.published) == sent > 0
        assert (told["messages"] > 0) == answered
        said = b"were sent and not answered, and may be persisted or not" in err
        assert said == (told["unanswered"] > 0)
        await server.stop()

    asyncio.run(main())
