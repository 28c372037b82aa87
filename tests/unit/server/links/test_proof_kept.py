"""The proof that a link is of a fabric is said to nobody else: whoever has it could pass it on with
the rest of the logon, and be taken for that instance."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from unit.server.links.test_security import GUARDED, KEY, Peer, Place, logon

from raylay.services.config.instance import DestinationConfig
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import FrameReader, Header
from raylay.services.protocol.link.proof import is_proven
from raylay.services.protocol.link.replication import link_logon, read_link_logon

pytestmark = pytest.mark.covers("Configuration", "in a fabric with a key")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def destination(*addresses: str, names: tuple[str, ...]) -> DestinationConfig:
    return DestinationConfig(
        "A", "g", False, addresses, server_names=names, share_connection=not addresses,
        topics=(TopicRule(".*", exclude_validation=("replicate",)),),
        retry_ms_min=20, retry_ms_max=50,
    )  # fmt: skip


async def first_header(reader: asyncio.StreamReader) -> Header:
    frames = FrameReader()
    while data := await reader.read(1 << 16):
        for frame in frames.feed(data):
            return frame.header
    raise AssertionError("nothing came")


@pytest.mark.parametrize("names", [("A",), ()])
def test_only_an_instance_of_the_fabric_that_is_dialled_gets_it(
    place: Place, names: tuple[str, ...]
) -> None:
    """One that is named in the configuration; of another fabric's only the address is."""

    async def visit() -> None:
        said: asyncio.Future[Header] = asyncio.get_running_loop().create_future()

        async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            header = await first_header(reader)
            if not said.done():
                said.set_result(header)
            writer.close()

        server = await asyncio.start_server(listens, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        to = destination(f"{host}:{port}", names=names)
        await place.start(replace(GUARDED, destinations=(to,)))
        made = read_link_logon(await said)
        assert is_proven(KEY, made) is bool(names) and bool(made.proof) is bool(names)
        server.close()

    place.run(visit)


@pytest.mark.parametrize("proven", [True, False])
def test_over_a_shared_connection_only_who_has_proved_it_gets_it(
    place: Place, proven: bool
) -> None:
    async def visit() -> None:
        b = await place.start(replace(GUARDED, destinations=(destination(names=("A",)),)))
        peer = await Peer.at(b)
        words = logon("", "", placements={})
        words.proof = words.proof if proven else b""
        peer.writer.write(link_logon(words))
        carried = FrameReader()
        while True:
            data = await peer._reader.read(1 << 16)
            assert data
            logons = [
                each.header
                for frame in peer._frames.feed(data)
                if frame.header["c"] == "carry"
                for each in carried.feed(frame.body)
            ]
            if logons:
                break
        made = read_link_logon(logons[0])
        assert is_proven(KEY, made) is proven and bool(made.proof) is proven
        peer.writer.close()

    place.run(visit)
