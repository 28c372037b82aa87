"""A head that keeps what it knows in a Redis on another host comes back with nothing of its own.

Run by `make soak-hosts` (root), with redis-server from the distribution.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from hosts.conftest import HOSTS, Cluster, running, wait_until
from hosts.load import GROUPS, Load

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.soak,
    pytest.mark.timeout(0),
    pytest.mark.skipif(
        shutil.which("redis-server") is None,
        reason="no redis-server: sudo apt-get install redis-server",
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With a Redis on London's host."""
    with running(tmp_path_factory.mktemp("redis"), redis_on="London") as made:
        wait_until("whole", made.is_whole)
        yield made


def test_a_head_that_comes_back_knows_the_fabric_from_redis(cluster: Cluster) -> None:
    assert not (cluster.home("head") / "raylay" / "gcs").exists(), "nothing is kept at the head"
    with Load(cluster, "redis") as load:
        load.await_progress(*GROUPS)
        cluster.ground("kill", HOSTS["head"])
        load.await_progress(*GROUPS, messages=400)
        # Nobody starts it again while there is no head.
        cluster.on("NewYork", "pkill -KILL -f ray::NewYork-")
        load.await_progress("Chicago", "London", messages=400)
        cluster.ground("start", HOSTS["head"])
        cluster.on("head", "bash ~/raylay/deploy/start.sh")
        wait_until("four nodes", lambda: cluster.living() == len(HOSTS))
        wait_until("whole", cluster.is_whole)
        load.await_progress(*GROUPS)
    verdict = load.verdict()
    assert verdict.valid, verdict
    assert verdict.persisted == verdict.published > 0
