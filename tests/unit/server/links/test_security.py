"""Who may replicate to an instance, and what: two instances, real sockets, links of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from support.link_peers import DESCRIPTION
from support.one_instance import events
from unit.test_counted_calls import links_here

from raylay.services.client import Client
from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import (
    DestinationConfig,
    InstanceConfig,
    split_address,
)
from raylay.services.errors import FabricError, RemoteProtocolError
from raylay.services.messages.topics import TopicRule
from raylay.services.plugins import authenticators, loader
from raylay.services.protocol.child.queue_requests import Candidate, QueueRequest, queue_request
from raylay.services.protocol.frames import FrameReader, Header, encode_frame
from raylay.services.protocol.link import bootstrap
from raylay.services.protocol.link.link_credentials import (
    PASSWORD_BYTES_MAX,
    USER_BYTES_MAX,
    read_said,
)
from raylay.services.protocol.link.proof import proof_of
from raylay.services.protocol.link.replication import UpstreamLogon, link_logon, placed
from raylay.services.replication.instance import Identity
from raylay.services.replication.membership.placement import InstancePlacement
from raylay.services.security.credentials import (
    Answer,
    Challenge,
    Credentials,
    LogonAccepted,
    LogonDenied,
)
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.data.salvage import salvage
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.links.announcer import Announcer
from raylay.services.telemetry.logs import LogOptions

DEADLINE_S = 25.0
SECRET, WRONG, KEY = "the right words", "other words", "the key of a fabric"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
PERMISSIONS = {
    "links": {"replication-logon": True, "replicated-topics": [{"topic": ".*", "write": True}]},
    "clients": {"logon": True},
    "some": {
        "replication-logon": True,
        "replicated-topics": [{"topic": "orders|work", "write": True}],
    },
}
GUARDED = InstanceConfig(
    "B", "g", first=True, topics=(TopicRule(".*"),), log=LogOptions(target="none"), fabric_key=KEY
)


@dataclass
class Place:
    """Where the files of a test lie, and its instances run."""

    path: Path

    def __post_init__(self) -> None:
        self.servers: list[InstanceServer] = []
        (self.path / "hashes").write_text(
            "".join(f"{user}:{CHEAP.hash(SECRET)}\n" for user in PERMISSIONS)
        )
        (self.path / "permissions").write_text(json.dumps(PERMISSIONS))
        self.password.write_text(SECRET)

    @property
    def password(self) -> Path:
        return self.path / "password"

    def guarded(self) -> InstanceConfig:
        """Who receives, and lets in whoever has the password and may replicate."""
        return replace(
            GUARDED,
            replication_authentication=ModuleConfig(
                "passwords", {"File": str(self.path / "hashes")}
            ),
            replication_entitlement=ModuleConfig(
                "permissions", {"File": str(self.path / "permissions")}
            ),
        )

    def says(self, user: str = "links") -> ModuleConfig:
        return ModuleConfig(
            authenticators.DEFAULT, {"User": user, "PasswordFileName": str(self.password)}
        )

    def sender(self, to: InstanceServer, authenticator: ModuleConfig | None) -> InstanceConfig:
        destination = DestinationConfig(
            "B", "g", False, (to.runtime.replication_address,), server_names=("B",),
            topics=(TopicRule(".*", exclude_validation=("replicate",)),),
            retry_ms_min=20, retry_ms_max=50, authenticator=authenticator,
        )  # fmt: skip
        return replace(GUARDED, name="A", destinations=(destination,))

    async def start(self, config: InstanceConfig, *, awaited: bool = True) -> InstanceServer:
        links = links_here(asyncio.get_running_loop())
        server = InstanceServer(config, self.path / "data" / config.name, links)
        self.servers.append(server)
        await server.start()
        return server

    def run(self, visit: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await visit()
            finally:
                for server in reversed(self.servers):
                    await server.stop()

        asyncio.run(run())

    def no_secret(self) -> None:
        """Neither on a disk nor in what people are shown."""
        for path in (self.path / "data").rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert SECRET.encode() not in data and WRONG.encode() not in data, path
        for server in self.servers:
            shown = json.dumps([server.status(), server.events(0)], default=str)
            assert SECRET not in shown and WRONG not in shown


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def told(server: InstanceServer, name: str, word: str = "") -> str:
    """Waits for an event that says this; all that it says."""
    while True:
        for each in events(server, name):
            text = json.dumps(each, default=str)
            if word in text:
                return text
        await asyncio.sleep(0.01)


async def publish(server: InstanceServer, *topics: str) -> None:
    async with Client("p", [server.runtime.client_address]) as client:
        for topic in topics:
            await client.publish(topic, b"{}", message_type="json")
        await client.flush()


async def holds(server: InstanceServer, messages: int) -> None:
    while server.parts.instance.machine.next_txid <= messages:
        await asyncio.sleep(0.01)


@pytest.mark.covers("Configuration", "Authentication and entitlement of replication")
def test_the_right_password_replicates(place: Place) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        a = await place.start(place.sender(b, place.says()))
        await publish(a, "orders", "trades")
        await holds(b, 2)
        place.no_secret()

    place.run(visit)


@pytest.mark.covers("Configuration", "Authentication and entitlement of replication")
def test_nothing_passes_with_a_wrong_one_until_the_file_is_corrected(place: Place) -> None:
    place.password.write_text(WRONG)

    async def visit() -> None:
        b = await place.start(place.guarded())
        a = await place.start(place.sender(b, place.says()))
        await publish(a, "orders")
        text = await told(a, "link_refused", '"auth"')
        assert "B does not let A in" in text and "correct the `authenticator`" in text
        text = await told(b, "logon_denied")
        assert '"user": "links"' in text and '"transport": "replication"' in text
        assert b.parts.instance.machine.next_txid == 1 and not b.parts.instance.machine.upstreams()
        (state,) = a.status()["destinations"].values()
        assert not state["connected"]
        place.no_secret()
        place.password.write_text(SECRET)
        await holds(b, 1)
        place.no_secret()

    place.run(visit)


@pytest.mark.covers("Configuration", "Authenticator of outgoing links")
def test_what_is_missing_is_told_and_looked_for_again(place: Place) -> None:
    place.password.unlink()

    async def visit() -> None:
        b = await place.start(place.guarded())
        a = await place.start(place.sender(b, place.says()))
        await publish(a, "orders")
        text = await told(a, "link_credentials_missing")
        assert f"{place.password} cannot be read: No such file" in text
        assert "A: destination B: authenticator" in text
        assert str(place.password) in json.dumps(a.status(), default=str)
        place.password.write_text(SECRET)
        await holds(b, 1)

    place.run(visit)


@pytest.mark.covers("Configuration", "Authentication and entitlement of replication")
@pytest.mark.parametrize("user", ["clients", "nobody"])
def test_who_may_not_replicate_is_kept_out(user: str, place: Place) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        a = await place.start(place.sender(b, place.says(user)))
        await told(a, "link_refused", '"auth"')
        text = await told(b, "logon_denied", user)
        assert user != "clients" or "clients has no replication-logon" in text
        assert not b.parts.instance.machine.upstreams()

    place.run(visit)


@pytest.mark.covers("Configuration", "Authenticator of outgoing links")
def test_what_the_instance_says_counts_where_the_destination_says_nothing(place: Place) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        await place.start(replace(place.sender(b, None), authenticator=place.says()))
        while not b.parts.instance.machine.upstreams():
            await asyncio.sleep(0.01)

    place.run(visit)


@pytest.mark.covers("Configuration", "Authentication and entitlement of replication")
def test_a_topic_that_may_not_be_replicated_stops_its_link(place: Place) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        a = await place.start(place.sender(b, place.says("some")))
        await publish(a, "orders")
        await holds(b, 1)
        await publish(a, "trades", "orders")
        text = await told(a, "link_refused", "not_entitled")
        assert "A may not replicate topic 'trades' to B" in text and "replicated-topics" in text
        assert '"topic": "trades"' in await told(b, "upstream_not_entitled")
        # It tries again, more and more slowly, and none of the batch is taken.
        while len(events(b, "upstream_not_entitled")) < 3:
            await asyncio.sleep(0.01)
        assert b.parts.instance.machine.next_txid == 2, "nothing of that batch is taken"
        (state,) = a.status()["destinations"].values()
        assert state["unacked"] == 2, "and nothing of it is acknowledged"

    place.run(visit)


class Asks:
    """A module that challenges, and one that answers; each as an installed package has it."""

    def __init__(self, options: Any) -> None:
        self.options = options

    async def authenticate(self, asked: Credentials) -> Answer:
        assert asked.is_replication
        if asked.round == 0:
            return Challenge("links", "what?")
        return (
            LogonAccepted("links")
            if asked.password == "what? that"
            else LogonDenied("wrong answer")
        )

    async def credentials(self, challenge: Challenge | None) -> tuple[str, str]:
        return ("links", f"{challenge.password} that" if challenge else "")


@pytest.fixture
def challenged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "load_installed", lambda group, config, *rest: Asks(config.options))


@pytest.mark.covers("Configuration", "Authenticator of outgoing links")
def test_a_challenge_is_answered(place: Place, challenged: None) -> None:
    async def visit() -> None:
        asks = replace(place.guarded(), replication_authentication=ModuleConfig("asks"))
        b = await place.start(asks)
        a = await place.start(place.sender(b, ModuleConfig("asks")))
        await publish(a, "orders")
        await holds(b, 1)
        assert not events(b, "logon_denied")

    place.run(visit)


# -- copies ----------------------------------------------------------------------------------
def copying(source: InstanceServer, authenticator: ModuleConfig | None) -> InstanceConfig:
    return replace(
        GUARDED, name="C", authenticator=authenticator,
        bootstrap=BootstrapConfig((source.runtime.replication_address,), retry_ms_min=20),
    )  # fmt: skip


@pytest.mark.covers("Configuration", "a copy needs the same logon")
def test_a_copy_needs_the_same_logon(place: Place) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        await publish(b, "orders")
        c = asyncio.ensure_future(place.start(copying(b, place.says())))
        place.password.write_text(WRONG)
        await told(b, "logon_denied", '"C"')
        assert not events(b, "bootstrap_serves")
        text = await told(place.servers[1], "bootstrap_failed")
        assert "B does not let C in" in text
        place.no_secret()
        place.password.write_text(SECRET)
        assert (await c).parts.instance.machine.next_txid > 1

    place.password.write_text(WRONG)
    place.run(visit)


@pytest.mark.covers("Configuration", "a copy is given the topics that its user may bring")
def test_a_copy_is_given_topics_that_it_may_have_and_ends_at_others(place: Place) -> None:
    """Nothing of another topic leaves: neither by what was asked for, nor by what was not said."""

    async def visit() -> None:
        b = await place.start(place.guarded())
        for topic in ("orders", "secret"):
            await publish(b, topic)
        whole = copying(b, place.says("some"))
        assert whole.bootstrap is not None
        chosen = replace(whole.bootstrap, topics=(TopicRule("orders"),))
        c = await place.start(
            replace(whole, name="C", bootstrap=chosen, topics=(TopicRule("orders"),))
        )
        assert c.parts.instance.machine.next_txid > 1
        started = asyncio.ensure_future(place.start(replace(whole, name="D")))
        text = await told(b, "bootstrap_refused", "secret")
        assert "D may not copy topic" in text and "replicated-topics" in text
        assert "may not copy topic" in await told(place.servers[2], "bootstrap_failed")
        assert (
            place.servers[2].runtime.phase != "serving" and len(events(b, "bootstrap_served")) == 1
        )
        (place.path / "permissions").write_text(
            json.dumps(PERMISSIONS | {"some": {"replication-logon": True, "replicated-topics": [
                {"topic": "orders", "write": True}, {"topic": "secret", "read": True},
            ]}})
        )  # fmt: skip
        assert (await started).parts.instance.machine.next_txid > 2

    place.run(visit)


def test_a_copy_that_is_challenged(place: Place, challenged: None) -> None:
    async def visit() -> None:
        asks = replace(place.guarded(), replication_authentication=ModuleConfig("asks"))
        b = await place.start(asks)
        await publish(b, "orders")
        c = await place.start(copying(b, ModuleConfig("asks")))
        assert c.parts.instance.machine.next_txid > 1

    place.run(visit)


# -- what else logs on -----------------------------------------------------------------------
@pytest.mark.covers("Configuration", "a link over a shared connection, news of a moved")
def test_a_link_over_the_connection_of_the_other_side_logs_on_too(place: Place) -> None:
    """B dials nobody: its link comes to A over A's connection, and A asks who it is."""

    async def visit() -> None:
        back = DestinationConfig(
            "A", "g", False, server_names=("A",), share_connection=True,
            topics=(TopicRule(".*", exclude_validation=("replicate",)),),
            retry_ms_min=20, retry_ms_max=50, authenticator=place.says(),
        )  # fmt: skip
        b = await place.start(replace(GUARDED, destinations=(back,)))
        asks = replace(place.guarded(), name="A", destinations=place.sender(b, None).destinations)
        place.password.write_text(WRONG)
        a = await place.start(asks)
        await publish(b, "orders")
        await told(b, "link_refused", '"auth"')
        assert a.parts.instance.machine.next_txid == 1 and not a.parts.instance.machine.upstreams()
        place.password.write_text(SECRET)
        await holds(a, 1)
        assert b.status()["destinations"]["A"]["address"] == "over A's connection"

    place.run(visit)


