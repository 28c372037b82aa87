"""What is read of messages, and the store of SOW topics alone: one process, no instance.

The million records are flights of 301 bytes, of which one in a hundred is of the carrier asked for.
Times are processor time of this process, so that what else runs on the machine counts for little.
"""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import orjson
from context import Bench, Figure
from memory import anonymous_mb

from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.messages.records import RecordBuilder, Run, run_of, scan
from raylay.services.messages.types.registry import message_type
from raylay.services.plugins.sow import sow_book
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import KeyRule
from raylay.services.sow.state import body_of
from raylay.storage.sow import LmdbSowStore

RECORDS = 1_000_000
A_COMMIT = 10_000
"""What is folded is committed about once a second, at 10,000 messages a second."""
A_TURN = 1_000
A_RUN = 1_000
TYPES = ("json", "msgpack", "bson", "nvfix", "xml")
TYPE_NAMES = tuple(f"types_{name}_parse" for name in (*TYPES, "json_loads", "orjson_loads"))
SOW_NAMES = (
    "sow_build",
    "sow_scan_s",
    "sow_scan_loads_s",
    "sow_scan_sqlite_s",
    "sow_get_us",
    "sow_memory_bytes",
)
PARSED_S = 0.5
FLIGHT: dict[str, Any] = {
    "year": 2013,
    "month": 1,
    "day": 1,
    "dep_time": 517,
    "sched_dep_time": 515,
    "dep_delay": 2.0,
    "arr_time": 830,
    "sched_arr_time": 819,
    "arr_delay": 11.0,
    "carrier": "UA",
    "flight": 1545,
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "air_time": 227.0,
    "distance": 1400,
    "hour": 5,
    "minute": 15,
    "time_hour": "2013-01-01T05:00:00Z",
}


def rate(parse: Callable[[bytes], Any], body: bytes) -> float:
    """Bodies a second of processor time, the best of three."""
    best = 0.0
    for _ in range(3):
        count, began = 0, time.process_time()
        while (used_s := time.process_time() - began) < PARSED_S:
            for _ in range(500):
                parse(body)
            count += 500
        best = max(best, count / used_s)
    return best


async def types_parse(_: Bench) -> list[Figure]:
    """A flight read as each message type, beside the parsers of JSON alone."""
    figures = []
    for name in TYPES:
        kind = message_type(name)
        body = kind.serialize({"flight": FLIGHT} if name == "xml" else FLIGHT)
        figures.append(Figure(f"types_{name}_parse", rate(kind.parse, body), "messages/s"))
    body = orjson.dumps(FLIGHT)
    figures.append(Figure("types_json_loads_parse", rate(json.loads, body), "messages/s"))
    figures.append(Figure("types_orjson_loads_parse", rate(orjson.loads, body), "messages/s"))
    return figures


def flight(number: int) -> dict[str, Any]:
    """One of the million."""
    carrier = "UA" if number % 100 == 0 else "AA"
    return {**FLIGHT, "flight": number, "carrier": carrier}


async def sow(bench: Bench) -> list[Figure]:
    """A SOW topic of a million records: built, scanned with a test of a field, asked for a key."""
    path = bench.directory / "sow"
    rule = KeyRule("flights", ["/flight"])
    gc.collect()
    store = LmdbSowStore(path)
    flights = SowTopicDefinition("flights", "json", keys=("/flight",))
    feature = SowFeature(sow_book((flights,), (), store))
    feature.wanted_by(lambda topic: False)  # As in an instance that nobody queries or follows.
    state = feature.book.topics[0].state
    rows = [(orjson.dumps(flight(number)), number) for number in range(RECORDS)]
    rows_mb = anonymous_mb(os.getpid())
    took_s = 0.0
    for first in range(0, RECORDS, A_RUN):
        run = _run([body for body, _ in rows[first : first + A_RUN]], first + 1)
        began = time.process_time()
        feature.fold(CommitBatch([run], run.last_txid))
        if (first + A_RUN) % A_COMMIT == 0:
            store.commit(feature.pending())
            feature.saved()
        took_s += time.process_time() - began
    figures = [Figure("sow_build", RECORDS / took_s, "records/s")]
    after_mb = anonymous_mb(os.getpid())

    parse = message_type("json").parse
    began = time.process_time()
    query, found = state.query(), 0
    while not query.done:
        for _, value in query.take(A_TURN):
            found += parse(body_of(value))["carrier"] == "UA"
    figures.append(Figure("sow_scan_s", time.process_time() - began, "s"))
    assert found == RECORDS // 100

    began = time.process_time()
    found = sum(orjson.loads(body)["carrier"] == "UA" for body, _ in rows)
    figures.append(Figure("sow_scan_loads_s", time.process_time() - began, "s"))
    assert found == RECORDS // 100

    figures.append(Figure("sow_scan_sqlite_s", _sqlite_s(rows), "s"))
    keys = [rule.key_of({"flight": number}) for number in range(0, RECORDS, 50)]
    began = time.process_time()
    for key in keys:
        assert state.get(key) is not None
    figures.append(Figure("sow_get_us", (time.process_time() - began) / len(keys) * 1e6, "us"))
    per_record = (after_mb - rows_mb) * 1e6 / RECORDS
    figures.append(Figure("sow_memory_bytes", per_record, "bytes/record"))
    store.close()
    path.unlink()
    return figures


def _run(bodies: list[bytes], first_txid: int) -> Run:
    """A run as it is committed."""
    builder = RecordBuilder(1, "flights", "json")
    records = (builder.build(first_txid + n, body, n) for n, body in enumerate(bodies))
    payload = b"".join(records)
    (chunk,) = scan(payload, verify=False)
    made = run_of(chunk, payload)
    made.first_txid = first_txid
    return made


def _sqlite_s(rows: list[tuple[bytes, int]]) -> float:
    """The same question asked of sqlite in memory."""
    base = sqlite3.connect(":memory:")
    base.execute("create table flights (body text, flight integer primary key)")
    base.executemany("insert into flights values (?, ?)", ((b.decode(), n) for b, n in rows))
    began = time.process_time()
    asked = "select body from flights where json_extract(body, '$.carrier') = 'UA'"
    found = len(base.execute(asked).fetchall())
    took_s = time.process_time() - began
    assert found == RECORDS // 100
    base.close()
    return took_s
