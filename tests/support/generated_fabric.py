"""A generated fabric that speaks the console's HTTP interface, for tests and by hand:

    PYTHONPATH=tests .venv/bin/python -m support.generated_fabric --instances 6 --port 8800

What it tells depends on the seed, the number of seconds it has run, and what a test has done to it;
never on the clock. The static files come from the product's own routes, with the product's headers.
By hand its time passes, and `POST /generated/kill/London-1` (revive, silence, slow, lie, downgrade,
upgrade, heal) changes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from raylay.services.processes.admin.console_routes import ConsoleFiles
from raylay.services.processes.admin.guard import HEADERS
from support import generated_amps

REGIONS = (
    *("NewYork", "London", "Tokyo", "Frankfurt", "Singapore", "Sydney", "SaoPaulo", "Mumbai"),
    *("Chicago", "Dublin"),
)
SIZES = {2: (2, 1), 6: (3, 2), 30: (6, 5), 100: (10, 10)}
"""Regions, and instances of each, by the number of instances."""
HOSTILE = "<script>alert(1)</script>"
BEGUN_US = 1_795_752_727_000_000  # 2026-11-27 04:12:07 UTC
SECOND_US = 1_000_000
VERSION = "0.1.0"
SLOW_S = 30.0
KINDS = ("publishers_wait", "data_at_risk", "instance", "link", "slow_client", "unknown")
LEVELS = ("ready", "working", "unknown", "attention", "act")


@dataclass
class GeneratedInstance:
    """The state of one instance. `missing` as in fabric.json; empty: it answers."""

    name: str
    group: str
    address: str
    missing: str = ""
    answered_us: int = BEGUN_US
    state: str = "ready"
    lies: bool = False
    is_slow: bool = False
    dead_since_us: int | None = None
    slow_clients: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class GeneratedLink:
    """The state of one link."""

    source: str
    destination: str
    to: tuple[str, ...]
    configured_sync: bool
    state: str
    since_us: int | None = None
    by_hand: bool = False
    owes: int = 0
    trend: str | None = "steady"
    why: str = ""

    @property
    def id(self) -> str:
        return f"{self.source}~{self.destination}"


class GeneratedFabric:
    """A fabric of 2, 6, 30 or 100 instances.

    Args:
        size: the number of instances.
        seed: decides rates, lags and which links have problems.
        scenario: `mixed`: some of everything that can be wrong; `healthy`: nothing is.
        hostile: whether an instance, a queue, a topic and a client are called like a script.
    """

    def __init__(
        self, size: int = 6, seed: int = 1, scenario: str = "mixed", hostile: bool = False
    ) -> None:
        self.size, self.seed = size, seed
        self.tick = 0
        self.scenario = scenario
        self.hostile = hostile
        self.user, self.is_guarded = "anna", True
        self.denied: set[str] = set()
        self.clients_each = 6
        """Number of clients of each instance."""
        self.gone: set[tuple[str, str]] = set()
        """Instance and number of each client that was disconnected."""
        self.disabled: set[tuple[str, str]] = set()
        """Instance and name of each transport that was disabled."""
        self.performed: list[tuple[str, str, Any]] = []
        self.listeners: list[asyncio.Queue[dict[str, Any]]] = []
        self._number = 100
        regions, each = SIZES[size]
        names = list(REGIONS[:regions])
        self.regions = {region: [f"{region}-{at + 1}" for at in range(each)] for region in names}
        if hostile:
            last = names[-1]
            self.regions[last] = [*self.regions[last][:-1], HOSTILE]
        self.instances = {
            name: GeneratedInstance(name, group, f"127.0.0.1:{9000 + at}")
            for at, (group, name) in enumerate(
                (group, name) for group, members in self.regions.items() for name in members
            )
        }
        self.links = {link.id: link for link in self._make_links()}
        self._history()
        if scenario == "mixed":
            self._break_some()

    # -- how it is made ----------------------------------------------------------------------
    def _make_links(self) -> list[GeneratedLink]:
        made = []
        names = list(self.regions)
        for at, (region, members) in enumerate(self.regions.items()):
            for place, name in enumerate(members):
                if len(members) > 1:
                    peer = members[(place + 1) % len(members)]
                    made.append(GeneratedLink(name, peer, (peer,), True, "sync"))
                for other in names:
                    if other != region:
                        is_next = names[(at + 1) % len(names)] == other
                        to = tuple(self.regions[other][:3])
                        state = "sync" if is_next else "async"
                        made.append(GeneratedLink(name, other, to, is_next, state))
        return made

    def _history(self) -> None:
        for at, name in enumerate(self.instances):
            self.note(name, "state", "ready: accepts publishes", "info", -4_000 + at)

    def _break_some(self) -> None:
        chance = random.Random(self.seed)
        links = list(self.links.values())
        first = links[1] if len(links) > 2 else links[0]
        self.downgrade(first.id, owes=1_204, seconds_ago=130, by_hand=False)
        if self.size == 2:
            return
        catching = next(each for each in links if each.source.startswith("Tokyo"))
        catching.state, catching.owes, catching.trend = "catching_up", 48_310, "shrinking"
        catching.since_us = self.now_us - 42 * SECOND_US
        refused = links[-1]
        refused.state, refused.since_us, refused.owes = "refused", self.now_us - 900_000_000, 90
        refused.trend = "growing"
        refused.why = (
            "validation failed: its topic orders has another message type (json, here fix)"
        )
        self.note(refused.source, "link_refused", refused.why, "attention", -900)
        members = list(self.instances.values())
        self.silence(members[3 % len(members)].name, 38)
        members[-2].slow_clients = 3
        self.note(members[-2].name, "slow_client", "billing is 41 s behind", "attention", -64)
        if self.size > 6:
            self.kill(members[7].name, 600)
            members[11].state = "recovering"
            for link in chance.sample(links, self.size // 4):
                link.owes, link.trend = chance.randrange(1, 90_000), "growing"

    # -- what a test does to it --------------------------------------------------------------
    @property
    def now_us(self) -> int:
        return BEGUN_US + self.tick * SECOND_US

    def advance(self, seconds: int = 1) -> None:
        self.tick += seconds

    def note(
        self, instance: str, event: str, text: str, level: str = "info", seconds: int = 0
    ) -> None:
        self._number += 1
        told = {
            "instance": instance,
            "number": self._number,
            "time_us": self.now_us + seconds * SECOND_US + (self._number * 7_919) % 1_000_000,
            "event": event,
            "text": text,
            "level": level,
            "details": {},
        }
        self.instances[instance].events.append(told)
        for listener in self.listeners:
            listener.put_nowait(told)

    def kill(self, name: str, seconds_ago: int = 11) -> None:
        """Its process ends: it answers nobody, and its peers are disconnected from it."""
        instance = self.instances[name]
        instance.missing, instance.dead_since_us = "silent", self.now_us - seconds_ago * SECOND_US
        instance.answered_us = instance.dead_since_us
        for link in self.links.values():
            if link.source != name and link.to[0] == name:
                alive = [each for each in link.to if not self.instances[each].dead_since_us]
                if alive:
                    link.to = (*alive, *(each for each in link.to if each not in alive))
                else:
                    link.state, link.since_us = "disconnected", instance.dead_since_us
                    link.why, link.trend = "connection refused", "growing"
                    link.owes = max(link.owes, 12)
                    self.note(
                        link.source, "link_lost", f"{link.destination}: connection refused",
                        "attention", -seconds_ago,
                    )  # fmt: skip

    def revive(self, name: str) -> None:
        instance = self.instances[name]
        instance.missing, instance.dead_since_us, instance.lies = "", None, False
        instance.is_slow = False
        self.note(name, "state", "ready: accepts publishes")
        for link in self.links.values():
            if link.state == "disconnected" and link.to[0] == name:
                self.upgrade(link.id)

    def silence(self, name: str, seconds_ago: int = 11) -> None:
        """Its interface stops answering, while its links go on."""
        instance = self.instances[name]
        instance.missing = "silent"
        instance.answered_us = self.now_us - seconds_ago * SECOND_US

    def slow(self, name: str) -> None:
        """Its interface takes half a minute for each answer."""
        self.instances[name].is_slow = True
        self.silence(name, 4)

    def lie(self, name: str) -> None:
        """Makes an instance report impossible values."""
        self.instances[name].lies = True

    def downgrade(
        self, link_id: str, owes: int = 12, seconds_ago: int = 0, by_hand: bool = True
    ) -> None:
        link = self.links[link_id]
        link.state, link.by_hand, link.owes = "downgraded", by_hand, owes
        link.since_us, link.trend = self.now_us - seconds_ago * SECOND_US, "growing"
        link.why = "" if by_hand else "no acknowledgment for 3 s"
        text = (
            f"{link.destination} by {self.user}" if by_hand else f"{link.destination}: {link.why}"
        )
        self.note(link.source, "downgraded", text, "attention", -seconds_ago)

    def upgrade(self, link_id: str) -> None:
        link = self.links[link_id]
        link.state = "sync" if link.configured_sync else "async"
        link.since_us, link.owes, link.trend, link.why = None, 0, "steady", ""
        self.note(link.source, "upgraded", link.destination)

    def heal(self) -> None:
        """Nothing is wrong any more."""
        for instance in self.instances.values():
            instance.missing, instance.state, instance.lies = "", "ready", False
            instance.is_slow, instance.dead_since_us, instance.slow_clients = False, None, 0
        for link in self.links.values():
            link.state = "sync" if link.configured_sync else "async"
            link.since_us, link.owes, link.trend, link.why = None, 0, "steady", ""

    # -- numbers -----------------------------------------------------------------------------
    def wave(self, key: str, size: float) -> float:
        """Returns a rate that swings around `size`, by the seed, the key and the time."""
        chance = random.Random(f"{self.seed}/{key}")
        base, phase = chance.uniform(0.4, 1.6), chance.uniform(0, math.tau)
        return size * base * (1 + 0.15 * math.sin(self.tick / 7 + phase))

    def is_away(self, name: str) -> bool:
        instance = self.instances[name]
        return bool(instance.missing) and self.now_us - instance.answered_us >= 10 * SECOND_US

    # -- fabric.json -------------------------------------------------------------------------
    def fabric_json(self) -> dict[str, Any]:
        for instance in self.instances.values():
            if not instance.missing:
                instance.answered_us = self.now_us - 200_000
        instances = [self._instance(each) for each in self.instances.values()]
        links = [self._link(each) for each in self.links.values()]
        queues, topics = self._queues(), self._topics()
        problems = self._problems(instances, links)
        known = [each for each in instances if each["in_per_sec"] is not None]
        names = ("in_per_sec", "out_per_sec", "acks_per_sec", "clients", "subscriptions")
        sums = {
            name: sum(each[name] for each in known if isinstance(each[name], int | float))
            for name in names
        }
        return {
            "fabric": "flights",
            "served_by": next(iter(self.instances)),
            "time_us": self.now_us,
            "viewer": {"user": self.user, "guarded": self.is_guarded},
            "verdict": self._verdict(problems, links),
            "problems": problems,
            "regions": [
                {"name": name, "instances": members} for name, members in self.regions.items()
            ],
            "instances": instances,
            "links": links,
            "queues": queues,
            "topics": topics,
            "views": self._views(),
            "actions": [
                {
                    "instance": name,
                    "name": action,
                    "level": level,
                    "runs": runs,
                    "failures": failures,
                    "dropped": 0,
                    "waiting": 0,
                    "last_error": error,
                    "last_run_us": ended_us,
                }
                for name in sorted(self.instances)[:1]
                for action, level, runs, failures, error, ended_us in (
                    ("rotate logs", "ready", 4, 0, "", self.now_us - 60 * SECOND_US),
                    (
                        "copy to archive",
                        "attention",
                        9,
                        2,
                        "step 2 (compress-files): disk full",
                        self.now_us - 5 * SECOND_US,
                    ),
                    ("on a signal", "ready", 0, 0, "", 0),
                )
            ],
            "totals": {**sums, "answered": len(known), "instances": len(instances)},
        }

    def _verdict(self, problems: list[dict[str, Any]], links: list[Any]) -> dict[str, str]:
        level = max((each["level"] for each in problems), key=LEVELS.index, default="ready")
        if not problems:
            return {
                "level": "ready",
                "text": "All is well: every acknowledgment is as safe as configured",
            }
        acute = sum(each["level"] == "act" for each in problems)
        if acute:
            words = "1 thing needs you now" if acute == 1 else f"{acute} things need you now"
            return {"level": level, "text": words}
        reduced = sum(each["state"] == "downgraded" for each in links)
        if reduced:
            words = "on 1 link" if reduced == 1 else f"on {reduced} links"
            return {
                "level": level,
                "text": f"Acknowledgments are less safe than configured {words}",
            }
        return {"level": level, "text": "Nothing waits, but some things need a look"}

    def _instance(self, each: GeneratedInstance) -> dict[str, Any]:
        away = self.is_away(each.name)
        told: dict[str, Any] = {
            "name": each.name,
            "group": each.group,
            "admin_address": each.address,
            "level": "unknown" if away else "working" if each.state != "ready" else "ready",
            "state": "unknown" if away else each.state,
            "why": ""
            if not away
            else f"{each.address}: the connection was refused"
            if each.dead_since_us
            else f"{each.address} has not answered",
            "answered_us": each.answered_us,
            "age_s": round((self.now_us - each.answered_us) / SECOND_US, 1),
            "missing": each.missing,
            "seen_by_others": [],
            "version": None if away else VERSION,
            "uptime_s": None if away else 86_400 + self.tick,
            "incarnation": None if away else 4,
            "slow_clients": None if away else each.slow_clients,
        }
        rates = {"in_per_sec": 1_800, "out_per_sec": 5_200, "acks_per_sec": 1_800}
        for name, size in rates.items():
            told[name] = None if away else round(self.wave(f"{each.name}/{name}", size), 1)
        for name, ms in (("ack_ms_p50", 3.1), ("ack_ms_p99", 11.0)):
            told[name] = None if away else round(self.wave(f"{each.name}/{name}", ms), 2)
        for name, number in (("clients", 24), ("subscriptions", 60), ("unacknowledged", 40)):
            told[name] = None if away else round(self.wave(f"{each.name}/{name}", number))
        told["oldest_unacknowledged_ms"] = (
            None if away else round(self.wave(f"{each.name}/oldest", 12))
        )
        told["disk_free_percent"] = (
            None if away else round(45 + 10 * math.sin(hash_of(each.name)), 1)
        )
        unsafe = [
            link for link in self.links.values()
            if each.name in link.to and link.configured_sync and link.state not in ("sync", "async")
        ]  # fmt: skip
        told["may_fail_over"] = None if away else not unsafe
        told["why_not"] = (
            ""
            if not unsafe
            else f"{unsafe[0].source} has {unsafe[0].owes:,} acknowledged messages that it lacks"
        )
        if unsafe and told["level"] == "ready":
            told["level"] = "attention"
        if each.slow_clients and told["level"] == "ready":
            told["level"] = "attention"
        if away:
            told["seen_by_others"] = [
                {
                    "by": link.source,
                    "text": "disconnected since 04:11:59" if each.dead_since_us else "connected",
                    "since_us": each.dead_since_us,
                }
                for link in self.links.values()
                if each.name in link.to and not self.is_away(link.source)
            ][:3]
        if each.lies:
            told |= {
                "state": "\u202eexcellent", "level": "excellent", "in_per_sec": -5,
                "uptime_s": 1e300, "incarnation": "9" * 40, "clients": "many",
                "version": "9" * 200, "missing": "wrong", "why": "its numbers cannot be",
            }  # fmt: skip
        return told

    def _link(self, each: GeneratedLink) -> dict[str, Any]:
        away = self.is_away(each.source)
        state = "unknown" if away else each.state
        level = {
            "sync": "ready", "async": "ready", "downgraded": "attention",
            "catching_up": "working", "refused": "attention", "unknown": "unknown",
            "disconnected": "act" if each.configured_sync else "attention",
        }[state]  # fmt: skip
        moving = state in ("sync", "async", "downgraded", "catching_up")
        sign = {"growing": 1, "shrinking": -1}.get(each.trend or "", 0)
        owes = max(0, each.owes + sign * self.tick * 40)
        behind = round(owes / 320, 1) if owes else 0.0 if each.configured_sync else 0.1
        rate = round(self.wave(each.id, 900), 1) if moving else 0
        since_s = 0 if each.since_us is None else (self.now_us - each.since_us) // SECOND_US
        text = {
            "sync": "", "async": "", "downgraded": f"downgraded {words(since_s)}",
            "catching_up": f"owes {owes:,}, {words(owes // 1_200 + 1)} left",
            "disconnected": f"disconnected {words(since_s)}: {each.why}",
            "refused": f"refused {words(since_s)}", "unknown": "",
        }[state]  # fmt: skip
        source = self.instances[each.source]
        if state == "unknown":
            text = f"last answer {words((self.now_us - source.answered_us) // SECOND_US)} ago"
        safe = state in ("sync",) or (state == "async" and not owes)
        target = each.to[0]
        told = {
            "id": each.id,
            "from": each.source,
            "from_group": self.instances[each.source].group,
            "destination": each.destination,
            "to": list(each.to),
            "to_group": self.instances[target].group,
            "connected_to": "" if state in ("disconnected", "refused", "unknown") else target,
            "configured_type": "sync" if each.configured_sync else "async",
            "type": "sync"
            if each.configured_sync and state not in ("downgraded", "catching_up")
            else "async",
            "state": state,
            "level": level,
            "since_us": each.since_us,
            "text": text,
            "rate_per_sec": rate,
            "bytes_per_sec": round(rate * 412),
            "lag": owes,
            "unacked": owes,
            "seconds_behind": behind,
            "age_ms": round(behind * 1_000) + 4,
            "trend": each.trend,
            "seconds_left": owes // 1_200 + 1 if state == "catching_up" else None,
            "safe": safe,
            "why_unsafe": "" if safe else f"owes {owes:,}",
            "by_hand": each.by_hand,
            "why": each.why,
            "other_end": None
            if self.is_away(target)
            else {"instance": target, "text": f"receives {rate:,.0f}/s" if moving else "no link"},
        }
        if away:
            for name in (
                *("rate_per_sec", "bytes_per_sec", "lag", "unacked", "seconds_behind", "age_ms"),
                *("trend", "safe"),
            ):
                told[name] = None
            told["why_unsafe"] = "nobody knows what it owes"
        return told

    def _queues(self) -> list[dict[str, Any]]:
        names = ["orders_to_bill", "refunds", "boarding", "audit"]
        if self.hostile:
            names.append(HOSTILE)
        found = []
        for at, name in enumerate(names):
            growing = at == 0 and self.scenario == "mixed"
            per = [
                {
                    "name": each,
                    "owned": round(self.wave(f"{name}/{each}", 120)),
                    "depth": round(self.wave(f"{name}/{each}", 150)) + growing * self.tick,
                    "leased": round(self.wave(f"{name}/{each}/l", 8)),
                    "oldest_lease_s": round(self.wave(f"{name}/{each}/o", 3), 1),
                    "expired": 0, "moved_in": 3 * at, "moved_out": 2 * at,
                    "consumers": 2,
                }
                for each in self.instances
                if not self.is_away(each)
            ]  # fmt: skip
            found.append(
                {
                    "name": name,
                    "topic": name,
                    "message_type": "json",
                    "level": "attention" if growing else "ready",
                    "trend": "growing" if growing else "steady",
                    "oldest_lease_s": max(each["oldest_lease_s"] for each in per),
                    **{
                        key: sum(each[key] for each in per)
                        for key in (
                            *("depth", "owned", "leased", "expired", "moved_in", "moved_out"),
                            "consumers",
                        )
                    },
                    "instances": per,
                }
            )
        return found

    def _topics(self) -> list[dict[str, Any]]:
        names = ["orders", "flights", "delays", "weather", "gates", "crew", "baggage", "fuel"]
        if self.hostile:
            names.append(HOSTILE)
        there = [each for each in self.instances if not self.is_away(each)]
        return [
            {
                "name": name,
                "message_type": "fix" if at == 3 else "json",
                "sow": at % 2 == 0,
                "records": 120_000 * (at + 1) if at % 2 == 0 else None,
                "in_per_sec": round(self.wave(f"topic/{name}", 900), 1),
                "publishers": 3 + at,
                "subscribers": 7 * at + 2,
                "instances": there,
            }
            for at, name in enumerate(names)
        ]

    def _views(self) -> list[dict[str, Any]]:
        names = [("delays", "view"), ("delays/named", "view"), ("delays/slow", "conflated")]
        if self.hostile:
            names.append((HOSTILE, "view"))
        there = [each for each in self.instances if not self.is_away(each)]
        mixed = self.scenario == "mixed"
        found = []
        for at, (name, kind) in enumerate(names):
            closed, growing = mixed and at == 1, mixed and at == 0
            entry: dict[str, Any] = {
                "records": 1_204 * (at + 1),
                "taken_per_sec": round(self.wave(f"view/{name}/in", 900), 1),
                "updates_per_sec": round(self.wave(f"view/{name}", 310), 1),
                "memory_bytes": 41_204_112 // (at + 1),
                "waiting": 1_204 + 40 * self.tick if growing else 0,
                "trend": "growing" if growing else "steady",
                "subscribers": 3 + at,
                "level": "act" if closed else "ready",
                "built_percent": None,
            }
            why = f"view {name} would take more than 536,870,912 bytes" if closed else ""
            found.append(
                {
                    **{"name": name, "message_type": "json", "kind": kind, **entry},
                    "under": "flights" if at == 0 else "delays, carriers" if at == 1 else "delays",
                    "instances": [{"name": each, "why": why, **entry} for each in there],
                }
            )
        return found

    def _problems(self, instances: list[Any], links: list[Any]) -> list[dict[str, Any]]:
        found = []
        for link in links:
            is_sync = link["configured_type"] == "sync"
            if link["state"] == "refused" or (is_sync and link["level"] in ("act", "attention")):
                found.append(self._link_problem(link))
        for each in instances:
            if each["missing"] == "silent" and each["state"] == "unknown":
                dead = self.instances[each["name"]].dead_since_us is not None
                found.append(
                    self._problem(
                        f"instance/{each['name']}/silent",
                        "act" if dead else "attention",
                        "instance" if dead else "unknown",
                        f"{each['name']} does not answer"
                        + (", and its peers are disconnected from it" if dead else ""),
                        each["answered_us"],
                        None,
                        f"#/instance/{each['name']}",
                        each["name"],
                        "Look whether its process runs: raylay status",
                        None,
                        "troubleshooting.md#an-instance-does-not-answer",
                    )
                )
            if each["slow_clients"]:
                found.append(
                    self._problem(
                        f"slow/{each['name']}", "attention", "slow_client",
                        f"3 clients of {each['name']} are slow; billing is 41 s behind",
                        self.now_us - 64 * SECOND_US, "growing",
                        f"#/instance/{each['name']}/clients", each["name"],
                        "See who it is, and disconnect it if it holds up others", None, None,
                    )
                )  # fmt: skip
        found.sort(
            key=lambda each: (
                -LEVELS.index(each["level"]),
                KINDS.index(each["kind"]),
                each["since_us"] or 0,
            )
        )
        return found

    def _link_problem(self, link: Mapping[str, Any]) -> dict[str, Any]:
        source, destination = link["from"], link["destination"]
        action = None
        if link["state"] == "downgraded":
            text = (
                f"Acknowledgments at {source} do not wait for {destination}, which lacks "
                f"{link['lag']:,} messages"
            )
            do = f"Upgrade it again once {destination} keeps up"
            kind = "data_at_risk"
            action = {
                "instance": source,
                "path": f"amps/administrator/replication/{destination}/upgrade",
                "label": f"Upgrade {destination}",
            }
        elif link["state"] == "refused":
            text = f"{destination} refuses the link from {source}: {link['why']}"
            do, kind = "Give both the same topic definitions, then restart the link", "link"
        else:
            text = f"Publishers at {source} wait for {destination}, which is disconnected"
            do = f"Start {destination}, or downgrade the link so that publishers go on"
            kind = "publishers_wait"
            action = {
                "instance": source,
                "path": f"amps/administrator/replication/{destination}/downgrade",
                "label": f"Downgrade {destination}",
            }
        return self._problem(
            f"link/{link['id']}/{link['state']}", link["level"], kind, text, link["since_us"],
            link["trend"], f"#/link/{link['id']}", source, do, action,
            None if action else "troubleshooting.md#a-link-is-refused",
        )  # fmt: skip

    def _problem(
        self, key: str, level: str, kind: str, text: str, since_us: int | None,
        trend: str | None, href: str, instance: str, do: str, action: Any, page: str | None,
    ) -> dict[str, Any]:  # fmt: skip
        events = [each for each in self.instances[instance].events if each["level"] != "info"]
        return {
            "id": key, "level": level, "kind": kind, "text": text, "since_us": since_us,
            "trend": trend, "href": href, "events": events[-3:],
            "do": {"text": do, "action": action, "page": page},
        }  # fmt: skip

    def events(self) -> list[dict[str, Any]]:
        """Returns the events of all instances, oldest first."""
        every = [event for each in self.instances.values() for event in each.events]
        return sorted(every, key=lambda each: (each["time_us"], each["number"]))


def hash_of(text: str) -> float:
    """Returns a number from a text that is the same in each process."""
    return random.Random(text).uniform(0, 100)


def words(seconds: float) -> str:
    """Returns a duration as the servers write it."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} m {whole % 60} s" if whole % 60 else f"{whole // 60} m"
    return f"{whole // 3_600} h {whole % 3_600 // 60} m"


