"""The actions of the administrator's interface: `/amps/administrator/…` (behaviour.md 9.5), each a
control call of the instance (`services/security/control.py`), so that HTTP, the shell and Python
are authorized by the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from raylay.services.admin.requests import read_request
from raylay.services.admin.tree import Branch, Collection, Node
from raylay.services.errors import ConfigurationError
from raylay.services.security.control import NAME_SHOWN_MAX, PATHS, path_of

BY_HTTP = frozenset(
    (
        *("downgrade", "upgrade", "reconnect", "disconnect", "drop_reader", "compact", "dump"),
        *("enable_proxied", "disable_proxied", "enable_transport", "disable_transport"),
        *("reset_authentication", "reset_entitlement"),
        *("compress", "archive", "remove", "admit", "run_action"),
    )
)
"""Calls that a request may make. The others belong to the process that started the fabric, or need
more than a path says."""
TEXT_CHARACTERS_MAX = 1_024
SENDERS_MAX = 1_000
PARAMETERS_MAX = 100
"""Number of parameters that one request gives an action of the configuration."""


class AdminAction(NamedTuple):
    """A control call that a path names.

    Attributes:
        call: name of a call in `raylay.services.security.control.PATHS`.
        details: the names in the path, decoded.
    """

    call: str
    details: Mapping[str, str]

    @property
    def path(self) -> str:
        """The path that authorizes the call, percent-encoded."""
        return path_of(self.call, self.details)

    @property
    def verb(self) -> str:
        """The last step of the path: `downgrade`, `enable_proxied_transfer`."""
        return self.path.rpartition("/")[2]

    @property
    def name(self) -> str:
        """The name of the object that the action changes; empty: the whole instance."""
        return next(iter(self.details.values()), "")


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


# -- what a request adds to the path -------------------------------------------------------------
def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_CHARACTERS_MAX


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and len(value) <= SENDERS_MAX and all(map(_is_text, value))


_FORCE = {"force": ("force", _is_flag, "true or false")}
_USER = {"user": ("of_user", _is_text, f"a text of at most {TEXT_CHARACTERS_MAX:,} characters")}
_OPTIONS: Mapping[str, Mapping[str, tuple[str, Callable[[object], bool], str]]] = {
    "downgrade": _FORCE,
    "remove": _FORCE,
    "admit": {**_FORCE, "senders": ("senders", _is_names, "a list of instances' names")},
    "reset_authentication": _USER,
    "reset_entitlement": _USER,
}
"""Members that the body of a request may have, each with the argument of the call, a check, and
what it must be."""


def read_options(call: str, body: object) -> dict[str, Any]:
    """Returns the arguments that the body of a request adds to those in its path.

    Args:
        body: the JSON value; None: there is no body.

    Raises:
        ConfigurationError: a member is unknown or of another type.
    """
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise ConfigurationError("the body is no JSON object; leave it out, or send {}")
    if call == "run_action":
        return {"parameters": _parameters(body)} if body else {}
    known = _OPTIONS.get(call, {})
    found: dict[str, Any] = {}
    for name, value in body.items():
        if name not in known:
            raise ConfigurationError(
                f"{name[:TEXT_CHARACTERS_MAX]!r} is nothing that this action takes: it takes "
                f"{', '.join(known) or 'no body'}"
            )
        argument, is_right, kind = known[name]
        if not is_right(value):
            raise ConfigurationError(f"{name!r} of the body must be {kind}")
        found[argument] = value
    return found


def _parameters(body: Mapping[str, object]) -> dict[str, str]:
    """Returns the parameters of a request that begins an action of the configuration."""
    if len(body) > PARAMETERS_MAX:
        raise ConfigurationError(
            f"the request has {len(body):,} parameters: an action takes {PARAMETERS_MAX} at most"
        )
    found: dict[str, str] = {}
    for name, value in body.items():
        if not (_is_text(name) and name and _is_text(value)):
            raise ConfigurationError(
                f"parameter {str(name)[:NAME_SHOWN_MAX]!r} must be a text of at most "
                f"{TEXT_CHARACTERS_MAX:,} characters"
            )
        found[name] = str(value)
    return found


def body_of(call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body of a request for a call: the arguments that its path does not hold, as
    `read_options` reads them. Those that say nothing are left out."""
    if call == "run_action":
        return dict(arguments.get("parameters") or {})
    return {
        name: arguments[argument]
        for name, (argument, _, _) in _OPTIONS.get(call, {}).items()
        if arguments.get(argument) not in (None, "", False)
    }


