"""The data of each instance of a generated fabric: its resource tree with history, risks and
actions, messages and traces. Used by generated_fabric.py."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiohttp import web

if TYPE_CHECKING:
    from support.generated_fabric import GeneratedFabric

HISTORY_STEP_US = 10_000_000
HISTORY_POINTS_MAX = 720
HOSTILE = "<script>alert(1)</script>"
JSON = "application/json"
NAMES = ("billing", "gate-42", "web-7", "risk", "loader", "mirror")
SHARED_KINDS = {
    1: ("conflated", "conflation=1000ms"),
    3: ("paginated", "oof,top_n=50,skip_n=0"),
    5: ("aggregated", "projection=[/carrier,MAX(/delay) AS /worst],grouping=[/carrier]"),
}
"""Kind and options of some clients' subscriptions, by the client's number."""
TRENDS = ("growing", "steady", "shrinking")


def texts(node: Any) -> Any:
    """Returns a tree with every value as text, as the interface serves it."""
    if isinstance(node, Mapping):
        return {name: texts(each) for name, each in node.items()}
    if isinstance(node, list):
        return [texts(each) for each in node]
    if node is None:
        return ""
    if isinstance(node, bool):
        return "true" if node else "false"
    return str(node)


def at_time(time_us: int) -> str:
    """Returns a time as the interface writes it."""
    from raylay.services.admin.requests import format_time

    return format_time(time_us)


@dataclass(frozen=True)
class _View:
    """The values from which the parts of one instance's tree are made."""

    fabric: GeneratedFabric
    told: dict[str, Any]
    instance: dict[str, Any]
    links: list[dict[str, Any]]
    clients: list[str]

    @property
    def name(self) -> str:
        return str(self.instance["name"])

    @property
    def now_us(self) -> int:
        return self.fabric.now_us

    @property
    def slow(self) -> int:
        return int(self.instance["slow_clients"] or 0)

    def wave(self, key: str, size: float) -> float:
        return self.fabric.wave(key, size)


def tree_of(fabric: GeneratedFabric, name: str) -> dict[str, Any]:
    """Returns `/amps` of an instance."""
    told = fabric.fabric_json()
    instance = next(each for each in told["instances"] if each["name"] == name)
    links = [each for each in told["links"] if each["from"] == name]
    clients = list(NAMES[: fabric.clients_each])
    clients += [f"client-{at}" for at in range(len(NAMES), fabric.clients_each)]
    if fabric.hostile:
        clients.append(HOSTILE)
    view = _View(fabric, told, instance, links, clients)
    return {
        "host": _host(view),
        "instance": {
            "name": name,
            "description": f"Instance {view.name} of flights",
            "version": "0.1.0",
            "pid": 4_100 + len(name),
            "cwd": f"/var/lib/raylay/{view.name}",
            "timestamp": at_time(view.now_us),
            "uptime": "24:00:07.000000",
            "clients": _clients(view),
            "subscriptions": _subscriptions(view),
            "queues": _queues(view),
            "replication": _replication(view),
            "sow": _sow(view),
            "views": _views(view, "view"),
            "conflated_topics": _views(view, "conflated"),
            "message_types": [{"id": each, "name": each} for each in ("json", "fix", "nvfix")],
            "processors": [
                {
                    "id": "all",
                    "description": "all of the instance",
                    "messages_received": 9_000_000 + fabric.tick * 1_800,
                    "messages_received_per_sec": view.instance["in_per_sec"],
                    "matches_found": 31_000_000,
                    "matches_found_per_sec": view.instance["out_per_sec"],
                }
            ],
            "memory": {
                "rss": round(view.wave(f"{name}/rss", 412e6)),
                "vmsize": 2_140_000_000,
                "paginations": [
                    {
                        "id": "3",
                        "name": "delays",
                        "size": 412_000,
                        "raylay": {
                            "message_type": "json",
                            "filter": "",
                            "order_by": "/worst DESC",
                            "records": 1_204,
                            "windows": 2,
                            "subscriptions": 3,
                            "is_built": True,
                        },
                    }
                ],
            },
            "transaction_log": _transaction_log(view),
            "transports": _transports(view),
            "raylay": _raylay(view),
        },
        "administrator": _administrator(view),
    }


