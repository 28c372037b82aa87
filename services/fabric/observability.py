"""Directories for the traces and logs of a fabric's processes."""

from __future__ import annotations

from pathlib import Path

from raylay.services.configuration.model import FabricSettings, LogSettings
from raylay.services.telemetry.log_options import LogOptions, options_of
from raylay.services.telemetry.tracing import TracingOptions


def tracing_options(settings: FabricSettings, directory: str) -> TracingOptions:
    """Returns where the processes of the fabric, clients included, write their traces.

    Args:
        directory: the fabric's, as in its record.
    """
    tracing = settings.tracing
    return TracingOptions(
        **tracing.shared_with(TracingOptions),
        file_directory=str(Path(directory) / tracing.directory) if tracing.directory else "",
    )


def log_options(logs: LogSettings, directory: str) -> LogOptions:
    """Returns where processes of the fabric log.

    Args:
        directory: the fabric's, as in its record.
    """
    return options_of([each.target_in(directory) for each in logs.targets])
