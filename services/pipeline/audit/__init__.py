"""The convergence audit: compares what every instance should hold with what it holds."""

from __future__ import annotations

from raylay.services.pipeline.audit.job import (
    Audit,
    audit,
    audit_source,
    expected_everywhere,
    write_page,
)
from raylay.services.pipeline.audit.network import audit_network_source

__all__ = [
    "Audit",
    "audit",
    "audit_network_source",
    "audit_source",
    "expected_everywhere",
    "write_page",
]
