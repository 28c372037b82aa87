"""Directories for the traces and logs of a fabric's processes."""

from __future__ import annotations

from pathlib import Path

from raylay.services.configuration.model import FabricSettings, LogSettings
from raylay.services.telemetry.kept_log import KEPT_NAMES, kept_log_directory
from raylay.services.telemetry.log_options import LogOptions, LogTarget, options_of
from raylay.services.telemetry.tracing import TracingOptions

KEPT_FILE_BYTES = 2 * 1024 * 1024
"""Limit on the bytes of one file of an instance's kept log."""
KEPT_BYTES = 8 * 1024 * 1024
"""Limit on the bytes of all files of an instance's kept log; the oldest are removed."""


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


def log_options(logs: LogSettings, directory: str, instance: str) -> LogOptions:
    """Returns where an instance and the processes beside it log: the targets of the settings, and
    the kept log.

    Args:
        directory: the fabric's, as in its record.
        instance: name of the instance.
    """
    targets = [each.target_in(directory) for each in logs.targets]
    return options_of([*targets, kept_target(directory, instance)])


def kept_target(directory: str, instance: str) -> LogTarget:
    """Returns the target of the log that is always kept, which `raylay logs` and `raylay events`
    read."""
    return LogTarget(
        target="file",
        directory=str(kept_log_directory(directory, instance)),
        file_name=KEPT_NAMES,
        format="json",
        rotation_bytes=KEPT_FILE_BYTES,
        kept_bytes=KEPT_BYTES,
        in_background=True,
    )