def _host(view: _View) -> Any:
    return {
        "name": f"{view.name.lower()}.example",
        "timestamp": at_time(view.now_us),
        "cpus": [
            {
                "id": "all",
                "user_percent": 31.5,
                "system_percent": 6.2,
                "idle_percent": 61.1,
                "iowait_percent": 1.2,
            }
        ],
        "disks": [
            {
                "id": "sda",
                "mount_point": "/data",
                "file_system_free_percent": view.instance["disk_free_percent"],
                "in_progress": 1,
                "read_await": 0.4,
                "write_await": 1.2,
                "read_bytes_per_sec": 2_104_112,
                "write_bytes_per_sec": 41_204_112,
            }
        ],
        "memory": {
            "total": 25_769_803_776,
            "in_use": 9_663_676_416,
            "free": 16_106_127_360,
            "swap_total": 2_147_483_648,
            "swap_free": 2_147_483_648,
        },
        "network": [
            {
                "id": "eth0",
                "bytes_in": 91_204_112_871,
                "bytes_in_per_second": 8_104_001,
                "bytes_out": 301_204_112_871,
                "bytes_out_per_second": 20_112_871,
                "errors": 0,
            }
        ],
    }


def _clients(view: _View) -> Any:
    return [
        {
            "id": str(at + 1),
            "client_name": client,
            "authenticated_id": f"user{at}",
            "client_name_hash": str(18_446_744_073_709_551_615 - at),
            "remote_address": f"10.0.{at}.17:4{at}712",
            "connection_name": "json-tcp",
            "connect_time": at_time(view.now_us - 3_600_000_000 * (at + 1)),
            "bytes_in": 10_000_000 * (at + 1),
            "bytes_out": 90_000_000 * (at + 1),
            "messages_in": 40_000 * (at + 1),
            "messages_out": 300_000 * (at + 1),
            "bytes_in_per_sec": round(view.wave(f"{view.name}/{client}/in", 40_000)),
            "bytes_out_per_sec": round(view.wave(f"{view.name}/{client}/out", 400_000)),
            "messages_in_per_sec": round(view.wave(f"{view.name}/{client}/mi", 120), 1),
            "messages_out_per_sec": round(view.wave(f"{view.name}/{client}/mo", 800), 1),
            "queued_bytes_out": 41_204_112 if view.slow and at < view.slow else 0,
            "queue_depth_out": 90_112 if view.slow and at < view.slow else 0,
            "queue_max_latency": 41 - at if view.slow and at < view.slow else 0,
            "subscription_count": 2,
            "raylay": {
                "state": "slow" if view.slow and at < view.slow else "connected",
                "seconds_behind": _behind_s(view, at),
                "trend": TRENDS[at % 3] if at < view.slow else "steady",
                "published_upto": 9_007_199_254_740_993 + at,
                "unacknowledged": 3 * at,
                "oldest_unacknowledged_ms": 12 * at,
                "offline_bytes": 1_204_112 if view.slow and at < view.slow else 0,
            },
        }
        for at, client in enumerate(view.clients)
        if (view.name, str(at + 1)) not in view.fabric.gone
    ]


def _subscriptions(view: _View) -> Any:
    return [
        {
            "id": f"{at + 1}/s{at}",
            "client_id": client,
            "sub_id": f"s{at}",
            "topic": ["orders", "flights", "delays"][at % 3],
            "message_type": "json",
            "filter": "/price > 100" if at % 2 else "",
            "bookmark": at % 2 == 0,
            "options": SHARED_KINDS.get(at, ("", ""))[1],
            "pagination_id": 3 if at == 3 else None,
            "backlog": 41_204_112 // (1 + at) if at < view.slow else 0,
            "seconds_behind": _behind_s(view, at),
            "raylay": {
                "kind": SHARED_KINDS.get(at, ("live" if at % 2 else "bookmark", ""))[0],
                "order_by": "/worst DESC" if at == 3 else "",
                "delivered": 312_000 + at,
                "transactions_behind": 90_112 // (1 + at) if at < view.slow else 0,
                "age_ms": (41 - at) * 1_000 if at < view.slow else 0,
                "trend": TRENDS[at % 3] if at < view.slow else "steady",
            },
        }
        for at, client in enumerate(view.clients)
    ]


