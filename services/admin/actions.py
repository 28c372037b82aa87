"""The actions of the administrator's interface: `/amps/administrator/…` (behaviour.md 9.5), each a
control call of the instance (`services/security/control.py`), so that HTTP, the shell and Python
are authorized by the same path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raylay.services.security.control import PATHS

BY_HTTP = frozenset(
    (
        *("downgrade", "upgrade", "enable_proxied", "disable_proxied"),
        *("enable_transport", "disable_transport", "reset_entitlement"),
        *("compress", "archive", "remove", "admit"),
    )
)
"""Calls that a request may make. The others belong to the process that started the fabric, or need
more than a path says."""


class AdminAction(NamedTuple):
    """A control call that a path names.

    Attributes:
        call: of `raylay.services.security.control.PATHS`.
        details: the names in the path, decoded.
    """

    call: str
    details: Mapping[str, str]


def action_at(steps: Sequence[str]) -> AdminAction | None:
    """Returns the action that a path names; None: there is none.

    Args:
        steps: the decoded names below `/amps/administrator`.
    """
    for call in BY_HTTP:
        template = PATHS[call].split("/")
        if len(template) == len(steps) and all(
            _is_name(expected) or expected == step
            for expected, step in zip(template, steps, strict=True)
        ):
            details = {
                expected[1:-1]: step
                for expected, step in zip(template, steps, strict=True)
                if _is_name(expected)
            }
            return AdminAction(call, details)
    return None


def _is_name(step: str) -> bool:
    return step.startswith("{")
