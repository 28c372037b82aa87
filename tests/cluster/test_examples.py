"""The examples, as they stand there, on the Ray that the cluster tests have already: a Ray for each
of them takes longer than they do. `hello.py`, `three_regions.py` and the script of the README are
run as a person runs them (test_commands.py)."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("fabric")]

EXAMPLES = Path(__file__).parents[2] / "examples"


def said(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that an example prints. What Ray prints of its workers is left out: in a process
    that imported Ray before Raylay it says so where it likes."""
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if "(raylet)" not in line]


@pytest.mark.covers("The replication chapters", "both ways; clients fail over at once")
@pytest.mark.covers("The replication chapters", "the hot pair")
def test_hot_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert "2000 of 2000 sales" in said("hot_pair.py", capsys)[-1]


@pytest.mark.covers("The replication chapters", "an application is added by restarting")
def test_hub_and_spoke(capsys: pytest.CaptureFixture[str]) -> None:
    first, *readers = said("hub_and_spoke.py", capsys)
    assert first == "started audit; restarted hub-1, hub-2"
    found = [re.fullmatch(r"(\w+): (\d+) of (\d+) orders", line) for line in readers]
    counts = {match[1]: (int(match[2]), int(match[3])) for match in found if match}
    assert list(counts) == ["desk", "risk", "audit"]
    assert all(read == published >= 3_000 for read, published in counts.values())


def test_a_one_way_feed(capsys: pytest.CaptureFixture[str]) -> None:
    expected = "production has 1000 prices, test has 2000 with its own"
    assert said("one_way_feed.py", capsys) == [expected]


@pytest.mark.covers("The replication chapters", "an instance a region")
def test_geographic_replication(capsys: pytest.CaptureFixture[str]) -> None:
    regions = ("NewYork", "London", "HongKong")
    expected = [f"{region}: 3000 of 3000 trades" for region in regions]
    assert said("geographic.py", capsys) == expected


@pytest.mark.covers("Queues", "the consumers of one region are killed")
def test_workers_in_two_regions(capsys: pytest.CaptureFixture[str]) -> None:
    """The workers of one region are killed with SIGKILL, in the middle of 1,000 orders."""
    east, west, verdict = said("worker_regions.py", capsys)
    done = [int(found[1]) for line in (east, west) if (found := re.search(r"did (\d+)", line))]
    assert done[0] > 0 and done[1] >= 400
    assert verdict.startswith("1000 of 1000 orders are done, ") and verdict.endswith(": ok")


def test_a_pair_where_everything_is_guarded(capsys: pytest.CaptureFixture[str]) -> None:
    *lines, told = said("guarded.py", capsys)
    assert lines == [
        "here-1 replicates to here-2",
        "here-2 replicates to here-1",
        *['bob reads {"desk": "fx"}'] * 2,
        "bob is told bob may not publish to 'orders'",
    ]
    assert re.match(
        r"a stranger is told 127.0.0.1:\d+ refused the logon of client desk of amy: ", told
    )
    assert "set user_id and password" in told


@pytest.mark.covers("Queues", "the reasons of expiry are events")
def test_dead_letters(capsys: pytest.CaptureFixture[str]) -> None:
    expected = [
        "bad: forced_expire",
        "hopeless: max_cancels",
        "late: time_limit",
        "too much: max_deliveries",
    ]
    assert said("dead_letters.py", capsys) == expected


@pytest.mark.covers("Actions", "the examples of the page run")
def test_automation(capsys: pytest.CaptureFixture[str]) -> None:
    expected = ["order 2: untaken", "order 3: large 1", "order 3: untaken"]
    assert said("automation.py", capsys) == expected


@pytest.mark.covers("Views", "a board of the demo's flights")
def test_a_departures_board(capsys: pytest.CaptureFixture[str]) -> None:
    """The instance where the board is is killed with SIGKILL, amid the flights."""
    moved, board, waited = said("delay_board.py", capsys)
    found = re.match(r"the board went from (NewYork-[12]) to (NewYork-[12]),", moved)
    assert found is not None and found[1] != found[2]
    assert board == "the board has the 10 worst of 10,000 flights: ok"
    assert waited == "ORD, FLL, MCO waited longest: ok"


@pytest.mark.covers("Replication", "without an address")
def test_a_pair_across_a_firewall(capsys: pytest.CaptureFixture[str]) -> None:
    """`web` has no address of `inside`, and the link that holds their connection is killed."""
    (line,) = said("dmz_pair.py", capsys)
    assert line.startswith("inside has 1000 orders, web has 1000 prices;")
    assert line.endswith("web replicates over inside's connection")
