"""`raylay journal salvage`: the links of a retired data directory run once more.

The run owns the directory's lock. `Salvage` and a link's own machine decide
(replication/membership/salvage.py, services/replication/link/outbound.py); this module has the
sockets, the journal and the clock.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack

from raylay.services.config.instance import InstanceConfig, split_address
from raylay.services.errors import ConfigurationError, FabricError, RaylayError, RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.net.dialling import open_streams
from raylay.services.net.tls_config import TlsConfig
from raylay.services.plugins.filters import filter_language
from raylay.services.plugins.own_credentials import OwnCredentials
from raylay.services.protocol.frames import Frame, FrameReader
from raylay.services.protocol.link.link_credentials import RETRY, read_said
from raylay.services.protocol.link.proof import proof_of
from raylay.services.protocol.link.replication import (
    BEAT,
    REPLICATION_FRAME_BYTES_MAX,
    LinkAccepted,
    PartReader,
    UpstreamLogon,
    batch_front,
    link_logon,
    pack_rooted,
    read_accepted,
    read_ack,
    read_placed,
)
from raylay.services.replication.effects import LinkEffect, SendBatch
from raylay.services.replication.instance import Identity
from raylay.services.replication.link.outbound import OutboundLink
from raylay.services.replication.membership.placement import Placements, from_wire
from raylay.services.replication.membership.salvage import SUCCESSOR, Salvage
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.data.state_thread import StateThread
from raylay.storage.files import write_durably
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.state import LmdbStateStore

SALVAGED_FILE = "salvaged.json"
CONNECT_TIMEOUT_S = 3.0
BEAT_S = 1.0
SILENCE_S_MAX = 10.0
PAUSE_S = 0.5
TIMEOUT_S_DEFAULT = 60.0
READ_BYTES = 512 * 1024
HEADERS_IN_STEP = 1024
WINDOW_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class SalvageReport:
    """The result of a salvage.

    Attributes:
        messages: the number of messages in the directory's journal.
        sent: number of messages, by destination, that its server lacked and was sent, or with
            `check` would be sent.
        servers: the instance that answered, by destination.
        waiting: the reason why a destination lacks messages that are routed to it, by destination.
        conflicts: the number of messages that are held there with another content: they stay in the
            directory.
    """

    directory: str
    instance: str
    incarnation: str
    generation: int
    messages: int
    checked_only: bool
    sent: dict[str, int] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    conflicts: int = 0

    @property
    def is_done(self) -> bool:
        return not self.waiting and not (self.checked_only and any(self.sent.values()))


class _Connection:
    """One connection of a link to its destination."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._frames = FrameReader(frame_bytes_max=REPLICATION_FRAME_BYTES_MAX)
        self._come: list[Frame] = []
        self._silent_since_s = time.monotonic()

    async def next(self) -> Frame:
        """Returns the next frame, and sends heartbeats while it waits.

        Raises:
            ConnectionError: the connection ended.
            TimeoutError: no frame came in time.
        """
        while not self._come:
            try:
                async with asyncio.timeout(BEAT_S):
                    data = await self._reader.read(1 << 18)
            except TimeoutError:
                if time.monotonic() - self._silent_since_s > SILENCE_S_MAX:
                    raise TimeoutError(f"nothing came for {SILENCE_S_MAX:g} s") from None
                self.writer.write(BEAT)
                continue
            if not data:
                raise ConnectionError("the connection was closed")
            self._silent_since_s = time.monotonic()
            self._come += self._frames.feed(data)
        return self._come.pop(0)


