"""Requests to the administrator's interface that begin actions: which actions a path names, and the
parameters that they need."""

from __future__ import annotations

from collections.abc import Container, Sequence

from raylay.services.actions.model import ActionDefinition
from raylay.services.errors import ConfigurationError

SHOWN_MAX = 200


def actions_at(
    actions: Sequence[ActionDefinition], path: str, given: Container[str], instance: str
) -> list[str]:
    """Returns the names of the actions that a request begins.

    Args:
        path: the last step of the request's path, below `/amps/administrator/actions`.
        given: the names of the request's parameters.
        instance: name of the instance, for errors.

    Raises:
        ConfigurationError: no action has this path, or one lacks a parameter that it requires.
    """
    of_admin = [
        (each.name, module) for each in actions for module in each.on if module.module == "admin"
    ]
    found = [each for each in of_admin if each[1].option("Path") == path]
    if not found:
        known = ", ".join(dict.fromkeys(module.option("Path") for _, module in of_admin))
        raise ConfigurationError(
            f"{instance} has no action at {path[:SHOWN_MAX]!r}: it has {known or 'none'}"
        )
    for name, module in found:
        for required in module.every("RequiredParameter"):
            if required not in given:
                raise ConfigurationError(
                    f"action {name} of {instance} needs the parameter {required!r}: nothing was "
                    "begun"
                )
    return list(dict.fromkeys(name for name, _ in found))