def _behind_s(view: _View, at: int) -> int:
    """Returns how far the client of a number is behind: the first ones of an instance that has slow
    clients."""
    return 41 - 13 * at if at < view.slow else 0


def _queues(view: _View) -> Any:
    return [
        {
            "id": f"{each['name']}!{each['message_type']}",
            "topic": each["name"],
            "message_type": each["message_type"],
            "delivered": 90_000,
            "delivered_per_sec": 310.5,
            "queue_depth": own["depth"],
            "owned": own["owned"],
            "age_of_oldest_lease": own["oldest_lease_s"],
            "expired_leases": own["expired"],
            "transferred_in": own["moved_in"],
            "transferred_out": own["moved_out"],
            "proxied_transfer": False,
            "raylay": {
                "name": each["name"],
                "leases": own["leased"],
                "subscriptions": own["consumers"],
                "trend": each["trend"],
            },
        }
        for each in view.told["queues"]
        for own in each["instances"]
        if own["name"] == view.name
    ]


def _replication(view: _View) -> Any:
    return [
        {
            "id": each["destination"],
            "name": each["destination"],
            "destination_name": each["connected_to"],
            "is_connected": bool(each["connected_to"]),
            "destination_group_name": each["to_group"],
            "replication_type": each["type"],
            "seconds_behind": each["seconds_behind"],
            "messages_out_per_sec": each["rate_per_sec"],
            "bytes_out_per_sec": each["bytes_per_sec"],
            "raylay": {
                "configured_type": each["configured_type"],
                "unacked": each["unacked"],
                "is_downgraded": each["state"] == "downgraded",
                "lag": each["lag"],
                "is_safe": each["safe"],
                "why_unsafe": each["why_unsafe"],
                "age_ms": each["age_ms"],
                "why": each["why"],
            },
        }
        for each in view.links
    ]


def _sow(view: _View) -> Any:
    return [
        {
            "id": f"{each['message_type']}/{each['name']}",
            "topic": each["name"],
            "valid_keys": each["records"],
            "stored_bytes": (each["records"] or 0) * 412,
            "inserts_per_sec": 12.5,
            "updates_per_sec": 310.0,
            "deletes_per_sec": 0.2,
            "queries_per_sec": 3.1,
            "insert_count": each["records"],
            "update_count": 9_000_000,
            "delete_count": 120,
            "query_count": 4_210,
            "raylay": {
                "txid": 9_007_199_254_740_993,
                "pending_bytes": 4_096,
                "expired": 0,
                "tombstones": 12,
            },
        }
        for each in view.told["topics"]
        if each["sow"]
    ]


def _views(view: _View, kind: str) -> Any:
    definition = (
        {
            "projection": (
                "/carrier AS /carrier, COUNT(/delay) AS /flights, MAX(/delay, 'a,b') AS /worst"
            ),
            "grouping": "/carrier,/airport",
            "conflation": "inline",
        }
        if kind == "view"
        else {"interval": "5s", "filter": "", "pattern": "", "topic_format": ""}
    )
    return [
        {
            "id": f"{each['message_type']}/{each['name']}",
            "topic": each["name"],
            "message_type": each["message_type"],
            "underlying_topic": each["under"],
            **definition,
            "conflation_ratio": 2.9,
            "queue_depth": each["waiting"],
            "raylay": {
                "filter": "/status = 'landed'",
                "joins": "",
                "memory_bytes_max": 536_870_912,
                "memory_bytes": each["memory_bytes"],
                "pending": 12,
                "pending_bytes": 4_096,
                "records": each["records"],
                "taken_per_sec": each["taken_per_sec"],
                "updates_per_sec": each["updates_per_sec"],
                "subscriptions": each["subscribers"],
                "in_service": each["level"] != "act",
                "reason": each["instances"][0]["why"],
            },
        }
        for each in view.told["views"]
        if each["kind"] == kind
    ]


