"""A small scripted server for the client's tests: real sockets, no journal, no logic of its own.

It answers the logon and subscribes by itself and records every frame. Acks, deliveries and
notices come when the test says so, or at once with `auto_ack`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from raylay.services.fabric.plan import free_port
from raylay.services.messages.records import Record, RecordBuilder, iterate_records, sequences_of
from raylay.services.protocol.frames import FrameReader, Header, encode_frame

PORTS: set[int] = set()
"""That servers of this process had."""


class Session(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.reader = FrameReader()
        self.transport: asyncio.Transport | None = None
        self.frames: list[tuple[Header, bytes]] = []
        self.published: list[int] = []
        self.bodies: list[bytes] = []
        self.records: list[Record] = []
        self.keys: list[bytes] = []
        self.does: list[int] = []
        """The command of each record published."""
        self.logged_on = False
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.sessions.append(self)

    def data_received(self, data: bytes) -> None:
        for header, body in self.reader.feed(data):
            self.frames.append((header, body))
            self.server.answer(self, header, body)
        self.server.changed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.server.changed()

    def send(self, header: Header, body: bytes = b"") -> None:
        assert self.transport is not None
        self.transport.write(encode_frame(header, body))

    def commands(self, name: str) -> list[Header]:
        """The headers of all commands of one kind, in order."""
        return [header for header, _ in self.frames if header["c"] == name]

    def ack(self, sequence: int) -> None:
        """Everything up to `sequence` is durable."""
        self.send({"c": "ack", "a": "persisted", "s": sequence, "status": "success"})

    def refuse(self, sequence: int, reason: str, text: str = "") -> None:
        """This publish is refused."""
        self.send(
            {
                "c": "ack",
                "a": "persisted",
                "s": sequence,
                "status": "failure",
                "reason": reason,
                "text": text,
            }
        )

    def deliver(self, subscription_id: str, payload: bytes, **extra: Any) -> None:
        """Sends records to a subscription."""
        count = len(sequences_of(payload))
        self.send(
            {"c": "p", "sub": subscription_id, "n": count, "ts": 77, "tx": 1, **extra}, payload
        )

    def rows(self, subscription_id: str, payload: bytes) -> None:
        """Sends rows of a query."""
        count = len(sequences_of(payload))
        self.send({"c": "sow", "sub": subscription_id, "n": count}, payload)

    def group_end(self, subscription_id: str, sent: int, matches: int) -> None:
        """Every row was sent."""
        self.send({"c": "group_end", "sub": subscription_id, "n": sent, "matches": matches})
        self.send({"c": "ack", "a": "completed", "sub": subscription_id, "status": "success"})

    def group(self, subscription_id: str, *rows: bytes) -> None:
        """Sends a whole query, each row in a frame of its own."""
        self.send({"c": "group_begin", "sub": subscription_id})
        for row in rows:
            self.rows(subscription_id, row)
        self.group_end(subscription_id, len(rows), len(rows))

    def out_of_focus(self, subscription_id: str, reason: str, payload: bytes) -> None:
        """Tells what left a focus."""
        count = len(sequences_of(payload))
        self.send({"c": "oof", "sub": subscription_id, "n": count, "r": reason}, payload)

    def safety(self, **safe: bool) -> None:
        """Tells that peers became safe or unsafe."""
        self.send(
            {"c": "safety", "peers": [self.server.peer(name, flag) for name, flag in safe.items()]}
        )

    def drop(self) -> None:
        """Ends the connection without a word."""
        assert self.transport is not None
        self.transport.abort()


class FakeServer:
    """See the top of this file."""

    def __init__(self, instance: str = "A", group: str = "G", **peers: bool) -> None:
        self.instance = instance
        self.group = group
        self.peers = dict(peers)
        self.peer_addresses: dict[str, list[str]] = {}
        self.sessions: list[Session] = []
        self.auto_ack = False
        self.silent = False
        self.durable: list[list[int]] = []
        self.highest = 0
        self.logon_refusal = ""
        self.subscribe_refusal = ""
        self.have: dict[int, bytes] | None = None
        self.address = ""
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()

    async def start(self, port: int = 0) -> FakeServer:
        """Listens on a loopback port.

        Not on one that the kernel chooses: that would go to the next that asks for one, in
        another process of the tests, as soon as this server stops.
        """
        loop = asyncio.get_running_loop()
        port = port or free_port(PORTS)
        self._server = await loop.create_server(lambda: Session(self), "127.0.0.1", port)
        self.address = f"127.0.0.1:{port}"
        return self

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def stop(self) -> None:
        """Stops listening and drops everybody, as SIGKILL would."""
        assert self._server is not None
        self._server.close()
        for session in self.sessions:
            if not session.ended:
                session.drop()
        await self.wait(lambda: all(session.ended for session in self.sessions))

    def changed(self) -> None:
        self._changed.set()

    async def wait(self, true: Callable[[], object], timeout_s: float = 30.0) -> None:
        """Waits until a condition over what was received holds."""
        async with asyncio.timeout(timeout_s):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    @property
    def session(self) -> Session:
        """The newest connection."""
        return self.sessions[-1]

    def peer(self, name: str, safe: bool) -> dict[str, Any]:
        return {
            "name": name,
            "group": self.group,
            "addresses": self.peer_addresses.get(name, []),
            "safe": safe,
        }

    def answer(self, session: Session, header: Header, body: bytes) -> None:
        """Returns the answer to a logon: what the server says of itself."""
        command = header["c"]
        if self.silent:
            return
        if command == "logon":
            self._answer_logon(session, header)
        elif command == "pb":
            session.published += sequences_of(body)
            found = list(iterate_records(body, verify=True))
            session.bodies += [record.body for record in found]
            session.records += found
            session.keys += [record.key for record in found]
            session.does += [record.command for record in found]
            if self.auto_ack:
                session.ack(session.published[-1])
        elif command in ("subscribe", "sow", "sow_and_subscribe"):
            self._answer_subscribe(session, header)

    def _answer_logon(self, session: Session, header: Header) -> None:
        if self.logon_refusal:
            session.send(
                {
                    "c": "ack",
                    "a": "processed",
                    "cid": header["cid"],
                    "status": "failure",
                    "reason": self.logon_refusal,
                    "text": f"the logon is refused: {self.logon_refusal}",
                }
            )
            return
        session.logged_on = True
        session.send(
            {
                "c": "ack",
                "a": "processed",
                "cid": header["cid"],
                "status": "success",
                "v": 1,
                "instance": self.instance,
                "group": self.group,
                "incarnation": 1,
                "publisher": 1,
                "durable": self.durable,
                "highest": self.highest,
                "peers": [self.peer(name, safe) for name, safe in self.peers.items()],
            }
        )

    def _answer_subscribe(self, session: Session, header: Header) -> None:
        answer: Header = {"c": "ack", "a": "processed", "cid": header["cid"]}
        if "t" in header:
            answer["sub"] = header["sub"]
        if self.subscribe_refusal:
            answer.update(status="failure", reason=self.subscribe_refusal, text="refused")
        else:
            answer["status"] = "success"
            if self.have is not None:
                answer["have"] = self.have
        session.send(answer)


def records(
    publisher: int,
    sequences: Iterable[int],
    body: bytes = b"",
    topic: str = "t",
    *,
    key: bytes = b"",
    stamp_us: int = 5,
) -> bytes:
    """A payload of records; each body is `body`, or the sequence in digits."""
    builder = RecordBuilder(publisher, topic, "json")
    return b"".join(builder.build(n, body or str(n).encode(), stamp_us, key=key) for n in sequences)
