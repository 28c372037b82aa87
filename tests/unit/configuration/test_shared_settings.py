"""Settings that the model and the processes share: each reaches the process, and a fault of one is
told with its place in the file."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from raylay.services.config.instance import DestinationConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.configuration.fields import Section, name_in_files
from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    LogSettings,
    TracingSettings,
)
from raylay.services.configuration.transports import (
    FirstReplicationSettings,
    FirstTransportSettings,
    ReplicationTransportSettings,
    TransportSettings,
)
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric import Fabric
from raylay.services.telemetry.logs import LogOptions
from raylay.services.telemetry.tracing import TracingOptions

INTERPRETED = {
    DestinationSettings: {"to", "dial", "exclude_validation"},
    TracingSettings: {"directory"},
}
"""Settings from which the fabric's plan makes values of other names."""


@pytest.mark.parametrize(
    ("section", "record"),
    [
        (DestinationSettings, DestinationConfig),
        (TransportSettings, TransportConfig),
        (FirstTransportSettings, TransportConfig),
        (ReplicationTransportSettings, TransportConfig),
        (FirstReplicationSettings, TransportConfig),
        (LogSettings, LogOptions),
        (TracingSettings, TracingOptions),
    ],
)
def test_each_setting_has_its_name_in_the_process(section: type[Section], record: type) -> None:
    lacking = set(section.model_fields) - {each.name for each in fields(record)}
    assert lacking == INTERPRETED.get(section, set())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("downgrade: {age: 1s, upgrade_age: 5s}", "2: downgrade: upgrade age 5000 ms is above"),
        (
            "downgrade:\n  check_interval: 1ms",
            "3: downgrade.check_interval: expected at least 10, ",
        ),
        (
            "journal:\n  segment_size: 1KiB",
            "3: journal.segment_size: expected at least 1,048,576, ",
        ),
        (
            "journal:\n  actions:\n  - {do: compress, age: 1d, every: never}",
            "4: journal.actions.0.every: expected an interval such as 15s",
        ),
        ("journal:\n  actions:\n  - {do: compress, age: 1d, every: []}", "expected one time or"),
        ("journal:\n  durabilty: x", "3: journal.durabilty: .*: did you mean durability"),
        ("journal:\n  retention: {siz: 1}", "3: journal.retention.siz: .*: did you mean size"),
        ("tls:\n  certificat: x", "3: tls.certificat: .*: did you mean certificate"),
        ("tls: {certificate: a}", "2: tls: TLS has no private key"),
        ("authentication: {module: ''}", "2: authentication: expected the name of a module"),
        ("message_types:\n- {name: '', kind: fix}", "3: message_types.0: expected a name of 1 to"),
        ("message_types:\n- {name: a, kind: ''}", "3: message_types.0: expected a kind"),
    ],
)
def test_a_fault_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^f\.yaml:.*{told}"):
        parse(f"fabric: f\n{text}\ninstances: {{A: {{}}}}\n", "f.yaml")


def test_one_rule_gives_a_setting_its_name_in_files() -> None:
    names = {
        "flush_interval_ms": "flush_interval",
        "message_age_ms_max": "message_age",
        "memory_bytes_max": "memory",
        "size_bytes": "size",
        "segment_bytes": "segment_size",
        "front_log": "front_log",
    }
    assert {name: name_in_files(name) for name in names} == names


def test_a_fabric_in_python_takes_each_section_of_a_file() -> None:
    sections = {name_in_files(name) for name in FabricSettings.model_fields}
    assert sections - set(inspect.signature(Fabric).parameters) == {"instances"}