def _transaction_log(view: _View) -> Any:
    return {
        "min_timestamp": at_time(view.now_us - 7 * 86_400_000_000),
        "max_timestamp": at_time(view.now_us),
        "write_latency": {
            "histogram": "100=120 200=5200 400=41300 800=20100 1600=3100 more=33",
            "minimum": 84,
            "maximum": 5_910,
        },
        "write_size": {
            "histogram": "1024=900 4096=20400 16384=38100 65536=9900 262144=960",
            "minimum": 212,
            "maximum": 241_004,
        },
        "journals": [
            {
                "id": str(1_000_000 * at + 1),
                "file_name": f"journal/{at:020}.log",
                "min_timestamp": at_time(view.now_us - (8 - at) * 86_400_000_000),
                "max_timestamp": at_time(view.now_us - (7 - at) * 86_400_000_000),
                "is_archived": at < 2,
                "is_compressed": at < 4,
                "raylay": {
                    "first_txid": 1_000_000 * at + 1,
                    "last_txid": 1_000_000 * (at + 1),
                    "bytes": 1_073_741_824 // (1 + (at < 4)),
                    "records": 1_000_000,
                    "state": "compressed" if at < 4 else "full" if at < 6 else "active",
                },
            }
            for at in range(7)
        ],
        "raylay": {
            "first_txid": 1,
            "committed_txid": 6_412_007,
            "messages": 6_412_006,
            "commits_per_sec": round(view.wave(f"{view.name}/commits", 190), 1),
            "full_in_s": 86_400 * 12,
        },
    }


def _transports(view: _View) -> Any:
    return [
        {
            "id": transport,
            "name": transport,
            "type": "tcp",
            "is_enabled": (view.name, transport) not in view.fabric.disabled,
            "message_type": "json",
            "raylay": {
                "address": f"127.0.0.1:{9007 + at}",
                "connections": 41 * (1 - at),
                "connections_max": 1_000,
            },
        }
        for at, transport in enumerate(("json-tcp", "replication"))
    ]


def _raylay(view: _View) -> Any:
    return {
        "group": view.instance["group"],
        "state": view.instance["state"],
        "phase": "serving",
        "incarnation": view.instance["incarnation"],
        "reason": "",
        "commits": 812_000,
        "commit_ms_p50": 0.9,
        "commit_ms_p99": 4.1,
        "loop_delay_ms_p99": 2.2,
        "ack_ms_p50": view.instance["ack_ms_p50"],
        "ack_ms_p99": view.instance["ack_ms_p99"],
        "in_per_sec": view.instance["in_per_sec"],
        "out_per_sec": view.instance["out_per_sec"],
        "pending": view.instance["unacknowledged"],
        "persisted_per_sec": view.instance["acks_per_sec"],
        "disk_full_in_s": 86_400 * 12,
        "min_sync_destinations": 1,
        "conflated_subscriptions": {
            "subscriptions": 1,
            "definitions": 1,
            "pending": 12,
            "pending_bytes": 4_096,
            "given_per_sec": 40.5,
            "conflated_per_sec": 810.0,
        },
        "aggregations": [
            {
                "id": "0a1b2c3d4e5f",
                "topic": "flights",
                "message_type": "json",
                "filter": "/status = 'landed'",
                "projection": "/carrier, MAX(/delay) AS /worst",
                "grouping": "/carrier",
                "users": 2,
                "is_built": False,
                "records": 31,
                "memory_bytes": 204_000,
                "updates_per_sec": 12.0,
            }
        ],
        "topics": [
            {
                "id": f"{each['name']}!{each['message_type']}",
                "topic": each["name"],
                "message_type": each["message_type"],
                "messages_per_sec": round(view.wave(f"{view.name}/{each['name']}", 90), 1),
            }
            for each in view.told["topics"]
        ],
        "config": {
            "name": view.name,
            "group": view.instance["group"],
            "journal": {"directory": f"/var/lib/raylay/{view.name}", "segment_bytes": 1 << 30},
            "replication": {"min_sync_destinations": 1, "downgrade_after_s": 3},
            "clients": {"authentication": "password-file"},
        },
        "pools": [
            {
                "id": "all",
                "bytes": 82_408_224,
                "bytes_max": 268_435_456,
                "offline_bytes": 1_204_112,
                "offline_bytes_max": 1_073_741_824,
                "clients": view.slow,
            }
        ],
    }


