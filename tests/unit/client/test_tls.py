"""Clients of an instance whose transports have TLS: the library, and the shell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.one_instance import in_instance, transports
from support.tls_files import DAY, tls_files
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.client import Client, SyncClient
from raylay.services.config.instance import InstanceConfig, split_address
from raylay.services.config.transport import TransportConfig
from raylay.services.errors import ConfigurationError, LogonRefused, NoUsableServer
from raylay.services.net import tls_stream
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry.logs import LogOptions


def config() -> InstanceConfig:
    made = tls_files()
    verifying = made.serving(verify_client=True, ca_file=made.ours.file)
    return InstanceConfig(
        "solo", "g", first=True, log=LogOptions(target="none"),
        client_transports=(TransportConfig("client"),
            TransportConfig("secure", tls=made.serving(), connections_max=2),
            TransportConfig("known", tls=verifying),
        ),
    )  # fmt: skip


def address(server: InstanceServer, name: str) -> str:
    return str(transports(server)[name]["address"])


@pytest.mark.covers("Configuration", "TLS between clients and instances")
def test_a_client_publishes_and_reads_over_tls(tmp_path: Path) -> None:
    made = tls_files()

    async def visit(server: InstanceServer) -> None:
        assert [each["tls"] for each in transports(server).values()] == [False, True, True, False]
        where = [address(server, "known")]
        dialling = made.dialling(made.client)
        async with Client("desk", servers=where, tls=dialling) as client:
            subscription = await client.subscribe("orders", bookmark="0")
            body = b'"' + b"x" * 500_000 + b'"'
            for _ in range(4):
                await client.publish("orders", body)
            await client.flush()
            seen = 0
            async for message in subscription:
                assert message.body == body
                seen += 1
                if seen == 4:
                    break
            (session,) = server.parts.clients.sessions.values()
            connection: Any = session
            assert connection.peer_certificate.common_name == "desk"
            assert connection.peer_certificate.names == ("DNS:desk.example",)
        # The same from a thread of its own, by plain values.
        secure = [address(server, "secure")]

        def use() -> bool:
            with SyncClient("loader", servers=secure, tls={"ca_file": made.ours.file}) as client:
                client.publish("orders", b"1")
                client.flush()
                return client.client.persisted_sequence == client.client.last_sequence

        assert await asyncio.to_thread(use)

    in_instance(tmp_path / "solo", visit, config())


@pytest.mark.covers("Administration", "the certificate that a client shows")
def test_the_certificate_of_a_client_that_ends_soon_is_told_of(tmp_path: Path) -> None:
    made = tls_files()
    # The validity of a certificate of the test begins a day ago.
    pair = made.ours.issue("ending-desk", lasts=6 * DAY)

    async def visit(server: InstanceServer) -> None:
        where = [address(server, "known")]
        async with Client("desk", servers=where, tls=made.dialling(pair)):
            await server.parts.certificates.look()
            (found,) = [each for each in server.status()["certificates"] if not each["file"]]
            assert found["warning"].startswith(
                "the certificate ending-desk that client desk showed ends in 4 days, on "
            )

    in_instance(tmp_path / "solo", visit, config())


@pytest.mark.covers("Configuration", "TLS between clients and instances")
def test_each_mistake_is_one_clear_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tls_files()

    async def visit(server: InstanceServer) -> None:
        cases: list[tuple[str, Any, str]] = [
            ("secure", None, "this transport speaks TLS, and nothing else: connect with TLS"),
            ("client", made.dialling(), "it speaks no TLS: connect without, or to its transport"),
            ("secure", {"ca_file": made.other.file}, "a CA that is not known here"),
            ("secure", True, "a CA that is not known here"),
            ("secure", made.dialling(server_name="else"), "its certificate is not for 'else'"),
            ("known", made.dialling(), "client certificate"),
            ("known", made.dialling(made.stranger), "does not know the CA of our certificate"),
        ]
        for name, tls, words in cases:
            with pytest.raises((NoUsableServer, LogonRefused)) as caught:
                # At once: the client waits for a server far longer than the test may take.
                async with Client(
                    "c", servers=[address(server, name)], tls=tls, connect_wait_s=600
                ):
                    raise AssertionError("connected")
            assert words in str(caught.value), (name, str(caught.value))
            assert str(caught.value).count(address(server, name)) == 1, str(caught.value)
        # The last one's socket is closed when the loop comes to it.
        while transports(server)["known"]["connections"]:
            await asyncio.sleep(0.01)
        assert transports(server)["secure"]["tls_refused"] >= 2
        told = [each for each in server.events() if each["event"] == "tls_refused"]
        assert told and told[0]["transport"] == "secure"

    with pytest.raises(ConfigurationError, match="has expired: renew it"):
        Client("c", servers=["h:1"], tls=made.dialling(made.expired_client))
    with pytest.raises(
        ConfigurationError,
        match=r"client c: tls has no setting 'ca': it has certificate, private_key",
    ):
        Client("c", servers=["h:1"], tls={"ca": "x"})
    in_instance(tmp_path / "solo", visit, config())


@pytest.mark.covers("Configuration", "TLS between clients and instances")
def test_handshakes_count_as_connections_and_end_with_their_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_stream, "HANDSHAKE_TIMEOUT_S", 600.0)

    async def visit(server: InstanceServer) -> None:
        where = split_address(address(server, "secure"))
        slow = [await asyncio.open_connection(*where) for _ in range(3)]
        # The oldest gives way to the third: slow ones keep nobody out.
        assert await slow[0][0].read() == b""
        for _, writer in slow[1:]:
            writer.write(b"\x16\x03\x01")
        made = tls_files()
        async with Client("c", servers=[address(server, "secure")], tls=made.dialling()) as client:
            assert client.instance == "solo"
            assert transports(server)["secure"]["connections"] == 2
        await server.parts.calls.switch_transport("secure", on=False)
        assert await slow[2][0].read() == b""
        assert transports(server)["secure"]["connections"] == 0
        assert len(server.parts.clients.connection_limit) == 0
        for _, writer in slow:
            writer.close()

    in_instance(tmp_path / "solo", visit, config())


@pytest.mark.covers(
    "Configuration", "files of certificates: what is wrong is said before anything opens;"
)
@pytest.mark.covers(
    "Configuration", "files of certificates: what is wrong is said before anything opens or"
)
def test_a_wrong_file_keeps_an_instance_from_starting(tmp_path: Path) -> None:
    made = tls_files()
    wrong = made.serving(private_key=made.client.key)

    async def start() -> None:
        transport = TransportConfig("secure", tls=wrong)
        server = InstanceServer(
            InstanceConfig(
                "solo",
                "g",
                client_transports=(
                    TransportConfig("client"),
                    transport,
                ),
            ),
            tmp_path,
        )
        with pytest.raises(ConfigurationError, match="solo: transport secure: the private key"):
            await server.start()

    asyncio.run(start())


def test_the_shell_takes_files_by_option_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tls_files()

    async def visit(server: InstanceServer) -> None:
        where = ["--server", address(server, "known")]
        call = ["publish", "orders", "{}", *where]
        desk = ["--certificate", made.client.certificate, "--private-key", made.client.key]

        def run(*arguments: str) -> Any:
            return CliRunner().invoke(app, arguments)

        done = await asyncio.to_thread(run, *call, "--ca-file", made.ours.file, *desk)
        assert done.exit_code == 0, done.output
        monkeypatch.setenv("RAYLAY_CA_FILE", made.ours.file)
        done = await asyncio.to_thread(run, *call, *desk)
        assert done.exit_code == 0, done.output
        sow = ["sow", "orders", *where, *desk]
        done = await asyncio.to_thread(run, *sow)
        assert "no SOW topic of solo" in str(done.exception), "it was let in, and answered"
        done = await asyncio.to_thread(run, *call, "--certificate", made.client.certificate)
        assert "TLS has no private key" in str(done.exception)

    in_instance(tmp_path / "solo", visit, config())
