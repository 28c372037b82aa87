"""A setting reaches the process by its name: whoever adds one has nothing to copy."""

from __future__ import annotations

from dataclasses import fields

import pytest

from raylay.services.config.instance import DestinationConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.configuration.fields import Section
from raylay.services.configuration.model import DestinationSettings, LogSettings, TracingSettings
from raylay.services.configuration.transports import (
    FirstReplicationSettings,
    FirstTransportSettings,
    ReplicationTransportSettings,
    TransportSettings,
)
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
