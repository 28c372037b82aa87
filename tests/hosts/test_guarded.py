"""`ray up` makes certificates and credentials, and a fabric with TLS and authentication on every
transport runs by them: deploy/guarded.yaml, as deploy/README.md says.

Run by `make test-hosts` (root). The tests are one story on one cluster, in their order.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts.conftest import HOSTS, PATIENCE_S, ROOT, Cluster, run, running, wait_until
from hosts.load import Load
from support.tls_files import tls_files

from raylay.services.client import EPOCH, Client
from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.errors import LogonRefused, RaylayError
from raylay.services.messages.topics import TopicRule
from raylay.services.net.tls_authority import CertificateAuthority
from raylay.services.net.tls_config import TlsConfig
from raylay.services.security.modules import ModuleConfig

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(0)]
FABRIC = (
    (ROOT / "deploy" / "guarded.yaml")
    .read_text()
    .replace("  NewYork: 2\n  London: 2\n", "  NewYork: 1\n  London: 1\n")
)
"""As it is, with two instances less: the hosts are one machine."""
SHARED = ("operator-password", "links-password", "passwords", "link-passwords", "permissions.yaml")
USERS = ("operator", "links")
EXPIRING_DAYS = 30
WAIT_S = 3.0
"""Of who is refused: that he gets in at all would take milliseconds."""
REGIONS = [region for region in HOSTS if region != "head"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A host for the head and one for each region, and the guarded fabric."""
    with running(tmp_path_factory.mktemp("guarded"), fabric=FABRIC) as made:
        wait_until("whole", made.is_whole)
        yield made


def file(cluster: Cluster, region: str, *path: str) -> Path:
    """A file of ~/raylay on a host, seen from here."""
    return cluster.home(region).joinpath("raylay", *path)


def own(cluster: Cluster) -> dict[str, bytes]:
    """Each host's certificate and key."""
    return {
        f"{region} {name}": file(cluster, region, "host", name).read_bytes()
        for region in HOSTS
        for name in ("host.crt", "host.key")
    }


def served(cluster: Cluster, name: str) -> bytes:
    """The certificate that an instance shows to who connects."""
    record = cluster.record()
    place = (record.nodes[name].address, record.ports[name].client)
    return ssl.get_server_certificate(place).encode()


def instances(cluster: Cluster, region: str) -> list[str]:
    """The processes of a region's instances."""
    return sorted(cluster.on(region, f"pgrep -f 'ray::{region}-[12]$'").split())


async def tried(cluster: Cluster, group: str, **options: Any) -> None:
    """Connects once."""
    async with Client("stranger", servers=cluster.servers(group), connect_wait_s=WAIT_S, **options):
        pass


@pytest.mark.covers("Configuration", "`ray up` deployments come with certificates")
def test_each_host_has_a_certificate_and_the_head_alone_the_authority(guarded: Cluster) -> None:
    assert len(set(own(guarded).values())) == 2 * len(HOSTS)
    for region in HOSTS:
        assert file(guarded, region, "authority", "ca.key").exists() == (region == "head")
        credentials = file(guarded, region, "credentials")
        private = [credentials / name for name in SHARED]
        private.append(file(guarded, region, "host", "host.key"))
        assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
        for name in (*SHARED, "ca.pem"):
            made = file(guarded, "head", "credentials", name).read_bytes()
            assert (credentials / name).read_bytes() == made


@pytest.mark.covers("Configuration", "a fabric with TLS and authentication on every transport")
def test_messages_cross_with_tls_for_who_has_credentials(guarded: Cluster) -> None:
    use = ". ~/raylay/credentials/operator.env"
    message = json.dumps({"gate": 1})
    guarded.on("NewYork", f"{use} && raylay publish flights/ua '{message}' --group NewYork")
    consume = "raylay subscribe flights/ua --group London --bookmark 0 --count 1"
    assert json.loads(guarded.on("London", f"{use} && {consume}")) == {"gate": 1}

    async def from_outside() -> bytes:
        servers = guarded.servers("Chicago")
        async with Client("desk", servers=servers, **guarded.client_options()) as client:
            async for message in await client.subscribe("flights/ua", bookmark=EPOCH):
                return message.body
        raise AssertionError("the subscription ended")

    assert json.loads(asyncio.run(from_outside())) == {"gate": 1}
    # Without them the same command, on the same host, is told who is let in.
    told = guarded.on("London", f"{consume} 2>&1", check=False)
    assert "it is not let in" in told and "gate" not in told


@pytest.mark.covers("Configuration", "a fabric with TLS and authentication on every transport")
def test_clients_that_lack_something_are_refused(guarded: Cluster) -> None:
    options = guarded.client_options()
    with pytest.raises(LogonRefused):
        asyncio.run(tried(guarded, "Chicago", tls=options["tls"]))
    with pytest.raises(LogonRefused):
        asyncio.run(tried(guarded, "Chicago", **{**options, "password": "guessed"}))
    other_ca = {"ca_file": tls_files().ours.file}
    with pytest.raises(RaylayError, match="of a CA that is not known here"):
        asyncio.run(tried(guarded, "London", **{**options, "tls": other_ca}))
    with pytest.raises(RaylayError, match="speaks TLS"):
        asyncio.run(tried(guarded, "London", **{**options, "tls": None}))


