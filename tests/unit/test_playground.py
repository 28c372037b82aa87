"""The playground's plans: hosts and addresses, cuts, traffic control, the relay."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def load(name: str) -> ModuleType:
    """A script of deploy/."""
    path = str(ROOT / "deploy" / name)
    loader = importlib.machinery.SourceFileLoader(Path(name).stem, path)
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


relay = load("playground_relay.py")
playground = load("playground")


def test_each_region_has_a_network_of_its_own() -> None:
    ground = playground.declare("play", "10.77", ["Chicago", "NewYork=2"], 3)
    assert [(host.name, host.region, host.address) for host in ground.hosts] == [
        ("chicago-1", "Chicago", "10.77.1.1"),
        ("newyork-1", "NewYork", "10.77.2.1"),
        ("newyork-2", "NewYork", "10.77.2.2"),
    ]
    assert [host.name for host in playground.declare("play", "10.77", [], 2).hosts] == [
        "host1",
        "host2",
    ]


@pytest.mark.parametrize(
    ("network", "regions", "hosts", "words"),
    [
        ("10.77", ["A", "A"], 3, "each region once"),
        ("10.77", ["A=x"], 3, "--region A=x: give NAME"),
        ("10.77", ["a b"], 3, "give NAME"),
        ("10.77", ["A=255"], 3, "--region A=255: there are addresses for 254"),
        ("10.77", [], 300, "addresses for 254 regions"),
        ("10.77", [], 0, "one host or more"),
        ("10.777", ["A"], 3, "--network 10.777"),
        ("banana", ["A"], 3, "--network banana: give an address's first two numbers"),
        ("10.77.1", ["A"], 3, "--network"),
    ],
)
def test_what_cannot_be_hosts_is_refused(
    network: str, regions: list[str], hosts: int, words: str
) -> None:
    with pytest.raises(playground.Refused, match=words):
        playground.declare("play", network, regions, hosts)


def test_a_region_or_a_host_can_be_cut() -> None:
    ground = playground.declare("play", "10.77", ["Chicago", "NewYork=2"], 3)
    assert [host.name for host in ground.members("NewYork")] == ["newyork-1", "newyork-2"]
    assert [host.name for host in ground.members("newyork-2")] == ["newyork-2"]
    with pytest.raises(playground.Refused, match="no host Paris; there are chicago-1"):
        ground.members("Paris")
    script = playground.filter_script(["10.77.2.1", "10.77.2.2"])
    assert script.count("drop") == 2 and "flush table" in script


def test_traffic_control_has_a_band_for_each_other_region() -> None:
    ground = playground.declare("play", "10.77", ["A", "B", "C"], 3)
    ground.delays_ms = {"A>B": 40.0, "A>C": 7.5}
    ground.losses = {"A>B": 0.01}
    lines = [" ".join(each) for each in playground.netem_commands(ground, ground.hosts[0])]
    assert lines[0] == "tc qdisc add dev eth0 root handle 1: prio bands 3"
    assert "parent 1:2 handle 20: netem limit 20000 delay 40ms loss 1%" in lines[1]
    assert lines[2].endswith("match ip dst 10.77.2.0/24 flowid 1:2")
    assert "delay 7.5ms loss 0%" in lines[3]


def test_the_cluster_file_is_the_projects_with_these_hosts() -> None:
    ground = playground.declare("play", "10.77", ["head", "Chicago", "London"], 3)
    template = (ROOT / "cluster.yaml").read_text()
    made = yaml.safe_load(playground.cluster_file(template, ground, Path("/keys/k"), "/site"))
    assert made["provider"] == {
        "type": "local",
        "head_ip": "10.77.1.1",
        "worker_ips": ["10.77.2.1", "10.77.3.1"],
    }
    assert made["auth"]["ssh_private_key"] == "/keys/k"
    assert 'REGIONS="10.77.2.1=Chicago 10.77.3.1=London"' in made["setup_commands"][0]
    assert 'PACKAGES="/site"' in made["setup_commands"][0]


def test_a_python_that_a_host_would_hide_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a clone below /tmp, once where it is no virtual environment."""
    monkeypatch.setattr(sys, "prefix", "/tmp/clone/.venv")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    assert playground.hidden_pythons(["/tmp", "/srv"]) == ["/tmp/clone/.venv"]
    assert playground.hidden_pythons(["/tmpfs", "/srv"]) == []
    monkeypatch.setattr(sys, "base_prefix", "/tmp/clone/.venv")
    assert playground.hidden_pythons(["/tmp", "/srv"]) == ["/tmp/clone/.venv"]


A, B, C = (socket.inet_aton(f"10.77.{number}.1") for number in (1, 2, 3))


def packet(source: bytes, target: bytes, body: bytes = b"") -> bytes:
    """As much of an IPv4 packet as a router looks at."""
    return bytes([0x45]) + bytes(11) + source + target + body


def wires(delay_s: float = 0.0, loss: float = 0.0, **options: int) -> Any:
    made = relay.Wires(**options)
    for address, region in ((A, "A"), (B, "B"), (C, "C")):
        made.attach(address, region)
    made.set_rule("A", "B", relay.Rule(delay_s, loss))
    return made


@pytest.mark.covers("Deployment", "the playground's network")
def test_a_packet_arrives_after_the_delay_of_its_way() -> None:
    made = wires(delay_s=0.04)
    made.take(packet(A, B), 1.0, 0.5)
    made.take(packet(B, A), 1.0, 0.5)  # the way back has no rule
    assert list(made.due(1.0)) == [(A, packet(B, A))]
    assert made.next_due_s() == pytest.approx(1.04)
    assert list(made.due(1.039)) == []
    assert list(made.due(1.041)) == [(B, packet(A, B))]
    assert made.next_due_s() is None and made.passed == 2


@pytest.mark.covers("Deployment", "the playground's network")
def test_a_share_of_the_packets_is_lost() -> None:
    made = wires(loss=0.25)
    for number in range(100):
        made.take(packet(A, B), 0.0, number / 100)
    assert (made.lost, len(list(made.due(0.0)))) == (25, 75)


def test_packets_stay_in_order_when_the_way_becomes_faster() -> None:
    made = wires(delay_s=1.0)
    made.take(packet(A, B, b"1"), 0.0, 0.5)
    made.set_rule("A", "B", relay.Rule(0.0))
    made.take(packet(A, B, b"2"), 0.5, 0.5)
    assert list(made.due(0.9)) == []
    assert [each[1][-1:] for each in made.due(1.0)] == [b"1", b"2"]


def test_what_goes_nowhere_is_dropped_and_counted() -> None:
    made = wires(queue_packets_max=2)
    made.take(packet(A, b"\x0a\x4d\x09\x01"), 0.0, 0.5)
    made.take(bytes([0x60]) + bytes(39), 0.0, 0.5)
    assert made.unknown == 2
    for _ in range(3):
        made.take(packet(A, B), 0.0, 0.5)
    assert made.overflowed == 1
    made.detach(B)
    assert list(made.due(0.0)) == [] and made.unknown == 4