@pytest.mark.covers("Configuration", "a link over a shared connection, news of a moved")
def test_news_of_a_moved_instance_need_a_logon(place: Place) -> None:
    place.password.write_text(WRONG)

    async def visit() -> None:
        b = await place.start(place.guarded())
        a = await place.start(replace(GUARDED, name="A", authenticator=place.says()))
        await a.parts.placements.learn({"Z": InstancePlacement(1, "z:1", "z:2")})
        work = asyncio.ensure_future(
            Announcer(a.runtime, a.parts.placements, (b.runtime.replication_address,)).run()
        )
        assert "B does not let A in" in await told(a, "move_not_announced")
        assert not b.parts.placements.known()
        place.no_secret()
        place.password.write_text(SECRET)
        await work
        assert b.parts.placements.known()["Z"] == InstancePlacement(1, "z:1", "z:2")

    place.run(visit)


@pytest.mark.covers("Configuration", "a link over a shared connection, news of a moved")
def test_a_salvage_needs_a_logon(place: Place) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        config = replace(place.sender(b, None), authenticator=place.says())
        directory = place.path / "data" / "A"
        a = await place.start(replace(config, destinations=()))
        await publish(a, "orders")
        await a.stop()
        place.servers.remove(a)
        config.save(directory)
        place.password.write_text(WRONG)
        report = await asyncio.to_thread(salvage, directory, {}, timeout_s=0.3)
        assert "B does not let A in" in report.waiting["B"]
        place.password.write_text(SECRET)
        # It is let in now, and asked whether it is retired, which it is not.
        with pytest.raises(FabricError, match="A"):
            await asyncio.to_thread(salvage, directory, {}, timeout_s=5.0)
        assert b.parts.instance.machine.next_txid == 1

    place.run(visit)