class SalvageRun:
    """One run of the command.

    Args:
        directory: the retired data directory.
        addresses: the replication addresses of the fabric's instances, by name, from the fabric's
            record.
        check: whether only to count the lacking messages, and to send nothing.
    """

    def __init__(
        self, directory: Path, addresses: Mapping[str, str], *, check: bool = False
    ) -> None:
        self._directory = directory
        self._check = check
        self._addresses = dict(addresses)
        self.config = InstanceConfig.load(directory)
        archive = self.config.journal.archive_directory
        # The lock first: the directory of a running instance is not retired.
        self._journal = LmdbJournal(
            directory / "journal",
            segment_bytes=self.config.journal.segment_bytes,
            archive_directory=archive,
        )
        try:
            self._state = StateThread(LmdbStateStore(directory / "state.lmdb"))
        except BaseException:
            self._journal.close()
            raise
        incarnation = self._state.get_number("incarnation")
        recovered = self._journal.recovered
        self._held = recovered.held
        self.identity = Identity(
            self.config.name,
            self.config.group,
            incarnation,
            self._state.get_number("generation"),
        )
        self._placements = Placements(self._known_placements())
        self._salvage = Salvage(
            self.identity,
            [destination.destination() for destination in self.config.destinations],
            recovered.next_txid - 1,
            filter_language(
                (rule for each in self.config.destinations for rule in each.topics),
                self.config.type_definitions,
            ),
        )
        self._why = dict.fromkeys(self._salvage.destinations, "not connected yet")

    def _known_placements(self) -> dict[str, Any]:
        kept = self._state.get("placements")
        return from_wire(msgpack.unpackb(kept)) if kept is not None else {}

    def close(self) -> None:
        self._state.close()
        self._journal.close()

    async def run(self, timeout_s: float = TIMEOUT_S_DEFAULT) -> SalvageReport:
        """Sends lacking messages to every destination that can be reached within `timeout_s`.

        Raises:
            FabricError: the directory is not retired.
        """
        links = [asyncio.ensure_future(self._keep(name)) for name in self._salvage.destinations]
        try:
            done, _ = await asyncio.wait(
                links, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION
            )
            for link in done:
                link.result()
        finally:
            for link in links:
                link.cancel()
            await asyncio.gather(*links, return_exceptions=True)
        return self._report()

    def _report(self) -> SalvageReport:
        progress = self._salvage.progress
        report = SalvageReport(
            str(self._directory),
            self.identity.name,
            f"{self.identity.incarnation:016x}",
            self.identity.generation,
            sum(b - a + 1 for _, (a, b) in self._held.items()),
            self._check,
            {name: each.sent for name, each in progress.items()},
            {name: each.server for name, each in progress.items()},
            {name: self._why[name] for name, each in progress.items() if not each.done},
            self._salvage.conflicts,
        )
        self._mark(report)
        return report

    def _mark(self, report: SalvageReport) -> None:
        """Writes a mark beside the journal, for `raylay status` and for people who find the
        directory."""
        text = json.dumps(
            {
                "at_us": time.time_ns() // 1000,
                "done": report.is_done,
                "messages": report.messages,
                "lacking": sum(report.sent.values()) if self._check else 0,
                "unreached": sorted(report.waiting),
                "conflicts": report.conflicts,
            }
        )
        write_durably(self._directory / SALVAGED_FILE, text.encode())

    # -- one destination -----------------------------------------------------------------------
    async def _keep(self, name: str) -> None:
        while not self._salvage.progress[name].done:
            addresses = self._addresses_of(name)
            if not addresses:
                self._why[name] = "nobody has said yet where it lives"
            for address, authenticator in addresses:
                try:
                    await self._once(name, address, authenticator)
                    return
                except (OSError, RemoteProtocolError, ConfigurationError, TimeoutError) as error:
                    self._why[name] = f"{address}: {error or type(error).__name__}"
            await asyncio.sleep(PAUSE_S)

    def _addresses_of(self, name: str) -> list[tuple[str, ModuleConfig | None]]:
        """The addresses in the order of the destination's list, with the authenticator to use at
        each."""
        own: tuple[ModuleConfig | None, ...] = (None,)
        if name == SUCCESSOR:
            targets: dict[str, str] = {self.identity.name: ""}
        else:
            config = next(each for each in self.config.destinations if each.name == name)
            names = config.server_names or config.addresses
            dialled = config.addresses or ("",) * len(names)
            targets = dict(zip(names, dialled, strict=True))
            own = tuple(config.authenticator_of(at) for at in range(len(names)))
        found: dict[str, ModuleConfig | None] = {}
        for (target, address), said in zip(targets.items(), own, strict=True):
            moved = self._placements.get(target)
            known = (moved.address if moved else "") or self._addresses.get(target, "") or address
            if known:
                found.setdefault(known, said)
        return list(found.items())

    def _is_of_the_fabric(self, name: str) -> bool:
        """Returns whether the destination's servers are instances of this fabric. An instance of
        another fabric gets no proof, which it could pass on."""
        named = {SUCCESSOR, *(each.name for each in self.config.destinations if each.server_names)}
        return name in named

    def _tls_of(self, name: str) -> TlsConfig | None:
        tls = {each.name: each.tls for each in self.config.destinations}
        return tls.get(name, self.config.announce_tls)

    async def _once(self, name: str, address: str, authenticator: ModuleConfig | None) -> None:
        host, port = split_address(address)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await open_streams(host, port, self._tls_of(name))
        try:
            connection = _Connection(reader, writer)
            accepted, held = await self._log_on(connection, name, authenticator)
            with self._journal.reader() as journal:
                await self._send_all(connection, name, journal, accepted, held)
        finally:
            writer.close()

    async def _log_on(
        self, connection: _Connection, name: str, authenticator: ModuleConfig | None
    ) -> tuple[LinkAccepted, PublisherRanges]:
        identity, destination = self.identity, self._salvage.destinations[name]
        credentials = OwnCredentials(
            authenticator or self.config.authenticator,
            f"{identity.name}: destination {name}",
        )
        said = await credentials.say()
        epoch = self._state.get_number("link_epoch") + 1
        self._state.put_number("link_epoch", epoch)
        logon = UpstreamLogon(
            identity.name,
            identity.group,
            identity.incarnation,
            destination.group,
            name,
            epoch,
            self._held.digest(),
            generation=identity.generation,
            placements=self._placements.items(),
            salvages=True,
        )
        if self._is_of_the_fabric(name):
            logon.proof = proof_of(self.config.fabric_key, logon)
        connection.writer.write(link_logon(replace(logon, user_id=said[0], password=said[1])))
        accepted: LinkAccepted | None = None
        held, parts = PublisherRanges(), PartReader()
        while True:
            header, body = await connection.next()
            command = header["c"]
            if command == "refused":
                self._refused(header)
            elif command == RETRY:
                said = await credentials.say(read_said(header))
                again = replace(logon, user_id=said[0], password=said[1])
                connection.writer.write(link_logon(again))
            elif command == "accepted":
                accepted = read_accepted(header)
                self._placements.learn(accepted.placements)
                if self._placements.is_retired(accepted.name, accepted.generation):
                    raise RemoteProtocolError(f"{accepted.name} there is retired itself", "moved")
            elif command == "held":
                parts.read(body, held)
            elif command == "waited" and not header.get("more") and accepted is not None:
                return accepted, self._held.copy() if accepted.same else held

    def _refused(self, header: dict[str, Any]) -> None:
        self._placements.learn(read_placed(header))
        reason, text = str(header.get("reason")), str(header.get("text"))
        if reason == "not_retired":
            raise FabricError(f"{self._directory}: {text}")
        raise RemoteProtocolError(text, reason)

    async def _send_all(
        self,
        connection: _Connection,
        name: str,
        journal: LmdbJournalReader,
        accepted: LinkAccepted,
        held: PublisherRanges,
    ) -> None:
        salvage = self._salvage
        machine = salvage.link(name, WINDOW_BYTES)
        start = salvage.start(name, accepted.name)
        effects = machine.connected(accepted.incarnation, held, start, journal.first_txid)
        self._perform(connection, name, machine, effects)
        while not salvage.progress[name].done:
            while machine.wants:
                machine.skip_segments(journal.segment_summaries())
                headers = journal.read_headers(machine.cursor, HEADERS_IN_STEP)
                if headers and machine.skip_headers(headers):
                    continue
                runs = journal.read(machine.cursor, READ_BYTES)
                self._perform(connection, name, machine, machine.take(runs))
                await connection.writer.drain()
            if salvage.progress[name].done:
                return
            header, body = await connection.next()
            if header["c"] == "refused":
                self._refused(header)
            elif header["c"] == "ack":
                salvage.step(name, machine.acked(*read_ack(header, body)))

    def _perform(
        self, connection: _Connection, name: str, machine: OutboundLink, effects: list[LinkEffect]
    ) -> None:
        self._salvage.step(name, effects)
        for effect in effects:
            if not isinstance(effect, SendBatch):
                continue
            if self._check:
                # Treated as stored: the run counts messages, and sends none.
                self._salvage.step(name, machine.acked(effect.number, {}, {}, {}))
                continue
            awaited = pack_rooted(effect.awaited)
            parts = [run.raw if run.raw is not None else run.encode() for run in effect.runs]
            size_bytes = sum(map(len, parts))
            front = batch_front(
                effect.number, effect.marked, effect.caught_up, awaited, "", size_bytes
            )
            connection.writer.writelines((front, *parts))


def salvage(
    directory: Path,
    addresses: Mapping[str, str],
    *,
    check: bool = False,
    timeout_s: float = TIMEOUT_S_DEFAULT,
) -> SalvageReport:
    """Sends the messages that a retired data directory holds to the instances that lack them.

    Args:
        addresses: replication addresses by instance name, from the fabric's record; may be empty.
        check: whether to send nothing.
        timeout_s: time limit; destinations not reached by then are left for the next run.

    Raises:
        ConfigurationError: the directory is no data directory.
        StorageLocked: its instance runs.
        FabricError: the directory is not retired.
        StorageError: the directory cannot be read.
    """
    if not (directory / "state.lmdb").is_file():
        raise ConfigurationError(f"{directory} is no data directory of an instance")
    run = SalvageRun(directory, addresses, check=check)
    try:
        return asyncio.run(run.run(timeout_s))
    finally:
        run.close()


def read_mark(directory: Path) -> dict[str, Any]:
    """Returns the mark that the last salvage of a directory left there; empty: there was none."""
    try:
        found = json.loads((directory / SALVAGED_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


__all__ = ["RaylayError", "SalvageReport", "read_mark", "salvage"]