def _administrator(view: _View) -> Any:
    return {
        "replication": [
            {"id": each["destination"], "downgrade": True, "upgrade": True, "reconnect": True}
            for each in view.links
        ],
        "transports": [{"id": "json-tcp", "enable": True, "disable": True}],
        "queues": [
            {
                "id": f"{each['name']}!{each['message_type']}",
                "enable_proxied_transfer": True,
                "disable_proxied_transfer": True,
            }
            for each in view.told["queues"]
        ],
        "clients": [{"id": str(at + 1), "disconnect": True} for at in range(len(view.clients))],
        "sow": [
            {"id": f"{each['message_type']}/{each['name']}", "compact": True}
            for each in view.told["topics"]
            if each["sow"]
        ],
        "transaction_log": {
            "journals": [
                {"id": str(1_000_000 * at + 1), "compress": True, "archive": True, "remove": True}
                for at in range(6)
            ]
        },
        "authorization": {"entitlement": {"reset": True}},
        "diagnostics": {"dump": True},
        "instance": {"admit": True},
    }


def step_into(node: Any, step: str) -> Any:
    """Returns what a name leads to.

    Raises:
        HTTPNotFound: it leads nowhere.
    """
    if isinstance(node, list):
        found = [each for each in node if each.get("id") == step]
        if found:
            return found[0]
    elif isinstance(node, Mapping) and step in node:
        return node[step]
    raise web.HTTPNotFound(reason=f"there is no {step[:100]!r} here")


def pruned(node: Any, steps: list[str]) -> Any:
    """Returns a tree without what is beside a path."""
    if not steps:
        return node
    below = pruned(step_into(node, steps[0]), steps[1:])
    return (
        [below]
        if isinstance(node, list)
        else {steps[0]: below, **({"id": node["id"]} if "id" in node and steps[0] != "id" else {})}
    )


async def answer_peer(
    request: web.Request, fabric: GeneratedFabric, name: str
) -> web.StreamResponse:
    """Answers `/raylay/peer/NAME/REST`."""
    rest = request.match_info["rest"]
    if rest.startswith("raylay/risk"):
        return web.json_response(risk(fabric, name, request.query.get("path", "")))
    if rest == "raylay/events.json":
        limit = int(request.query.get("limit", 200))
        return web.json_response({"events": fabric.instances[name].events[-limit:]})
    if rest.startswith("raylay/"):
        found = OWN.get(rest.removeprefix("raylay/").split("/")[0])
        if found is None:
            raise web.HTTPNotFound(reason=f"{name} has nothing at {rest[:100]}")
        answered: web.StreamResponse = await found(request, fabric)
        return answered
    raw = request.raw_path.split("/raylay/peer/", 1)[1].split("/", 1)[1].partition("?")[0]
    path, _, form = raw.rpartition(".") if "." in raw.rpartition("/")[2] else (raw, "", "json")
    steps = [unquote(each) for each in path.split("/") if each]
    if steps[:1] != ["amps"]:
        raise web.HTTPNotFound(reason=f"{name} has nothing at {raw[:100]}")
    if request.method == "POST":
        return await act(request, fabric, name, steps[2:])
    if steps[1:] == ["administrator", *CHECK]:
        allowed = request.query.get("path", "") not in fabric.denied
        return web.Response(text=json.dumps(allowed), content_type=JSON)
    tree = tree_of(fabric, name)
    if "t0" in request.query or "t1" in request.query or form == "csv":
        node: Any = tree
        for step in steps[1:]:
            node = step_into(node, step)
        return history(request, fabric, f"{name}/{path}", node, form)
    return web.json_response({"amps": texts(pruned(tree, steps[1:]))})