@pytest.mark.covers("Configuration", "a link over a shared connection, news of a moved")
def test_a_reset_asks_for_what_a_link_may_bring_anew(place: Place) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        a = await place.start(place.sender(b, place.says()))
        await publish(a, "orders")
        await holds(b, 1)
        (place.path / "permissions").write_text(json.dumps({"links": {"replication-logon": False}}))
        assert await b.parts.calls.reset_entitlement("nobody") == 0
        assert await b.parts.calls.reset_entitlement("links") == 1
        await told(a, "link_refused", "entitlement_reset")
        await told(a, "link_refused", '"auth"')
        assert not b.parts.instance.machine.upstreams()

    place.run(visit)


# -- forged frames ---------------------------------------------------------------------------
class Peer:
    """Who speaks to the replication transport by himself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = FrameReader()

    @classmethod
    async def at(cls, server: InstanceServer) -> Peer:
        return cls(
            *await asyncio.open_connection(*split_address(server.runtime.replication_address))
        )

    async def said(self) -> list[Header]:
        """All until the connection ends."""
        found = []
        while data := await self._reader.read(1 << 16):
            found += [frame.header for frame in self._frames.feed(data)]
        return found

    async def until(self, command: str) -> Header:
        while data := await self._reader.read(1 << 16):
            for frame in self._frames.feed(data):
                if frame.header["c"] == command:
                    return frame.header
        raise AssertionError(f"no {command}")


MOVED = {
    "B": InstancePlacement(9, "away:1", "away:2"),
    "A": InstancePlacement(9, "away:1", "away:2"),
}


def logon(user: str, password: str, **words: Any) -> UpstreamLogon:
    made = UpstreamLogon(
        "A",
        "g",
        77,
        "g",
        "B",
        5,
        b"",
        description=DESCRIPTION,
        address="",
        placements=MOVED,
        user_id=user,
        password=password,
    )
    made = replace(made, **words)
    made.proof = proof_of(KEY, made)
    return made


def facts(server: InstanceServer) -> tuple[Any, ...]:
    machine = server.parts.instance.machine
    return (
        machine.next_txid, machine.known.digest(), machine.placements.to_wire(), machine.retired,
        machine.went_back, machine.missing.ranges.count,
        server.parts.instance.state.get_number(f"epoch/{77:016x}/B"),
    )  # fmt: skip


def asking(number: int, queue: str) -> bytes:
    return queue_request(
        QueueRequest(5, 1, number, "A", queue, "json", "", 9, [Candidate(1, 1, 0, "B")])
    )


ASKS = Identity("C", "g", 78)
FORGED: dict[str, bytes] = {
    "placed": placed(MOVED),
    "lacks": encode_frame({"c": "lacks", "whole": True}),
    "queue": asking(1, "work"),
    "logon": link_logon(logon("links", WRONG)),
    "announces": link_logon(logon("links", WRONG, announces=True)),
    "salvages": link_logon(logon("links", WRONG, salvages=True)),
    "nobody": link_logon(logon("", "")),
    "bootstrap": bootstrap.request(ASKS, (TopicRule(".*"),), (TopicRule(".*"),)),
}  # fmt: skip


@pytest.mark.covers("Configuration", "Authentication and entitlement of replication")
@pytest.mark.parametrize("first", FORGED)
def test_frames_of_whoever_is_not_let_in_change_nothing(
    first: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before the logon, nor behind one that has the fabric's proof and a wrong password."""

    async def visit() -> None:
        b = await place.start(place.guarded())
        asked: list[QueueRequest] = []
        monkeypatch.setattr(b.parts.upstreams.queues, "requested", asked.append)
        await publish(b, "orders")
        before = facts(b)
        peer = await Peer.at(b)
        peer.writer.write(FORGED[first] + b"".join(FORGED.values()))
        answers = await peer.said()
        assert [each["c"] for each in answers] == ["refused"]
        assert "placements" not in answers[0], "where instances live is told to nobody else"
        assert facts(b) == before and not asked and not events(b, "bootstrap_serves")

    place.run(visit)


