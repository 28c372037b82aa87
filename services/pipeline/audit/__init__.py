"""The convergence audit: compares what every instance should hold with what it holds."""

from __future__ import annotations

from raylay.services.pipeline.audit.job import (
    Audit,
    audit,
    audit_source,
    expected_everywhere,
    write_page,
)

__all__ = ["Audit", "audit", "audit_source", "expected_everywhere", "write_page"]
