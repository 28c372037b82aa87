"""The certificates of an instance: events, status and figures, by a controlled clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.tls_files import DAY, Authority, Pair

from raylay.services.commands.status import certificate_lines
from raylay.services.config.admin_interface import AdminInterfaceConfig
from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.config.transport import CLIENT_TRANSPORT, TransportConfig
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_files import PeerCertificate
from raylay.services.security.certificate_expiry import DAY_US
from raylay.services.server.certificate_watch import CertificateWatch, files_of
from raylay.services.server.runtime import InstanceRuntime

pytestmark = pytest.mark.covers("Administration", "a certificate is warned of")


def serving(pair: Pair, ca: str) -> TlsConfig:
    return TlsConfig(
        certificate=pair.certificate, private_key=pair.key, ca_file=ca, verify_client=True
    )


class ClientStub:
    """A client that showed a certificate."""

    def __init__(self, name: str, certificate: PeerCertificate | None) -> None:
        self.client_name = name
        self.peer_certificate = certificate


class Watched:
    """An instance's certificates: of its transports, its administrator's interface and a link.

    Attributes:
        events: what was reported since they were last taken.
    """

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory, "ca")
        self.server = self.authority.issue("here-1", "here-1", lasts=41 * DAY)
        self.link = self.authority.issue("link", lasts=366 * DAY)
        ca = self.authority.file
        dialling = TlsConfig(self.link.certificate, self.link.key, ca)
        config = InstanceConfig(
            "here-1",
            "here",
            destinations=(DestinationConfig("there", "there", True, ("a:1",), tls=dialling),),
            client_transports=(
                TransportConfig(CLIENT_TRANSPORT, tls=serving(self.server, ca)),
                TransportConfig("plain"),
            ),
            replication_transports=(TransportConfig("replication", tls=serving(self.server, ca)),),
            interface=AdminInterfaceConfig(tls=TlsConfig(self.server.certificate, self.server.key)),
        )
        self.runtime = InstanceRuntime(config, directory)
        self.began_us = self.runtime.now_us()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.runtime.report = self._report  # type: ignore[method-assign]
        self.clients: dict[int, ClientStub] = {}
        self.watch = CertificateWatch(self.runtime, self.clients)

    def _report(self, event: str, **details: Any) -> None:
        self.events.append((event, details))

    async def look_after(self, days: float) -> list[tuple[str, str, int]]:
        """Looks so many days after the beginning. Returns what was reported: event, file, days."""
        self.runtime.clock_offset_us = int(days * DAY_US)
        self.events.clear()
        await self.watch.look()
        return [(event, Path(told["file"]).name, told["days"]) for event, told in self.events]


def test_each_user_of_a_file_is_named(tmp_path: Path) -> None:
    async def body() -> None:
        watched = Watched(tmp_path)
        found = files_of(watched.runtime.config)
        names = {(Path(file).name, ca): users for (file, ca), users in found.items()}
        ours = ("transport client", "transport replication")
        assert names == {
            ("here-1.crt", False): (*ours, "admin"),
            ("ca.pem", True): (*ours, "destination there"),
            ("link.crt", False): ("destination there",),
        }

    asyncio.run(body())


def test_a_certificate_is_warned_of_30_7_and_1_days_before_its_end_and_when_it_ended(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        watched = Watched(tmp_path)
        # It was made a day ago: 40 days are left.
        assert await watched.look_after(0) == []
        assert await watched.look_after(9) == []
        for after, days in ((10.1, 29), (33.1, 6), (39.1, 0)):
            assert await watched.look_after(after) == [("certificate_ends", "here-1.crt", days)]
            assert await watched.look_after(after) == []
            told = {"name": "here-1", "certificates": watched.watch.status()}
            (line,) = certificate_lines([told])
            file = watched.server.certificate
            assert line.startswith(f"here-1: the certificate here-1 in {file} ")
            assert "(transport client, transport replication, admin)" in line
        assert await watched.look_after(40.1) == [("certificate_ended", "here-1.crt", 0)]
        figures = watched.watch.figures()
        left_ms = figures[watched.server.certificate]["expires_in_ms"]
        assert -0.11 * 86_400_000 < left_ms < -0.09 * 86_400_000
        assert figures[watched.authority.file]["expires_in_ms"] > 3_000 * 86_400_000

    asyncio.run(body())


def test_a_renewed_file_ends_the_warning(tmp_path: Path) -> None:
    async def body() -> None:
        watched = Watched(tmp_path)
        assert len(await watched.look_after(39.1)) == 1
        watched.authority.issue("here-1", "here-1", lasts=365 * DAY)
        assert await watched.look_after(39.2) == []
        assert not certificate_lines([{"name": "a", "certificates": watched.watch.status()}])

    asyncio.run(body())


def test_a_ca_is_warned_of(tmp_path: Path) -> None:
    async def body() -> None:
        watched = Watched(tmp_path)
        # After ten years all others have ended.
        found = await watched.look_after(3650 - 20)
        assert ("certificate_ends", "ca.pem", 18) in found or (
            "certificate_ends",
            "ca.pem",
            19,
        ) in found
        (text,) = (told["text"] for _, told in watched.events if told["file"].endswith("ca.pem"))
        assert "and with it every certificate that it signed" in text

    asyncio.run(body())


def test_the_certificate_of_a_client_is_warned_of_once_however_often_it_connects(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        watched = Watched(tmp_path)
        ends = datetime.fromtimestamp((watched.began_us + 8 * DAY_US) / 1e6, UTC)
        shown = PeerCertificate("desk", (), "commonName=desk", f"{ends:%b %d %H:%M:%S %Y} GMT")
        lasting = PeerCertificate("loader", (), "", "Jan  1 00:00:00 2400 GMT")
        nameless = PeerCertificate("", (), "", "no time")
        of_clients = {
            1: ClientStub("desk-1", shown),
            2: ClientStub("desk-2", shown),
            3: ClientStub("loader", lasting),
            4: ClientStub("old", nameless),
            5: ClientStub("plain", None),
        }
        watched.clients.update(of_clients)
        assert await watched.look_after(0) == [("certificate_ends", "", 7)]
        ((_, told),) = watched.events
        assert told["certificate"] == "desk" and told["text"].startswith(
            "the certificate desk that client desk-1, client desk-2 showed ends in 7 days, on "
        )
        (line,) = certificate_lines([{"name": "a", "certificates": watched.watch.status()}])
        assert "renew it where they run, and let them connect again" in line
        assert "" not in watched.watch.figures()
        watched.clients.clear()
        assert await watched.look_after(0.1) == []
        assert not certificate_lines([{"name": "a", "certificates": watched.watch.status()}])
        watched.clients.update(of_clients)
        assert await watched.look_after(0.2) == []
        assert await watched.look_after(1.5) == [("certificate_ends", "", 6)]

    asyncio.run(body())


def test_the_files_that_a_bootstrap_dials_with_are_watched(tmp_path: Path) -> None:
    tls = TlsConfig("dial.crt", "dial.key", "ca.pem")
    config = InstanceConfig("solo", "g", bootstrap=BootstrapConfig(("a:1",), tls=tls))
    assert files_of(config) == {
        ("dial.crt", False): ("bootstrap",),
        ("ca.pem", True): ("bootstrap",),
    }


def test_an_instance_without_tls_reads_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        runtime = InstanceRuntime(InstanceConfig("solo", "group"), tmp_path)
        watch = CertificateWatch(runtime, {})
        watch.begin()
        assert runtime.tasks_running == 0 and watch.status() == [] and watch.figures() == {}

    asyncio.run(body())
