"""An instance whose certificate ends soon, with a real process."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from support.instance_processes import Client, Servers, free_ports, single
from support.tls_files import DAY, Authority

from raylay.services.config.transport import REPLICATION_TRANSPORT, TransportConfig
from raylay.services.net.tls_config import TlsConfig

pytestmark = pytest.mark.covers("Administration", "a certificate is warned of")


def test_a_certificate_that_ends_soon_is_in_the_events_the_log_and_the_metrics(
    servers: Servers, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "ca")
    # It was made a day ago.
    pair = authority.issue("here-1", "here-1", lasts=6 * DAY)
    tls = TlsConfig(pair.certificate, pair.key, authority.file)
    (port,) = free_ports(1)
    solo = single(
        servers,
        tmp_path,
        replication_transports=(TransportConfig(REPLICATION_TRANSPORT, tls=tls),),
        metrics_port=port,
    )
    solo.wait_for(f"the certificate here-1 in {pair.certificate} (transport replication) ends in ")
    assert solo.events("0A-0011 certificate_ends") == 1 and "ends in 4 days" in solo.log
    assert Client(solo.address, "client").answer["status"] == "success"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    label = f'{{file="{pair.certificate}",instance="solo"}} '
    name = f"raylay_certificate_expires_seconds{label}"
    (left_s,) = (float(line.removeprefix(name)) for line in lines if line.startswith(name))
    assert 4.9 * 86_400 < left_s < 5 * 86_400
