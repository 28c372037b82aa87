"""`ray up` on several hosts: regions on nodes of theirs, cuts, a host without power, no head.

Run by `make test-hosts` (root). The tests are one story on one cluster, in their order.
"""

from __future__ import annotations

import json
import os
import time

import pytest
from hosts.conftest import DIRECTORY, FABRIC, HOSTS, Cluster, wait_until
from hosts.load import GROUPS, Load

from raylay.services.drills.verdict import PublishRecord, SequenceStretch, judge, stretches_of_run
from raylay.storage.journal_reader import LmdbJournalReader

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(0)]
HEAD_AWAY_S = float(os.environ.get("RAYLAY_HEAD_AWAY_S", "20"))
"""How long the head is away under load, seconds. Nodes are told to outlive 600 s."""
EXPECTED: dict[str, PublishRecord] = {}
"""What every load published and was acknowledged, for the journals at the end."""


def finish(load: Load, name: str) -> None:
    """The verdict over a load that has ended."""
    EXPECTED[name] = load.record
    verdict = load.verdict()
    assert verdict.valid, verdict
    assert verdict.persisted == verdict.published > 0


@pytest.mark.covers("Deployment", "`ray up`, instances on the hosts of their region")
def test_instances_are_on_the_hosts_of_their_region(cluster: Cluster) -> None:
    wait_until("whole", cluster.is_whole)
    addresses = cluster.addresses()
    for name, place in cluster.record().nodes.items():
        region = name.partition("-")[0]
        assert place.address == addresses[HOSTS[region]]
        assert place.labels == {"region": region, "host": HOSTS[region]}
        assert cluster.journal(name).is_dir()
    assert "AUTH_MODE=token" in cluster.on("London", "cat ~/raylay/env")
    warning = "raylay: warning: Chicago-1 and Chicago-2 acknowledge for each other"
    assert warning in cluster.said_at_start


@pytest.mark.covers("Deployment", "`ray up`, instances on the hosts of their region")
def test_commands_work_on_every_host(cluster: Cluster) -> None:
    found = cluster.status("London")
    assert {"Chicago-1", "Chicago-2", "NewYork-1", "London-1"} == set(found)
    cluster.on("NewYork", """raylay publish flights/ua '{"gate": 1}' --group NewYork""")
    told = cluster.on("London", "raylay subscribe flights/ua --group London --bookmark 0 --count 1")
    assert json.loads(told) == {"gate": 1}
    before = cluster.record()
    cluster.on("London", "cat > flights.yaml", given=FABRIC)
    up = f"raylay up flights.yaml --directory {DIRECTORY} --node-label region"
    assert "fabric flights runs already" in cluster.on("London", f"{up} 2>&1 || true")
    assert cluster.record() == before


@pytest.mark.covers("Journal", "a backup of an instance of another host")
def test_a_backup_is_made_on_the_host_of_each_instance(cluster: Cluster) -> None:
    lines = cluster.on("head", "raylay backup --to /srv/raylay/backups --json").splitlines()
    made = {found["instance"]: found for found in map(json.loads, lines)}
    assert {"Chicago-1", "Chicago-2", "NewYork-1", "London-1"} == set(made)
    addresses = cluster.addresses()
    for name, found in made.items():
        region = name.partition("-")[0]
        assert found["host"] == addresses[HOSTS[region]] and found["messages"] >= 1
        checked = cluster.on(region, f"raylay restore {found['backup']} --check --json")
        assert json.loads(checked)["last_txid"] == found["last_txid"]
    for region in HOSTS:
        cluster.on(region, "rm -rf /srv/raylay/backups")


@pytest.mark.covers("Deployment", "regions that are cut off")
def test_regions_that_are_cut_off_catch_up(cluster: Cluster) -> None:
    with Load(cluster, "cut") as load:
        cluster.ground("cut", "NewYork", "London")
        cluster.ground("cut", "Chicago", "London", "--one-way")
        load.await_progress(*GROUPS, messages=400)  # each on its own side
        cluster.ground("heal")
    finish(load, "cut")


