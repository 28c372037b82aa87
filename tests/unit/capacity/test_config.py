"""What a configuration says of a pool: defaults, what a transport takes over, what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from raylay.services.capacity.config import CapacityConfig
from raylay.services.capacity.pool import Limits, Policy
from raylay.services.config.instance import InstanceConfig, TransportConfig
from raylay.services.errors import ConfigurationError
from raylay.services.server.clients.slow_clients import ClientPools, memory_of_process
from raylay.services.server.runtime import InstanceRuntime

pytestmark = pytest.mark.covers("Clients and protocol", "defaults; a transport that says anything")

GIB = 1 << 30


def test_the_defaults_are_those_of_the_documents() -> None:
    assert CapacityConfig().limits(8 * GIB) == Limits(8 * GIB // 10, 1_000_000_000, 0.5, None)
    assert CapacityConfig().limits(20 * GIB).disk_bytes_max == 2 * GIB, "as much as the memory"
    given = CapacityConfig(5, 7, None, 30_000, 0.25)
    assert given.limits(GIB) == Limits(5, 7, 0.25, 30_000)
    assert CapacityConfig(message_age_ms_max=0).limits(GIB).message_age_ms_max is None
    assert CapacityConfig(2 * 10**9).limits(GIB).disk_bytes_max == 2 * 10**9


def test_a_transport_takes_over_what_it_does_not_say() -> None:
    outer = CapacityConfig(100, 200, "/disk", 5_000, 1.0)
    inner = CapacityConfig(client_share=0.1, message_age_ms_max=0)
    assert inner.within(outer) == CapacityConfig(100, 200, "/disk", 0, 0.1)
    assert not inner.has_pool and not CapacityConfig().has_pool
    assert CapacityConfig(5).has_pool and CapacityConfig(disk_path="/x").has_pool


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (CapacityConfig(memory_bytes_max=0), r"memory_bytes_max \(MessageMemoryLimit\) is 0: give"),
        (CapacityConfig(disk_bytes_max=-1), r"disk_bytes_max \(MessageDiskLimit\) is -1: give 0"),
        (CapacityConfig(message_age_ms_max=-5), r"\(ClientMessageAgeLimit\) is -5: give 0"),
        (CapacityConfig(client_share=0.0), r"\(ClientMaxCapacity\) is 0.0: give more than 0"),
        (CapacityConfig(client_share=1.5), "at most 1, which is 100%"),
    ],
)
def test_a_limit_that_is_none_is_refused(wrong: CapacityConfig, text: str) -> None:
    for config in (
        InstanceConfig("East-1", "East", capacity=wrong),
        InstanceConfig(
            "East-1",
            "East",
            client_transports=(
                TransportConfig("client"),
                TransportConfig("slow", capacity=wrong),
            ),
        ),
    ):
        with pytest.raises(ConfigurationError, match=text) as refused:
            config.check()
        assert str(refused.value).startswith("East-1")


def test_it_is_kept_with_the_instance() -> None:
    plain = InstanceConfig(
        "East-1",
        "East",
        client_transports=(
            TransportConfig("client"),
            TransportConfig("a"),
        ),
    )
    given = replace(
        plain,
        capacity=CapacityConfig(5, client_share=0.25),
        client_transports=(
            TransportConfig("client"),
            TransportConfig("a", capacity=CapacityConfig(7)),
        ),
    )
    assert InstanceConfig.from_json(given.to_json()) == replace(given)


def pools_of(config: InstanceConfig, directory: Path) -> ClientPools:
    async def made() -> ClientPools:
        runtime = InstanceRuntime(config, directory)
        return ClientPools(runtime, lambda *_: None)  # type: ignore

    return asyncio.run(made())


def test_a_transport_that_says_something_has_a_pool_of_its_own(tmp_path: Path) -> None:
    config = InstanceConfig(
        "East/1",
        "East",
        capacity=CapacityConfig(1_000, disk_path=str(tmp_path)),
        client_transports=(
            TransportConfig("client"),
            TransportConfig("plain"),
            TransportConfig("slow", capacity=CapacityConfig(2_000, client_share=0.1)),
            TransportConfig("strict", capacity=CapacityConfig(client_share=0.2)),
        ),
    )
    pools = pools_of(config, tmp_path / "data")
    names = [pool.name for pool in pools.all]
    assert names == ["clients", "clients/slow"]
    assert [pools.of(name).name for name in ("client", "plain", "slow", "strict")] == [
        *("clients", "clients", "clients/slow", "clients"),
    ]
    assert pools.of("slow").pool.limits == Limits(2_000, 1_000_000_000, 0.1, None)
    shares = [pools.policy_of(name).client_share for name in ("client", "plain", "slow", "strict")]
    assert shares == [0.5, 0.5, 0.1, 0.2], "of the memory of the instance, or of its own"
    paths = {pool.buffer.path for pool in pools.all}
    assert paths == {
        tmp_path / "raylay-East%2F1" / "clients.lmdb",
        tmp_path / "raylay-East%2F1" / "clients%2Fslow.lmdb",
    }
    plain = pools_of(replace(config, capacity=None), tmp_path / "data")
    assert plain.of("client").buffer.path == tmp_path / "data" / "offline" / "clients.lmdb"


def test_a_transport_without_a_limit_goes_by_that_of_its_instance(tmp_path: Path) -> None:
    """Two limits of one policy, each said at another level."""
    config = InstanceConfig(
        "A-1",
        "A",
        capacity=CapacityConfig(1_000, 3_000, message_age_ms_max=5_000, client_share=0.3),
        client_transports=(
            TransportConfig("client"),
            TransportConfig("share", capacity=CapacityConfig(client_share=0.2)),
            TransportConfig("age", capacity=CapacityConfig(message_age_ms_max=7_000)),
            TransportConfig("own pool", capacity=CapacityConfig(2_000)),
        ),
    )
    pools = pools_of(config, tmp_path)
    assert pools.policy_of("share") == Policy(0.2, 5_000)
    assert pools.policy_of("age") == Policy(0.3, 7_000)
    assert pools.policy_of("own pool") == pools.policy_of("another") == Policy(0.3, 5_000)
    assert pools.of("own pool").pool.limits == Limits(2_000, 3_000, 0.3, 5_000)


def test_a_process_may_have_what_the_host_has_at_most() -> None:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    host_bytes = int(text.split()[1]) * 1024
    assert 0 < memory_of_process() <= host_bytes