@pytest.mark.covers("Configuration", "a fabric with TLS and authentication on every transport")
def test_links_that_lack_something_are_refused(guarded: Cluster, tmp_path: Path) -> None:
    """Of an instance of somebody else, who can reach the port and knows the CA."""
    record = guarded.record()
    there = f"{record.nodes['NewYork-1'].address}:{record.ports['NewYork-1'].replication}"
    tls = TlsConfig(ca_file=str(file(guarded, "head", "credentials", "ca.pem")))
    options = {"User": "links", "Password": "guessed"}
    guesses = ModuleConfig("amps-default-authenticator-module", options)
    topics = (TopicRule("flights/.*"),)
    says = {"nothing": (tls, None), "guessed": (tls, guesses), "plain": (None, guesses)}
    destinations = tuple(
        DestinationConfig(
            name,
            "NewYork",
            False,
            (there,),
            topics,
            server_names=("NewYork-1",),
            tls=spoken,
            authenticator=said,
        )
        for name, (spoken, said) in says.items()
    )
    config = InstanceConfig("rogue-1", "rogue", topics, destinations, first=True)
    config.save(tmp_path / config.name)
    process = subprocess.Popen(
        [sys.executable, "-m", "raylay.services.server.run_instance", tmp_path / config.name],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    told: list[str] = []
    wanted = {each.name for each in destinations}
    try:
        assert process.stderr is not None
        for line in process.stderr:
            told.append(line)
            wanted -= {name for name in wanted if name in line and "link_refused" in line}
            if not wanted:
                break
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    assert not wanted, told
    assert not [line for line in told if "link_caught_up" in line]


@pytest.mark.covers("Configuration", "`ray up` deployments come with certificates")
def test_a_second_ray_up_keeps_what_there_is_and_renews_what_expires(guarded: Cluster) -> None:
    """And brings to all hosts what was changed on the head: a user who was added."""
    more = "amy: {logon: true, topic: [{topic: flights/ua, read: true}]}"
    guarded.on(
        "head",
        "cd ~/raylay/credentials && raylay password amy --file passwords && "
        f"echo '{more}' >>permissions.yaml",
        given="amy's long secret\n",
    )
    amy = {**guarded.client_options(), "user_id": "amy", "password": "amy's long secret"}
    with pytest.raises(LogonRefused):
        asyncio.run(tried(guarded, "London", **amy))
    before = own(guarded)
    credentials = file(guarded, "head", "credentials")
    secrets = {path.name: path.read_bytes() for path in credentials.iterdir()}
    authority = file(guarded, "head", "authority", "ca.pem").read_bytes()
    # One that was made eleven months ago, say.
    address = guarded.addresses()[HOSTS["London"]]
    made = CertificateAuthority(file(guarded, "head", "authority"))
    certificate = made.issue(address, [address], EXPIRING_DAYS)
    for old in (certificate.with_suffix(".key"), certificate):
        file(guarded, "London", "host", f"host{old.suffix}").write_bytes(old.read_bytes())
        old.unlink()
    expiring = own(guarded)
    wait_until("in use", lambda: served(guarded, "London-1") == expiring["London host.crt"])
    processes = instances(guarded, "London")

    guarded.ray("up", "--yes", "--no-config-cache", str(guarded.file))
    after = own(guarded)
    changed = {name for name, data in after.items() if data != expiring[name]}
    assert changed == {"London host.crt", "London host.key"}
    assert after["London host.crt"] != before["London host.crt"]
    wait_until("in use", lambda: served(guarded, "London-1") == after["London host.crt"])
    assert instances(guarded, "London") == processes, "nobody was started again for that"
    assert {path.name: path.read_bytes() for path in credentials.iterdir()} == secrets
    assert file(guarded, "head", "authority", "ca.pem").read_bytes() == authority
    for region in REGIONS:
        asyncio.run(tried(guarded, region, **amy))
    wait_until("whole", guarded.is_whole)


@pytest.mark.covers("Configuration", "a fabric with TLS and authentication on every transport")
def test_a_host_without_power_comes_back_with_its_certificate(guarded: Cluster) -> None:
    before = own(guarded)
    with Load(guarded, "power", publishers=("Chicago", "NewYork")) as load:
        load.await_progress("NewYork")
        guarded.ground("kill", HOSTS["NewYork"])
        load.await_progress("Chicago", "London", messages=400)
        guarded.ground("start", HOSTS["NewYork"])
        guarded.on("NewYork", "bash ~/raylay/deploy/start.sh")
        wait_until("whole", guarded.is_whole)
    verdict = load.verdict()
    assert verdict.valid, verdict
    assert verdict.persisted == verdict.published > 0
    assert own(guarded) == before
    assert served(guarded, "NewYork-1") == before["NewYork host.crt"]


@pytest.mark.covers("Configuration", "`ray up` deployments come with certificates")
def test_secrets_are_nowhere_but_in_their_files(guarded: Cluster, tmp_path: Path) -> None:
    """Not in logs, in what Ray keeps of the cluster, in records and journals of the fabric, in
    arguments and environments of processes."""
    credentials = file(guarded, "head", "credentials")
    secrets = [(credentials / f"{user}-password").read_text().strip() for user in USERS]
    keys = [file(guarded, region, "host", "host.key") for region in HOSTS]
    keys.append(file(guarded, "head", "authority", "ca.key"))
    keys.append(credentials / "enrolment-key")
    secrets += [path.read_text().splitlines()[-3] for path in keys]
    assert len(set(secrets)) == len(USERS) + len(HOSTS) + 2 and min(map(len, secrets)) > 40
    patterns = tmp_path / "patterns"
    patterns.write_text("\n".join(secrets))
    found = set(run("grep", "-rlaF", "-f", patterns, guarded.root, check=False).split())
    expected = {str(path) for path in keys}
    for region in HOSTS:
        place = file(guarded, region, "credentials")
        expected |= {str(place / f"{user}-password") for user in USERS}
        expected.add(str(place / "enrolment-key"))
    assert found == expected, found ^ expected
    for region in HOSTS:
        seen = guarded.on(region, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | base64")
        shown = base64.b64decode(seen)
        assert b"raylet" in shown
        assert not [secret for secret in secrets if secret.encode() in shown]