CHECK = ("authorization", "entitlement", "transports", "amps-admin", "check")


async def act(
    request: web.Request, fabric: GeneratedFabric, name: str, steps: list[str]
) -> web.Response:
    """Performs an action, as far as the generated fabric can show it."""
    if request.headers.get("X-Raylay") != "1":
        raise web.HTTPForbidden(reason="an action needs the header X-Raylay: 1")
    path = "/".join(steps)
    if f"/amps/administrator/{path}" in fabric.denied:
        raise web.HTTPForbidden(reason=f"{fabric.user} may not perform {path}")
    fabric.performed.append((name, path, await request.json() if request.can_read_body else None))
    if steps[0] == "replication" and steps[2] in ("downgrade", "upgrade"):
        link = f"{name}~{steps[1]}"
        if link not in fabric.links:
            raise web.HTTPBadRequest(reason=f"{name} has no Destination {steps[1]!r}")
        getattr(fabric, steps[2])(link)
    else:
        fabric.note(name, "action", f"{path} by {fabric.user}")
        if steps[0] == "clients":
            fabric.gone.add((name, steps[1]))
        elif steps[-1] == "disable":
            fabric.disabled.add((name, steps[1]))
        elif steps[-1] == "enable":
            fabric.disabled.discard((name, steps[1]))
    return web.json_response({"done": steps[-1], "result": None})


def risk(fabric: GeneratedFabric, name: str, path: str) -> dict[str, Any]:
    """Returns what an action risks, in numbers of now."""
    steps = [unquote(each) for each in path.split("/")]
    verb, of = steps[-1], steps[-2] if len(steps) > 3 else ""
    link = fabric.links.get(f"{name}~{of}")
    owes = 0 if link is None else link.owes
    texts_of = {
        "downgrade": [
            f"Acknowledgments at {name} stop waiting for {of}.",
            f"{owes:,} messages that {of} lacks count as acknowledged now; if {name}'s disk dies "
            "they are lost.",
            f"Clients may not fail over to {of}.",
        ],
        "upgrade": [f"Acknowledgments at {name} wait for {of} again: it owes {owes:,}, about 2 s."],
    }
    allowed = f"/{path.lstrip('/')}" not in fabric.denied
    return {
        "path": path,
        "verb": verb,
        "name": of,
        "risk": texts_of.get(verb, ["Slower meanwhile. Nothing is lost."]),
        "typed": of if verb == "remove" else "",
        "allowed": allowed,
        "why_not": "" if allowed else f"{fabric.user} lacks /{path}",
        "curl": f"curl -X POST -H 'X-Raylay: 1' http://{fabric.instances[name].address}/{path}",
        "raylay": f"raylay {verb} {name} {of}",
        "effect": {
            "path": f"amps/instance/replication/{of}/raylay/is_downgraded",
            "value": "true" if verb == "downgrade" else "false",
        }
        if verb in ("downgrade", "upgrade")
        else None,
        "takes": "about 2 s",
        "sampled_us": fabric.now_us,
    }


