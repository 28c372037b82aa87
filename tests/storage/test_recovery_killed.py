"""A process that writes recovery points and is killed leaves one of them, whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from raylay.services.replication.recovery import PREFIX, RecoveryLog
from raylay.storage.state import LmdbStateStore

PUBLISHERS = 300
LIVES = 4
WRITER = f"""
import sys
from raylay.services.replication.acknowledgment import RootedRanges, Route, WaiterTable
from raylay.services.replication.recovery import PREFIX, RecoveryLog, RecoveryPoint
from raylay.storage.state import LmdbStateStore

store = LmdbStateStore(sys.argv[1])
log = RecoveryLog(dict(store.items(PREFIX)))
awaited, waiting = log.point.awaited.copy(), log.point.waiting.copy()
route = Route(5, b"t", b"json", (), "g", 0)
for number in range(log.point.committed_txid + 1, 1 << 30):
    for publisher in range({PUBLISHERS}):
        awaited.of(1).add(publisher, number, number)
        waiting.settle(1, publisher, [(1, number)])
        waiting.assign(1, route, publisher, [(number, number)])
    point = RecoveryPoint(number, awaited.copy(), committed_txid=number, waiting=waiting.copy())
    store.put(log.changes(point))
    log.written(point)
    print(number, flush=True)
"""


def test_what_is_left_is_one_point(tmp_path: Path) -> None:
    path = tmp_path / "state.lmdb"
    told = 0
    for life in range(1, LIVES + 1):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(5 * life):
            told = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        store = LmdbStateStore(path)
        point = RecoveryLog(dict(store.items(PREFIX))).point
        store.close()
        number = point.committed_txid
        assert number >= told
        assert len(point.awaited.of(1).sets) == PUBLISHERS
        assert all(list(ranges) == [(1, number)] for ranges in point.awaited.of(1).sets.values())
        waiting = {each.publisher: list(each.ranges) for each in point.waiting}
        assert waiting == {key: [(number, number)] for key in range(PUBLISHERS)}
