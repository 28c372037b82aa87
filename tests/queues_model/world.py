"""The tiny world: instances, links, publishers, consumers, and what may happen to them.

Every action is a method `a_…` that says whether it was possible: a schedule is a list of tuples,
and can be replayed. After each the laws are looked at: a message is deliverable at one instance at
most (law 6), and a broken one raises `Violation`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raylay.services.messages.records import Command, publisher_id
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.queues.checkpoint import QueueCheckpoint
from raylay.services.queues.decisions import Consumer, ConsumerSubscription, Key
from raylay.services.queues.frontend import RoutedRequest
from raylay.services.queues.records import Acknowledgment, keys_of, pack_acknowledgment

from .instance import BACKLOG, Instance, Rules, sent
from .records import Disk, Entry, Rec, command, keys_of_moves, queue

PENDING_MAX, PUBLISHED_MAX, CONSUMERS_MAX = 3, 5, 6
MESSAGES, ALL = "messages", "all"
"""What narrow links do not pass on."""
Action = tuple[Any, ...]


class Violation(Exception):
    """A law is broken."""


class Link:
    """A one-way link, which sends what the other end lacks, and later what comes."""

    def __init__(self, world: World, a: str, b: str) -> None:
        self.world, self.a, self.b = world, a, b
        self.on = False
        self.wire: list[Entry | RoutedRequest] = []
        self.cursor = self.end = 0

    def connect(self) -> None:
        """Both ends meet: what is held there is skipped from now on."""
        source, target = self.world.instances[self.a], self.world.instances[self.b]
        self.on, self.wire, self.cursor = True, [], 0
        self.end = len(source.disk.journal)
        journal = source.disk.journal
        carried = {each.rec.ident for each in journal[source.disk.first :] if self._carries(each)}
        target.catch[self.a] = carried if source.serving else None
        if self.world.trims:
            target.meets(source)
            source.meets(target)

    def _carries(self, entry: Entry) -> bool:
        """Whether it may go over this link: not all links pass on what comes from others."""
        narrow = self.world.narrow
        return not narrow or not entry.path or (narrow == MESSAGES and entry.rec.kind != "pub")

    def lacks(self, entry: Entry) -> bool:
        """Whether the other end is still to be given it."""
        target = self.world.instances[self.b].disk
        return self._carries(entry) and entry.rec.ident not in target.held

    def send(self) -> bool:
        """Puts the next record on the wire."""
        source, target = self.world.instances[self.a], self.world.instances[self.b]
        journal = source.disk.journal
        self.cursor = max(self.cursor, source.disk.first)
        while self.cursor < len(journal):
            entry, at = journal[self.cursor], self.cursor
            self.cursor += 1
            if not self._carries(entry):
                continue
            if at < self.end:
                if target.has(entry.rec.ident):
                    continue
            elif target.disk.incarnation in entry.path and not target.disk.is_rolled:
                continue
            self.wire.append(Entry(entry.rec, (*entry.path, source.disk.incarnation)))
            return True
        return False

    def receive(self) -> None:
        """Takes the next thing from the wire."""
        target = self.world.instances[self.b]
        what = self.wire.pop(0)
        if isinstance(what, RoutedRequest):
            target.asked(what, self.a)
        elif not target.has(what.rec.ident):
            target.stage(what.rec, what.path)


class Publisher:
    """A client that publishes, and sends again elsewhere what is not acknowledged."""

    def __init__(self, at: str) -> None:
        self.at: str | None = at
        self.count = 0
        self.pending: list[Rec] = []
        self.acked: list[Key] = []
        self.first: dict[Key, str] = {}


class Client:
    """A consumer: what it has, and acknowledgments that are to be taken in."""

    def __init__(self, color: int | None) -> None:
        self.at: str | None = None
        self.color = color
        self.consumer: Consumer = (0, "s")
        self.has: list[Key] = []
        self.pending: list[tuple[Rec, Acknowledgment]] = []
        self.count = 0


class World:
    """See the file's docstring."""

    def __init__(
        self,
        names: Iterable[str],
        pairs: Iterable[str],
        rules: Rules,
        *,
        at_most_once: bool = False,
        initial_owner: str = "",
        store_every: int = 1,
        folded_most: int = 1,
        narrow: str = "",
        trims: bool = False,
    ) -> None:
        self.rules = rules
        self.trims = trims
        """Whether journals are removed from the front: then logons tell names, as heralds may be
        gone."""
        self.narrow = narrow
        self.names = list(names)
        self.queue = queue(at_most_once, initial_owner)
        self.store_every = store_every
        self.folded_most = folded_most
        self.types = MessageTypes()
        self.now = 0
        self.bearers: dict[int, str] = {}
        self.sessions = self._tags = 0
        self.expired: set[Key] = set()
        self.instances = {
            name: Instance(self, name, number) for number, name in enumerate(self.names, 1)
        }
        self.links: dict[tuple[str, str], Link] = {}
        for a, b in pairs:
            self.links[a, b], self.links[b, a] = Link(self, a, b), Link(self, b, a)
        self.cuts: set[frozenset[str]] = set()
        self.ttl: dict[Key, int] = {}
        self.exempt: set[Key] = set()
        """Messages that may be had twice: sent again elsewhere, claimed, of a lost disk."""
        self.excused: set[Key] = set()
        """Messages that may be lost: they were on one disk only, and it is."""
        self.publishers = {
            number: Publisher(self.names[number - 1 if number <= len(self.names) else 0])
            for number in (1, 2)
        }
        self.clients: dict[str, Client] = {}
        self.clients_made = 0
        self.done: set[Key] = set()
        self.sent: dict[Key, list[str]] = {}
        self.log: list[Action] = []
        for instance in self.instances.values():
            instance.start()
        for link in self.links.values():
            link.connect()

    def tags(self) -> int:
        """A number that was never used."""
        self._tags += 1
        return self._tags

    # -- the laws ------------------------------------------------------------------------------
    def check_delivery(self, instance: Instance, key: Key, consumer: Consumer) -> None:
        """A message is sent to a consumer."""
        if key in instance.disk.removed:
            raise Violation(f"L6 {instance.name} delivers {key}: its removal is in the journal")
        lease = instance.granted.get(key)
        if lease is None or lease.until_us <= instance.now_us:
            return
        for client in self.clients.values():
            is_held = key in client.has and client.at == instance.name
            if is_held and client.consumer == lease.consumer:
                raise Violation(f"L6 {instance.name} leases {key} twice at once")

    def delivered(self, instance: Instance, key: Key, consumer: Consumer) -> None:
        """A message has been sent to a consumer."""
        self.sent.setdefault(key, []).append(instance.name)
        if self.rules.expires_locally and key in self.expired - self.exempt:
            raise Violation(f"X {instance.name} delivers {key}, which expired before")
        if self.queue.at_most_once:
            self.done.add(key)
            if len(self.sent[key]) > 1 and key not in self.exempt:
                raise Violation(f"AMO {key} sent twice: {self.sent[key]}")
        for client in self.clients.values():
            if client.at == instance.name and client.consumer == consumer:
                client.has.append(key)

    def check(self) -> None:
        """A message is deliverable at one instance at most, and each machine is sound."""
        where: dict[Key, str] = {}
        for instance in self.instances.values():
            if not instance.up:
                continue
            if fault := instance.machine.state.wrong():
                raise Violation(f"M {instance.name}: {fault}")
            for key in instance.machine.state.may_deliver():
                if key in where and key not in self.exempt:
                    raise Violation(f"L6 {key} is deliverable at {where[key]} and {instance.name}")
                where[key] = instance.name

    def reachable(self, name: str) -> frozenset[str]:
        """Instances that links lead to."""
        seen, waiting = {name}, [name]
        while waiting:
            at = waiting.pop()
            for (a, b), link in self.links.items():
                if a == at and link.on and b not in seen:
                    seen.add(b)
                    waiting.append(b)
        return frozenset(self.instances[each].owner_name for each in seen)

    def is_message(self, key: Key) -> bool:
        """Whether it is a publisher's."""
        return key[0] in self.publishers

    def all_messages(self) -> set[Key]:
        """All that any instance holds."""
        return {
            key
            for instance in self.instances.values()
            for key in instance.disk.held
            if self.is_message(key)
        }

    def touched(self, name: str) -> set[Key]:
        """What an instance ever owned or granted."""
        found: set[Key] = set()
        for instance in self.instances.values():
            for rec, path in instance.disk.journal:
                if rec.kind == "pub":
                    came_to = self.bearers[path[0] if path else instance.disk.incarnation]
                    if name in (came_to, self.queue.initial_owner):
                        found.add(rec.ident)
                elif rec.kind == "xfer":
                    owners = {rec.by, *(move.owner for move in rec.moves)}
                    if name in {owner.partition(".")[0] for owner in owners}:
                        found |= keys_of_moves(rec.moves)
        return found

    def only_there(self, name: str, keep: Iterable[Key] = ()) -> set[Key]:
        """Messages that no other instance holds."""
        kept = set(keep)
        return {
            key
            for key in self.instances[name].disk.held
            if self.is_message(key)
            and key not in kept
            and not any(
                key in other.disk.held for other in self.instances.values() if other.name != name
            )
        }

    # -- what happens --------------------------------------------------------------------------
    def do(self, *action: Any) -> bool:
        """Does one thing; whether it was possible."""
        self.log.append(action)
        was_possible = bool(getattr(self, "a_" + action[0])(*action[1:]))
        if was_possible:
            self.now += 1
            self.check()
        else:
            self.log.pop()
        return was_possible

    def settle(self) -> None:
        """All that is under way arrives, and nobody decides anything new."""
        for _ in range(6):
            for a, b in self.links:
                while self.do("send", a, b) or self.do("recv", a, b):
                    pass
            for name in self.instances:
                self.do("commit", name)
                while self.do("fold", name) or self.do("in", name) or self.do("out", name):
                    pass

    def a_tick(self, steps: int) -> bool:
        self.now += steps
        return True

    def a_pub(self, number: int, color: int, ttl: int = 0, reaches: bool = True) -> bool:
        publisher = self.publishers[number]
        instance = self.instances.get(publisher.at or "")
        is_full = len(publisher.pending) >= PENDING_MAX or publisher.count >= PUBLISHED_MAX
        if instance is None or is_full or not (instance.up and instance.serving):
            return False
        publisher.count += 1
        rec = sent(self, number, publisher.count, color, ttl)
        publisher.pending.append(rec)
        publisher.first[rec.ident] = instance.name
        if reaches:
            instance.publish(rec, False, "")
        else:
            publisher.at = None  # the connection broke under it
        return True

    def a_pfail(self, number: int, name: str, most: int = 99) -> bool:
        publisher, instance = self.publishers[number], self.instances[name]
        if publisher.at == name or not (instance.up and instance.serving):
            return False
        publisher.at = name
        for rec in publisher.pending[:most]:
            instance.publish(rec, True, publisher.first[rec.ident])
        return True

    def a_pack(self, number: int) -> bool:
        publisher = self.publishers[number]
        instance = self.instances.get(publisher.at or "")
        did = False
        if instance is None or not instance.up:
            return False
        for rec in list(publisher.pending):
            if rec.ident not in instance.disk.held:
                break
            if any(
                link.on and rec.ident not in self.instances[b].disk.held
                for (a, b), link in self.links.items()
                if a == instance.name
            ):
                break
            publisher.pending.remove(rec)
            publisher.acked.append(rec.ident)
            did = True
        return did

    def a_commit(self, name: str) -> bool:
        instance = self.instances[name]
        if not instance.up or not instance.commit():
            return False
        self.caught_up(instance)
        return True

    def caught_up(self, instance: Instance) -> None:
        """Whether one without its disk has what its peers had (rule 12)."""
        if instance.serving:
            return
        told = [held for held in instance.catch.values() if held is not None]
        if told and all(held <= set(instance.disk.held) for held in told):
            instance.serve()

    def a_fail(self, name: str) -> bool:
        instance = self.instances[name]
        if not instance.up or not instance.staged:
            return False
        tags = {entry.rec.tag for entry in instance.staged if entry.rec.tag}
        instance.staged, instance.idents = [], set()
        instance.to_owner.append(("failed", tags, len(instance.disk.journal)))
        for a, b in self.links:
            if b == name:
                self.a_brk(a, b)
        self.cut_off(name)
        return True

    def cut_off(self, name: str) -> None:
        """All its clients are."""
        for client in self.clients.values():
            if client.at == name:
                self.hang_up(client)
        for publisher in self.publishers.values():
            if publisher.at == name:
                publisher.at = None

    def a_send(self, a: str, b: str) -> bool:
        link = self.links[a, b]
        return link.on and link.send()

    def a_recv(self, a: str, b: str) -> bool:
        link = self.links[a, b]
        if not link.on or not link.wire:
            return False
        link.receive()
        return True

    def a_conn(self, a: str, b: str) -> bool:
        link = self.links[a, b]
        if link.on or frozenset((a, b)) in self.cuts:
            return False
        if not (self.instances[a].up and self.instances[b].up):
            return False
        link.connect()
        self.caught_up(self.instances[b])
        return True

    def a_brk(self, a: str, b: str) -> bool:
        link = self.links[a, b]
        if not link.on:
            return False
        link.on, link.wire = False, []
        self.instances[b].catch.pop(a, None)
        return True

    def a_cut(self, a: str, b: str) -> bool:
        if frozenset((a, b)) in self.cuts or (a, b) not in self.links:
            return False
        self.cuts.add(frozenset((a, b)))
        self.a_brk(a, b)
        self.a_brk(b, a)
        return True

    def a_heal(self, a: str, b: str) -> bool:
        if frozenset((a, b)) not in self.cuts:
            return False
        self.cuts.discard(frozenset((a, b)))
        return True

    def a_crash(self, name: str) -> bool:
        instance = self.instances[name]
        if not instance.up:
            return False
        instance.up = False
        for a, b in self.links:
            if name in (a, b):
                self.a_brk(a, b)
        self.cut_off(name)
        return True

    def a_restart(self, name: str) -> bool:
        if self.instances[name].up:
            return False
        self.instances[name].start()
        return True

    def a_losedisk(self, name: str) -> bool:
        instance = self.instances[name]
        if instance.up or not all(other.serving for other in self.instances.values()):
            return False
        self.excused |= self.only_there(name)
        self.exempt |= self.touched(name)
        instance.new_disk()
        instance.serving, instance.catch = False, {}
        return True

    def a_rollback(self, name: str, commit: int) -> bool:
        instance = self.instances[name]
        disk = instance.disk
        if instance.up or commit >= len(disk.commits) - 1 or disk.first:
            return False
        if not all(other.serving for other in self.instances.values()):
            return False
        kept = disk.journal[: disk.commits[commit]]
        self.excused |= self.only_there(name, [entry.rec.ident for entry in kept])
        self.exempt |= self.touched(name)
        rolled = instance.disk = Disk(disk.incarnation, self.expired)
        rolled.commits, rolled.is_rolled = disk.commits[: commit + 1], True
        rolled.proxied = disk.proxied
        for entry, run in zip(kept, disk.runs, strict=False):
            rolled.add(entry, run.receive_time_us)
        instance.serving, instance.catch = False, {}
        return True

    def a_trim(self, name: str) -> bool:
        """What nobody needs is removed from the front of a journal: the queue has it in its store,
        and whoever a link leads to has it."""
        instance = self.instances[name]
        disk = instance.disk
        if not instance.up or not disk.stored:
            return False
        floor, before = QueueCheckpoint.from_bytes(disk.stored).after_txid, disk.first
        for at in range(disk.first, floor):
            if any(
                a == name and link.lacks(disk.journal[at]) for (a, _), link in self.links.items()
            ):
                break
            disk.first = at + 1
        return disk.first > before

    def a_qcrash(self, name: str) -> bool:
        instance = self.instances[name]
        if not instance.up:
            return False
        instance.attach()
        return True

    def a_fold(self, name: str) -> bool:
        return self.instances[name].up and self.instances[name].fold()

    def a_in(self, name: str) -> bool:
        return self.instances[name].up and self.instances[name].heed()

    def a_out(self, name: str) -> bool:
        return self.instances[name].up and self.instances[name].perform()

    def a_deliver(self, name: str) -> bool:
        return self.instances[name].up and self.instances[name].take(1, asks=False)

    def a_request(self, name: str) -> bool:
        return self.instances[name].up and self.instances[name].take(0, asks=True)

    def a_timer(self, name: str) -> bool:
        return self.instances[name].up and self.instances[name].tick()

    def a_proxy(self, name: str, on: bool) -> bool:
        disk = self.instances[name].disk
        if disk.proxied == on:
            return False
        disk.proxied = on
        return True

    # -- consumers -----------------------------------------------------------------------------
    def a_cnew(self, name: str, color: int | None) -> bool:
        instance = self.instances[name]
        if not (instance.up and instance.serving) or len(self.clients) > CONSUMERS_MAX:
            return False
        self.clients_made += 1
        made = f"c{self.clients_made}"
        self.clients[made] = Client(color)
        return self.a_cjoin(made, name)

    def a_cjoin(self, who: str, name: str) -> bool:
        client, instance = self.clients.get(who), self.instances[name]
        if client is None or client.at == name or not (instance.up and instance.serving):
            return False
        if client.at:
            self.hang_up(client)
        client.at = name
        client.consumer = (self.rules.session(self), who)
        wanted = "" if client.color is None else f"/color = {client.color}"
        instance.join(ConsumerSubscription(client.consumer, who, wanted, BACKLOG))
        for rec, said in client.pending:
            instance.take_ack(rec, said)
        return True

    def hang_up(self, client: Client) -> None:
        """A consumer's session ends."""
        assert client.at is not None
        self.instances[client.at].hang_up(client.consumer)
        client.at = None

    def a_cdie(self, who: str) -> bool:
        client = self.clients.pop(who, None)
        if client is None:
            return False
        if client.at:
            self.hang_up(client)
        return True

    def a_ack(self, who: str, at: int = 0) -> bool:
        client = self.clients.get(who)
        if client is None or not client.at or at >= len(client.has):
            return False
        key = client.has.pop(at)
        client.count += 1
        said = Acknowledgment(keys_of([key]))
        body = pack_acknowledgment(said)
        rec = command(publisher_id(who), client.count, Command.QUEUE_ACKNOWLEDGMENT, body)
        client.pending.append((rec, said))
        self.instances[client.at].take_ack(rec, said)
        self.done.add(key)
        return True

    def a_cancel(self, who: str, at: int = 0) -> bool:
        client = self.clients.get(who)
        if client is None or not client.at or at >= len(client.has):
            return False
        self.instances[client.at].cancel(client.consumer, client.has.pop(at))
        return True