def history(
    request: web.Request, fabric: GeneratedFabric, key: str, node: Any, form: str
) -> web.Response:
    """Returns the samples of a leaf, with a gap of a tenth of the range."""
    from raylay.services.admin.requests import read_time

    end = request.query.get("t1")
    begin = request.query.get("t0")
    last_us = read_time(end, "t1") if end else fabric.now_us
    first_us = read_time(begin, "t0") if begin else last_us - 3_600_000_000
    span = max(1, last_us - first_us)
    step = max(HISTORY_STEP_US, span // HISTORY_POINTS_MAX)
    try:
        size = float(node)
    except (TypeError, ValueError):
        size = 1.0
    samples = [
        (at, size * (1 + 0.3 * math.sin(at / 6e8 + len(key)) + 0.05 * math.sin(at / 3e7)))
        for at in range(first_us, min(last_us, fabric.now_us) + 1, step)
        if not 0.55 < (at - first_us) / span < 0.62
    ]
    if form == "csv":
        lines = [f"{at_time(at)},{value:.3f}\r\n" for at, value in samples]
        return web.Response(text="".join(lines), content_type="text/csv")
    rows = [{"id": str(at), "timestamp": str(at), "value": f"{value:.3f}"} for at, value in samples]
    return web.json_response({"amps": {"history": rows}})


# -- messages, traces, check, drills ---------------------------------------------------------
def row_of(fabric: GeneratedFabric, at: int, topic: str) -> dict[str, Any]:
    """Returns a message of the generated journal."""
    body = {
        "id": 9_007_199_254_740_993 + at,
        "topic": topic,
        "price": 100 + at % 17,
        "passenger": HOSTILE if fabric.hostile and at % 5 == 0 else f"passenger {at}",
        "legs": [{"from": "JFK", "to": "LHR"}, {"from": "LHR", "to": "HND"}],
    }
    text = json.dumps(body)
    return {
        "bookmark": f"{1_000 + at % 3}|{at + 1}|",
        "txid": str(6_000_000 + at),
        "topic": topic,
        "message_type": "json",
        "publisher": "loader",
        "sequence": str(at + 1),
        "timestamp_us": fabric.now_us - (500 - at) * 1_000_000,
        "size": len(text),
        "headers": {"correlation_id": f"c-{at}", "expiration": "60"},
        "body": text,
        "is_text": True,
        "is_cut": False,
        "sow_key": str(at % 97),
    }


def view_row(fabric: GeneratedFabric, at: int, topic: str) -> dict[str, Any]:
    """Returns a record of a generated view. One of its fields changes each second."""
    body = {
        "carrier": HOSTILE if fabric.hostile and at == 2 else f"C{at % 7}",
        "airport": ["JFK", "LHR", "HND"][at % 3],
        "flights": 9_007_199_254_740_993 + at,
        "worst": 40 + at + (fabric.tick if at == 0 else 0),
        "more": {"gates": ["A1", "B2"]},
    }
    row = row_of(fabric, at, topic)
    return {**row, "body": json.dumps(body), "sow_key": f"{at:04x}"}


async def messages(request: web.Request, fabric: GeneratedFabric) -> web.StreamResponse:
    """Streams `/raylay/messages`."""
    query = request.query
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)

    async def say(told: Any) -> None:
        await response.write(json.dumps(told).encode() + b"\n")

    topic, limit = query.get("topic", "orders"), min(int(query.get("limit", 100)), 10_000)
    if topic.startswith("delays") and query.get("source") == "sow":
        if "no filter" in query.get("filter", ""):
            await say({"error": "the filter 'no filter' is none: expected an operator"})
            return response
        try:
            for look in itertools.count(1):
                for at in range(3):
                    await say({"row": view_row(fabric, at, topic)})
                await say({"look": look})
                await asyncio.sleep(0.2)
        except (ConnectionError, asyncio.CancelledError):
            pass
        return response
    try:
        for at in range(limit):
            await say({"row": row_of(fabric, at, topic)})
            if at % 50 == 49:
                await say(
                    {
                        "progress": {
                            "found": at + 1,
                            "read": at * 40,
                            "dropped": 0,
                            "at_us": fabric.now_us - (500 - at) * 1_000_000,
                        }
                    }
                )
        at = limit
        while query.get("follow") == "1":
            await asyncio.sleep(0.2)
            at += 1
            await say({"row": row_of(fabric, at, topic)})
        await say(
            {"progress": {"found": limit, "read": limit * 40, "dropped": 0, "at_us": fabric.now_us}}
        )
        await say({"end": {"why": "limit"}})
    except (ConnectionError, asyncio.CancelledError):
        pass
    return response


