"""What the writer thread did and the loop has not heard of; whom the thread wakes itself."""

from __future__ import annotations

from raylay.services.messages.records import Flag, Run
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.acknowledgment import DestinationLedger
from raylay.services.replication.commit_notifications import CommitNotifications
from raylay.services.replication.link.routing import DestinationRoute

ORDERS = (TopicRule("orders"),)


def ledgers(**syncs: bool) -> dict[str, DestinationLedger]:
    return {
        name: DestinationLedger(DestinationRoute(name, "g", sync, ORDERS, ".*", (name,)))
        for name, sync in syncs.items()
    }


def run(first_txid: int, count: int = 1, topic: bytes = b"orders") -> Run:
    return Run(7, 1, count, count, b"", topic, flags=int(Flag.CONTIGUOUS), first_txid=first_txid)


def test_links_are_woken_for_what_is_committed_and_routed_to_a_sync_destination() -> None:
    news, to = CommitNotifications(), ledgers(a=True, b=True, slow=False)
    news.wakeable = ("a", "slow")
    news.staged(run(1, 5), to)
    news.staged(run(6, topic=b"trades"), to)
    news.staged(run(7), to)
    assert news.committed(4) == (True, set()), "the first run is not on disk whole"
    assert news.committed(6)[1] == {"a"}
    assert news.committed(6)[1] == set(), "once"
    assert news.committed(7)[1] == {"a"}


def test_the_loop_is_called_once_until_it_takes() -> None:
    news = CommitNotifications()
    assert news.take(0) == 0 and not news.is_ahead(0)
    assert [news.committed(txid)[0] for txid in (3, 5, 9)] == [True, False, False]
    assert news.is_ahead(0) and news.take(0) == 9
    assert news.take(9) == 0 and not news.is_ahead(9), "taken ahead of the call"
    assert news.committed(10)[0], "called again for what came since"


def test_nobody_is_woken_for_what_failed() -> None:
    news, to = CommitNotifications(), ledgers(a=True)
    news.wakeable = ("a",)
    news.staged(run(1), to)
    news.staged(run(2), to)
    assert news.committed(1)[1] == {"a"}
    news.failed()
    news.staged(run(2, topic=b"trades"), to)
    assert news.committed(2)[1] == set()