# -- what there is to do -------------------------------------------------------------------------
_OF_EACH: Mapping[str, tuple[str, ...]] = {
    "clients": ("disconnect",),
    "queues": ("enable_proxied", "disable_proxied"),
    "replication": ("downgrade", "upgrade", "reconnect"),
    "sow": ("compact",),
    "transports": ("enable_transport", "disable_transport"),
}
"""Collections of an instance, each with the calls for one of its entries."""


def configured_paths(configuration: Mapping[str, Any]) -> list[str]:
    """Returns the last steps of the paths below `/amps/administrator/actions` that the
    configuration of an instance gives to its actions.

    Args:
        configuration: the configuration as the instance's snapshot shows it.
    """
    found: dict[str, None] = {}
    for action in configuration.get("actions") or ():
        for module in action["on"]:
            if module["module"] == "admin":
                found |= {text: None for name, text in module["options"] if name == "Path"}
    return list(found)


def actions_of(
    instance: Branch, may: Callable[[str], bool], configured: Sequence[str] = ()
) -> Branch:
    """Returns `/amps/administrator`: every action that there is now, each with whether the user may
    perform it.

    Args:
        instance: `/amps/instance`.
        may: whether the user may use a path.
        configured: see `configured_paths`.
    """

    def offered(calls: Sequence[str], name: str = "") -> dict[str, Node]:
        found: dict[str, Node] = {}
        for call in calls:
            details = {step[1:-1]: name for step in PATHS[call].split("/") if _is_name(step)}
            action = AdminAction(call, details)
            found[action.verb] = may(action.path)
        return found

    def of_each(node: Node, calls: Sequence[str]) -> Collection:
        found = node if isinstance(node, Collection) else Collection("entry", {})
        return Collection(found.entry, {key: offered(calls, key) for key in found.branches})

    log = instance.get("transaction_log")
    journals = log.get("journals") if isinstance(log, Mapping) else None
    full: Node = None
    if isinstance(journals, Collection):
        full = Collection(
            journals.entry,
            {key: each for key, each in journals.branches.items() if is_full(each)},
        )
    return {
        **{name: of_each(instance.get(name), calls) for name, calls in _OF_EACH.items()},
        "transaction_log": {"journals": of_each(full, ("compress", "archive", "remove"))},
        "authorization": {
            "authentication": offered(("reset_authentication",)),
            "entitlement": offered(("reset_entitlement",)),
        },
        "diagnostics": offered(("dump",)),
        "instance": offered(("admit",)),
        "actions": {
            name: may(AdminAction("run_action", {"action": name}).path) for name in configured
        },
    }


def is_full(journal: Branch) -> bool:
    """Returns whether a journal is written to the end: actions take no other."""
    own = journal.get("raylay")
    return not isinstance(own, Mapping) or own.get("state") != "live"


def action_of(path: str) -> AdminAction | None:
    """Returns the action that a whole path names; None: there is none.

    Args:
        path: percent-encoded, with or without the first slash: `amps/administrator/…`.

    Raises:
        ConfigurationError: the path is too long, or no path below `/amps`.
    """
    steps = read_request("/" + path.lstrip("/"), ()).steps
    return action_at(steps[1:]) if steps[:1] == ("administrator",) else None