@pytest.mark.covers("Deployment", "regions that are cut off")
def test_a_host_without_power_comes_back_with_all_it_acknowledged(cluster: Cluster) -> None:
    with Load(cluster, "power", publishers=("Chicago", "NewYork")) as load:
        load.await_progress("NewYork")
        cluster.ground("kill", HOSTS["NewYork"])
        load.await_progress("Chicago", "London", messages=400)
        cluster.ground("start", HOSTS["NewYork"])
        cluster.on("NewYork", "bash ~/raylay/deploy/start.sh")
        wait_until("whole", cluster.is_whole)
    finish(load, "power")
    assert cluster.living() == len(HOSTS)


@pytest.mark.covers("Laws", "8 the data path asks no controller", note="on real processes")
def test_without_the_head_all_but_restarts_goes_on(cluster: Cluster) -> None:
    with Load(cluster, "headless") as load:
        cluster.on("head", "pkill -KILL gcs_server; sleep 1; pgrep gcs_server && exit 1 || true")
        load.await_progress(*GROUPS)
        cluster.ground("kill", HOSTS["head"])
        began_s = time.monotonic()
        load.await_progress(*GROUPS, messages=400)
        # Clients of the one fail over to the other of the pair; nobody starts it again.
        victim, pid = sorted(cluster_pids(cluster).items())[0]
        cluster.on("Chicago", f"kill -9 {pid}")
        load.await_progress(*GROUPS, messages=400)
        assert victim not in cluster_pids(cluster)
        # Commands that talk to instances need no head either.
        cluster.on("London", """raylay publish flights/ua '{"gate": 2}' --group London""")
        while time.monotonic() - began_s < HEAD_AWAY_S:
            load.await_progress(*GROUPS)
        cluster.ground("start", HOSTS["head"])
        cluster.on("head", "bash ~/raylay/deploy/start.sh")
        wait_until("four nodes", lambda: cluster.living() == len(HOSTS))
        wait_until("whole", cluster.is_whole)
        assert victim in cluster_pids(cluster)
        load.await_progress(*GROUPS)
    finish(load, "headless")
    assert set(cluster.status("NewYork")) == {"Chicago-1", "Chicago-2", "NewYork-1", "London-1"}


def cluster_pids(cluster: Cluster) -> dict[str, int]:
    """The processes of Chicago's instances on its host, by name, from their locks."""
    text = cluster.on(
        "Chicago",
        "for pid in $(pgrep -f 'ray::Chicago-[12]$'); do "
        f"echo $pid $(readlink /proc/$pid/fd/* | grep -o '{DIRECTORY}/Chicago-[12]' | head -1);"
        "done",
    )
    pairs = [line.split() for line in text.splitlines()]
    return {pair[1].rpartition("/")[2]: int(pair[0]) for pair in pairs if len(pair) == 2}


@pytest.mark.covers("Deployment", "`ray down` ends all")
def test_down_ends_all_and_every_journal_has_what_was_acknowledged(cluster: Cluster) -> None:
    cluster.on("head", "raylay down")
    names = list(cluster.record().ports)
    cluster.on("head", "bash ~/raylay/deploy/stop.sh")
    cluster.ray("down", "--yes", str(cluster.file))
    for region in HOSTS:
        assert cluster.on(region, "pgrep -fa '[r]aylet|[g]cs_server|[r]ay::' || true") == ""
    assert EXPECTED
    for name in names:
        held: list[SequenceStretch] = []
        reader = LmdbJournalReader(cluster.journal(name))
        after = 0
        while runs := reader.read(after):
            held += [stretch for run in runs for stretch in stretches_of_run(run)]
            after = runs[-1].last_txid
        reader.close()
        for record in EXPECTED.values():
            own = {publisher for publisher, _ in record.published.items()}
            verdict = judge({name: [s for s in held if s.publisher in own]}, record)
            assert verdict.valid, verdict
