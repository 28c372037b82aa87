"""The result of a topology check as data, and as rows of tables."""

from __future__ import annotations

from typing import Any

from raylay.services.topology.check import CheckResult
from raylay.services.topology.failure_analysis import FailureAnalysis
from raylay.services.topology.reach import bits


def as_data(checked: CheckResult, name: str, *, routes: bool) -> dict[str, Any]:
    """Returns the data that `--json` prints.

    Args:
        name: the name of the fabric.
        routes: whether to add every publisher and instance, with route and senders.
    """
    found: dict[str, Any] = {
        "fabric": name,
        "errors": checked.errors,
        "warnings": checked.warnings,
        "notes": checked.notes,
        "findings": [
            {
                "severity": finding.severity,
                "kind": finding.kind,
                "instances": list(finding.instances),
                "topic": finding.topic,
                "explanation": finding.explanation,
                "repair": finding.repair,
            }
            for finding in checked.findings
        ],
        "reach": [
            {**summary(survey, publisher), "topic": survey.routes.topic.shown}
            for survey in checked.surveys
            for publisher in survey.publishers
        ],
    }
    if routes:
        found["routes"] = [
            {**row, "topic": survey.routes.topic.shown}
            for survey in checked.surveys
            for publisher in survey.publishers
            for row in route_rows(survey, publisher)
        ]
    return found


def summary(survey: FailureAnalysis, publisher: int) -> dict[str, Any]:
    """Summarizes in one row how far an instance's publishes get: `wanted` instances journal the
    topic, `certain` of them surely get it, `hops` is the number of links on the longest of the
    shortest routes, and `copies` the most copies that are sent to one instance, which journals the
    first."""
    routes = survey.routes
    flow = survey.nominal[publisher]
    others = survey.wanted(publisher)
    return {
        "publisher": routes.members[publisher].name,
        "wanted": others.bit_count(),
        "certain": (flow.certain & others).bit_count(),
        "possible": (flow.possible & others).bit_count(),
        "missing": [routes.members[i].name for i in bits(others & ~flow.certain)],
        "hops": max(survey.hops(publisher).values(), default=0),
        "copies": max(
            (len(senders) for senders in survey.all_senders(publisher).values()), default=0
        ),
    }


def route_rows(survey: FailureAnalysis, publisher: int) -> list[dict[str, Any]]:
    """Returns a row for each instance at which an instance's publishes may arrive: a shortest
    route, and the senders, always or sometimes."""
    routes = survey.routes
    senders = survey.all_senders(publisher)
    flow = survey.nominal[publisher]
    return [
        {
            "publisher": routes.members[publisher].name,
            "instance": routes.members[target].name,
            "certain": bool(flow.certain >> target & 1),
            "route": [routes.members[i].name for i in survey.route(publisher, target)],
            "senders": [
                {"instance": routes.members[at].name, "always": always}
                for at, always in senders.get(target, [])
            ],
        }
        for target in bits(flow.possible & ~(1 << publisher))
    ]