async def trace(request: web.Request, fabric: GeneratedFabric) -> web.Response:
    """Answers `/raylay/trace/BOOKMARK`."""
    bookmark = unquote(request.path.rsplit("/trace/", 1)[1])
    names = list(fabric.instances)[:3]
    begin = fabric.now_us
    lanes = []
    for at, name in enumerate(names):
        start = begin + 1_900 * at
        spans = [
            {
                "id": f"{at}a",
                "parent": None if at == 0 else "0b",
                "name": "publish" if at == 0 else "apply",
                "begin_us": start,
                "end_us": start + 1_200,
                "attributes": {"txid": "6000041"},
            },
            {
                "id": f"{at}b",
                "parent": f"{at}a",
                "name": "commit",
                "begin_us": start + 1_200,
                "end_us": start + 3_400 + 2_000 * (at == 1),
                "attributes": {"records": 12},
            },
        ]
        lanes.append({"instance": name, "process": "instance", "spans": spans})
    return web.json_response(
        {
            "bookmark": bookmark,
            "lanes": lanes,
            "links": [{"from": "0b", "to": f"{at}a"} for at in range(1, len(names))],
            "persisted_ms": 8.0,
            "longest": "1b",
            "skew": [{"lane": 1, "behind_ms": 1.3}],
            "without_spans": list(fabric.instances)[3:4],
            "stored": [
                {"instance": name, "txid": "6000041", "time_us": begin + 1_900 * at}
                for at, name in enumerate(names)
            ],
        }
    )


async def body_of(_: web.Request, fabric: GeneratedFabric) -> web.Response:
    return web.Response(
        body=json.dumps(row_of(fabric, 41, "orders")).encode(),
        headers={"Content-Disposition": "attachment", "Content-Security-Policy": "sandbox"},
    )


async def publish(request: web.Request, fabric: GeneratedFabric) -> web.Response:
    told = await request.json()
    if request.headers.get("X-Raylay") != "1":
        raise web.HTTPForbidden(reason="an action needs the header X-Raylay: 1")
    fabric.performed.append(("", "publish", told))
    seed = base64.b32encode(str(told.get("topic", "")).encode()).decode()[:4]
    return web.json_response({"bookmark": f"1007|{len(seed)}|"})


async def check(_: web.Request, fabric: GeneratedFabric) -> web.Response:
    findings = [
        {
            "level": "attention",
            "text": "Messages of Tokyo reach London by one path only",
            "where": "Tokyo-1 → London",
            "what_to_do": "Add a destination London to Tokyo-2.",
        },
        {
            "level": "info",
            "text": "London-2 has no sync destination outside its region",
            "where": "London-2",
            "what_to_do": "Nothing, if losing a region may lose messages.",
        },
    ]
    shown = findings if fabric.scenario == "mixed" else []
    return web.json_response({"findings": shown, "checked_us": fabric.now_us})


async def drills(request: web.Request, fabric: GeneratedFabric) -> web.Response:
    if "/drills/" in request.path:
        return web.json_response({"id": request.path.rsplit("/", 1)[1], "verdict": "held"})
    reports = [
        {
            "id": f"2026112{at}-041207",
            "name": name,
            "verdict": verdict,
            "time_us": fabric.now_us - at * 86_400_000_000,
            "href": f"raylay/drills/2026112{at}-041207",
        }
        for at, (name, verdict) in enumerate(
            (("kill_instance", "held"), ("partition", "held"), ("slow_disk", "broken"))
        )
    ]
    return web.json_response({"reports": reports if fabric.scenario == "mixed" else []})


OWN = {
    "messages": messages,
    "message": body_of,
    "trace": trace,
    "publish": publish,
    "check.json": check,
    "drills.json": drills,
    "drills": drills,
}


def add_routes(router: web.UrlDispatcher, fabric: GeneratedFabric) -> None:
    """Adds what the serving instance answers itself."""
    for name, handler in OWN.items():

        async def answer(request: web.Request, handler: Any = handler) -> web.StreamResponse:
            answered: web.StreamResponse = await handler(request, fabric)
            return answered

        router.add_route("*", f"/raylay/{name}", answer)
        if "." not in name:
            router.add_route("*", f"/raylay/{name}/{{rest:.+}}", answer)