@pytest.mark.covers("Configuration", "a copy needs the same logon")
def test_who_asks_for_messages_of_a_queue_that_it_may_not_bring_gets_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        asked: list[QueueRequest] = []
        monkeypatch.setattr(b.parts.upstreams.queues, "requested", asked.append)
        peer = await Peer.at(b)
        peer.writer.write(link_logon(logon("some", SECRET, placements={})))
        await peer.until("accepted")
        peer.writer.write(asking(1, "secret") + asking(2, "work"))
        while not asked:
            await asyncio.sleep(0.01)
        assert [each.queue for each in asked] == ["work"]
        peer.writer.close()

    place.run(visit)


@pytest.mark.covers("Configuration", "Authentication and entitlement of replication")
def test_who_is_let_in_still_has_to_prove_what_it_says_of_others(place: Place) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        said = logon("links", SECRET, placements={"A": MOVED["A"]})
        said.proof = b"forged"
        peer = await Peer.at(b)
        peer.writer.write(link_logon(said))
        await peer.until("accepted")
        await told(b, "placements_unproven")
        assert not len(b.parts.instance.machine.placements)
        peer.writer.close()

    place.run(visit)


@pytest.mark.covers("Configuration", "Authentication and entitlement of replication")
@pytest.mark.parametrize("first", ["announces", "logon"])
def test_who_may_not_replicate_says_nothing_that_counts_of_others(first: str, place: Place) -> None:
    """His password is right, and he has the fabric's key: he is not entitled to a link."""

    async def visit() -> None:
        b = await place.start(place.guarded())
        before = facts(b)
        peer = await Peer.at(b)
        said = logon("clients", SECRET, announces=first == "announces")
        peer.writer.write(link_logon(said))
        answers = await peer.said()
        assert [(each["c"], each["reason"]) for each in answers] == [("refused", "auth")]
        assert facts(b) == before and not b.parts.placements.known()

    place.run(visit)


