"""Telemetry of a process: traces, metrics and logs."""
