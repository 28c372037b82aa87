"""Views over a SOW topic of orders, for the tests of views."""

from __future__ import annotations

from raylay.services.views.definition import ViewDefinition

SUMS = ViewDefinition(
    "sums",
    "json",
    topic="orders",
    projection=("/customer AS /customer", "SUM(/price) AS /sum", "COUNT(/price) AS /count"),
    grouping=("/customer",),
)
JOINED = ViewDefinition(
    "joined",
    "json",
    joins=("[orders]./customer = [sums]./customer",),
    projection=("[orders]./id AS /id", "[sums]./sum AS /sum"),
)