class GeneratedServer:
    """Serves a generated fabric. Owner: its event loop."""

    def __init__(self, fabric: GeneratedFabric) -> None:
        self.fabric = fabric
        self.is_away = False
        """Whether each request is answered by 503, as by a proxy before an instance that ended."""
        self.asked: list[str] = []

    def build(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        ConsoleFiles(is_kept=False).add_routes(app.router)
        router = app.router
        router.add_get("/raylay/fabric.json", self._fabric)
        router.add_get("/raylay/events", self._events)
        router.add_get("/raylay/events.json", self._events_json)
        router.add_route("*", "/raylay/peer/{name}/{rest:.+}", self._peer)
        router.add_post("/generated/{act}/{name:.*}", self._act)
        generated_amps.add_routes(router, self.fabric)
        app.on_response_prepare.append(self._headers)
        return app

    async def _headers(self, _: web.Request, response: web.StreamResponse) -> None:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        if self.is_away and request.path.startswith("/raylay/"):
            return web.json_response({"error": "the instance is away"}, status=503)
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except web.HTTPException as error:
            return web.json_response({"error": error.reason}, status=error.status)

    async def _fabric(self, _: web.Request) -> web.Response:
        return web.json_response(self.fabric.fabric_json())

    async def _events_json(self, request: web.Request) -> web.Response:
        after, limit = int(request.query.get("after", 0)), int(request.query.get("limit", 200))
        found = [each for each in self.fabric.events() if each["number"] > after]
        return web.json_response({"events": found[-limit:]})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        listener: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.fabric.listeners.append(listener)
        try:
            await response.prepare(request)
            for event in self.fabric.events():
                await response.write(f"data: {json.dumps(event)}\n\n".encode())
            while True:
                event = await listener.get()
                await response.write(f"data: {json.dumps(event)}\n\n".encode())
        except (ConnectionError, asyncio.CancelledError):
            return response
        finally:
            self.fabric.listeners.remove(listener)

    async def _peer(self, request: web.Request) -> web.StreamResponse:
        name = unquote(request.match_info["name"])
        instance = self.fabric.instances.get(name)
        if instance is None:
            raise web.HTTPNotFound(reason=f"{name[:100]} is no peer of this fabric")
        if instance.is_slow:
            await asyncio.sleep(SLOW_S)
        if self.fabric.is_away(name):
            return web.json_response(
                {"error": f"{name} ({instance.address}) has not answered within 1 s"}, status=503
            )
        return await generated_amps.answer_peer(request, self.fabric, name)

    async def _act(self, request: web.Request) -> web.Response:
        act, name = request.match_info["act"], unquote(request.match_info["name"])
        allowed = ("kill", "revive", "silence", "slow", "lie", "downgrade", "upgrade", "heal")
        if act not in allowed:
            raise web.HTTPNotFound(reason=f"one of {', '.join(allowed)}")
        getattr(self.fabric, act)(*([name] if name else []))
        return web.json_response({"done": act})


@asynccontextmanager
async def serving(server: GeneratedServer, port: int = 0) -> AsyncIterator[int]:
    """Serves on a port of this machine, and yields the port."""
    runner = web.AppRunner(server.build(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def run(arguments: argparse.Namespace) -> None:
    fabric = GeneratedFabric(
        arguments.instances, arguments.seed, arguments.scenario, arguments.hostile
    )
    async with serving(GeneratedServer(fabric), arguments.port) as port:
        print(f"http://127.0.0.1:{port}/", flush=True)
        while True:
            await asyncio.sleep(1)
            fabric.advance()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--instances", type=int, choices=sorted(SIZES), default=6)
    parser.add_argument("--port", type=int, default=8800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", choices=("mixed", "healthy"), default="mixed")
    parser.add_argument("--hostile", action="store_true", help="with names like scripts")
    try:
        asyncio.run(run(parser.parse_args()))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
