"""A whole fabric on Ray with TLS everywhere, declared once, by certificates of its own CA."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raylay.services.client import Client
from raylay.services.errors import NoUsableServer
from raylay.services.fabric import Fabric
from raylay.services.net.tls_authority import CertificateAuthority

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.covers("Configuration", "a whole fabric with client certificates everywhere")
def test_a_fabric_with_client_certificates_fails_over_and_is_renewed(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "tls")
    names = ("here-1", "here-2", "there-1", "desk")
    for name in names:
        authority.issue(name, ["localhost", "127.0.0.1"])
    place = f"{tmp_path}/tls"
    desk = {
        "ca_file": f"{place}/ca.pem",
        "certificate": f"{place}/desk.crt",
        "private_key": f"{place}/desk.key",
    }
    fabric = Fabric(
        "guarded",
        topics=["orders"],
        logs={"target": "none"},
        tls={
            "certificate": f"{place}/{{instance}}.crt",
            "private_key": f"{place}/{{instance}}.key",
            "ca_file": f"{place}/ca.pem",
            "verify_client": True,
        },
        client={"tls": desk},
    )
    fabric.region("here", 2).region("there", 1).connect_regions("async")
    with fabric.start(tmp_path / "data"):

        async def use() -> None:
            async with fabric.client("desk", group="here") as client:
                for _ in range(100):
                    await client.publish("orders", b"{}")
                await client.flush()
                former = client.instance
                # Renewed while everything runs: who connects from now on sees the new ones.
                for name in names:
                    authority.issue(name, ["localhost", "127.0.0.1"])
                await asyncio.to_thread(fabric.kill, former)
                for _ in range(100):
                    await client.publish("orders", b"{}")
                await client.flush()
                assert client.instance not in ("", former)
            address = fabric.servers("here")[0].address
            with pytest.raises(NoUsableServer, match="it wants a client certificate"):
                async with Client("stranger", servers=[address], tls={"ca_file": desk["ca_file"]}):
                    raise AssertionError("let in")

        asyncio.run(use())
        fabric.wait_ready()
        fabric.wait_connected()
        for instance in fabric.status()["instances"]:
            assert instance["messages"] == 200
            assert all(each["tls"] for each in instance["transports"])
            links = instance["destinations"].values()
            assert links and not any(each["direct"] for each in links)
        said = fabric.switch_transport("there-1", "client", on=False)
        assert said.startswith("transport client of there-1 is disabled")
        shown = {each["name"]: each for each in fabric.status()["instances"]}["there-1"]
        assert [each["enabled"] for each in shown["transports"]] == [False, True]
