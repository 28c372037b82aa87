"""A moved instance announces its new address to its fabric, and to the data directory that it left.

Connected instances learn the address with the logon. But some may not reach the old host, or an
instance that still runs there may reach no other one: so each address is sent the announcement
again and again, until it has answered.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from raylay.services.config.instance import split_address
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.net.dialling import open_streams
from raylay.services.plugins.own_credentials import OwnCredentials
from raylay.services.protocol.frames import Frame, FrameReader, Header
from raylay.services.protocol.link.link_credentials import RETRY, read_said
from raylay.services.protocol.link.replication import link_logon, read_placed
from raylay.services.server.links.placements import PlacementKeeper
from raylay.services.server.runtime import InstanceRuntime

PAUSE_S_MIN = 0.5
PAUSE_S_MAX = 10.0
TIMEOUT_S = 3.0
READ_BYTES = 64 * 1024
CHALLENGES_MAX = 8
_NOT_TAKEN = ("auth", "not_ready", "storage_error", "unproven")
"""Refusals that come before the announcement is accepted."""


class Announcer:
    """The announcement of a moved instance to its fabric.

    Owner: the instance's event loop. Lifecycle: `run` once, beside a serving instance.
    """

    def __init__(
        self, runtime: InstanceRuntime, placements: PlacementKeeper, addresses: tuple[str, ...]
    ) -> None:
        self.untold = list(dict.fromkeys(addresses))
        """Addresses `host:port` of the replication transports that have not accepted the
        announcement yet."""
        self._runtime = runtime
        self._placements = placements
        self._told: set[tuple[str, str]] = set()
        """Reported failures, as (address, reason): each is reported once."""

    async def run(self) -> None:
        pause_s = PAUSE_S_MIN
        while self.untold:
            for address in list(self.untold):
                if await self._tell(address):
                    self.untold.remove(address)
            if self.untold:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        self._runtime.report("move_announced")

    async def _tell(self, address: str) -> bool:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                tls, _ = self._runtime.config.dialled_at(address)
                reader, writer = await open_streams(host, port, tls)
                try:
                    answer = await self._answer(reader, writer, address)
                finally:
                    writer.close()
            if answer is None or answer.get("reason") in _NOT_TAKEN:
                if answer is not None and answer["reason"] == "auth":
                    self._tell_why(address, str(answer.get("text")))
                return False
            await self._placements.learn(read_placed(answer))
        except ConfigurationError as error:
            self._tell_why(address, str(error))
            return False
        except (OSError, RaylayError, TimeoutError):
            return False  # the instance is away or starting: later
        return True

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
    ) -> Header | None:
        """Logs on and returns the answer; None: the connection ended, or there were too many
        challenges."""
        runtime, logon = self._runtime, self._placements.logon_words("", 0, announces=True)
        credentials = OwnCredentials(runtime.config.dialled_at(address)[1], runtime.config.name)
        said = await credentials.say()
        for _ in range(CHALLENGES_MAX + 1):
            writer.write(link_logon(replace(logon, user_id=said[0], password=said[1])))
            answer = await _first_frame(reader)
            if answer is None or answer.header["c"] != RETRY:
                return None if answer is None else answer.header
            said = await credentials.say(read_said(answer.header))
        return None

    def _tell_why(self, address: str, text: str) -> None:
        if (address, text) not in self._told:
            self._told.add((address, text))
            self._runtime.report("move_not_announced", address=address, text=text[:2000])


async def _first_frame(reader: asyncio.StreamReader) -> Frame | None:
    frames = FrameReader()
    while data := await reader.read(READ_BYTES):
        found = frames.feed(data)
        if found:
            return found[0]
    return None