@pytest.mark.covers("Configuration", "Authentication and entitlement of replication")
@pytest.mark.parametrize("first", ["announces", "logon"])
def test_who_may_replicate_without_the_fabrics_key_says_nothing_that_counts_of_others(
    first: str, place: Place
) -> None:
    async def visit() -> None:
        b = await place.start(place.guarded())
        before = facts(b)
        said = logon("links", SECRET, announces=first == "announces", placements={})
        if first == "announces":
            said.placements = MOVED
        said.proof = b""
        peer = await Peer.at(b)
        peer.writer.write(link_logon(said))
        if first == "announces":
            assert (await peer.until("refused"))["reason"] == "unproven"
        else:
            await peer.until("accepted")
            peer.writer.write(placed(MOVED))
        await told(b, "placements_unproven")
        # Retired and moved are what it says, of B itself as of A.
        assert facts(b)[2:4] == before[2:4] and not b.parts.placements.known()
        peer.writer.close()

    place.run(visit)


@pytest.mark.parametrize(
    ("key", "bytes_max"), [("user_id", USER_BYTES_MAX), ("pw", PASSWORD_BYTES_MAX)]
)
def test_what_a_link_says_of_itself_is_bounded_in_bytes(key: str, bytes_max: int) -> None:
    header: dict[str, Any] = {"c": "logon"}
    assert read_said(header) == ("", "")
    for text in ("x" * bytes_max, "é" * (bytes_max // 2)):
        assert text in read_said(header | {key: text})
    for value in ("x" * (bytes_max + 1), "é" * (bytes_max // 2) + "x", 7, None):
        with pytest.raises(RemoteProtocolError, match=f"`{key}` of logon is not a text of up to"):
            read_said(header | {key: value})


@pytest.mark.covers("Configuration", "a link that does not describe its instance is refused")
@pytest.mark.parametrize("proven", [True, False])
def test_a_link_that_does_not_describe_its_instance_is_refused(proven: bool, place: Place) -> None:
    """Its Destination cannot be validated without, and nobody passes that over."""

    async def visit() -> None:
        b = await place.start(place.guarded())
        said = logon("links", SECRET, placements={}, description=b"")
        said.proof = said.proof if proven else b""
        before = facts(b)
        peer = await Peer.at(b)
        peer.writer.write(link_logon(said))
        refused = await peer.until("refused")
        assert refused["reason"] == "bad_description" and "is missing" in refused["text"]
        assert '"bad_description"' in await told(b, "upstream_refused")
        assert facts(b) == before, "no epoch is taken of it"
        assert not b.parts.instance.machine.upstreams()

    place.run(visit)


@pytest.mark.covers("Configuration", "a link that does not describe its instance is refused")
def test_what_a_retired_directory_holds_is_brought_without_a_description(place: Place) -> None:
    """Its configuration may be of long ago."""

    async def visit() -> None:
        b = await place.start(place.guarded())
        retired = {"A": MOVED["A"]}
        words = {"placements": retired, "description": b""}
        peer = await Peer.at(b)
        peer.writer.write(link_logon(logon("links", SECRET, salvages=True, **words)))
        await peer.until("accepted")
        peer.writer.close()

    place.run(visit)
