"""Authorization of control calls: each call that changes an instance has a path, and the `admin`
list of a permissions document says who may make it.

    {"admin": [{"topic": "/amps/administrator/replication/.*", "read": true}]}

Paths are those of the documented administrator's interface, where it has the action; the others
stand beside them. As documented, an action needs `read` of its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raylay.services.errors import ConfigurationError
from raylay.services.security.modules import ModuleConfig
from raylay.services.security.permissions import Permissions

TRANSPORT = "amps-admin"
"""Name of the transport that modules see for a control call, which comes over no port."""
ROOT = "/amps/administrator/"
PATHS: Mapping[str, str] = {
    "downgrade": "replication/{destination}/downgrade",
    "upgrade": "replication/{destination}/upgrade",
    "reconnect": "replication/{destination}/reconnect",
    "kill_link": "replication/{destination}/kill",
    "enable_proxied": "queues/{queue}/enable_proxied_transfer",
    "disable_proxied": "queues/{queue}/disable_proxied_transfer",
    "enable_transport": "transports/{transport}/enable",
    "disable_transport": "transports/{transport}/disable",
    "disconnect": "clients/{client}/disconnect",
    "drop_reader": "readers/{reader}/drop",
    "compact": "sow/{topic}/compact",
    "dump": "diagnostics/dump",
    "reset_authentication": "authorization/authentication/reset",
    "reset_entitlement": "authorization/entitlement/reset",
    "compress": "transaction_log/journals/{segments}/compress",
    "archive": "transaction_log/journals/{segments}/archive",
    "remove": "transaction_log/journals/{segments}/remove",
    "run_action": "actions/{action}",
    "admit": "instance/admit",
    "stop": "instance/stop",
    "restart": "instance/restart",
    "kill": "instance/kill",
    "apply": "instance/apply",
    "drill": "instance/drill",
    "place": "placements/{moved}/move",
    "note_salvage": "placements/{moved}/note_salvage",
    "forget": "placements/{moved}/forget",
}
"""Control calls of an instance, each with its path below `ROOT`."""
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~")
NAME_SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """The configuration of the access to control calls.

    Attributes:
        authentication: module that finds out who the caller is; None: that of the instance's
            clients.
        entitlement: module that says what the caller may do; None: that of the instance's clients.
    """

    authentication: ModuleConfig | None = None
    entitlement: ModuleConfig | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity that the sender of a control call claims.

    Attributes:
        user_id: claimed user id; empty: none.
        password: password or token; never shown.
        fabric_key: key of the process that started the fabric and ends it, which is no user's
            action; never shown.
    """

    user_id: str = ""
    password: str = field(default="", repr=False)
    fabric_key: str = field(default="", repr=False)


NOBODY = Caller()


def path_of(call: str, details: Mapping[str, Any]) -> str:
    """Returns the path of a call. Names in it are percent-encoded, so that no name looks like two
    steps.

    Args:
        call: a call of `PATHS`.
        details: values for the names in the path.

    Raises:
        ConfigurationError: there is no such call, or a name is missing.
    """
    try:
        path = PATHS[call].format_map({key: _step(each) for key, each in details.items()})
    except KeyError as error:
        raise ConfigurationError(
            f"{call[:NAME_SHOWN_MAX]!r} is no call that controls an instance, or it lacks {error}"
        ) from None
    return ROOT + path


def _step(name: object) -> str:
    data = str(name).encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)


def check_admin(who: ModuleConfig | None, what: ModuleConfig | None, where: str) -> None:
    """Raises ConfigurationError where the modules of an `admin` would admit every user, or none."""
    if who is None and what is None:
        raise ConfigurationError(
            f"{where}: admin names no module, and the instance has none: give `authentication`, "
            "`entitlement`, or both"
        )
    if who is not None and who.module == "certificates":
        raise ConfigurationError(
            f"{where}: admin cannot use the module certificates: control calls bring none; give "
            "it an `authentication` of its own, passwords or tokens"
        )


def refusal(permissions: Permissions | None, user: str, path: str, instance: str) -> str:
    """Returns why a user may not use a path; empty: the user may.

    Args:
        permissions: the user's permissions; None: everything is allowed.
    """
    if permissions is None or permissions.controls(path):
        return ""
    who = user[:NAME_SHOWN_MAX] or "nobody in particular"
    return (
        f"{instance} refuses: {who} may not use {path}; nothing was changed. Allow it in `admin` "
        f'of the permissions ({{topic: "{path}", read: true}}), or act as a user who may'
    )


def not_let_in(user: str, path: str, instance: str) -> str:
    """Returns the answer to a caller whose claimed identity is not confirmed."""
    who = user[:NAME_SHOWN_MAX] or "nobody in particular"
    return (
        f"{instance} refuses {path} to {who}: the logon was denied; nothing was changed. Give the "
        "user in RAYLAY_USER and the password in RAYLAY_PASSWORD_FILE or RAYLAY_PASSWORD (in "
        "Python `fabric.act_as`); the instance's event `logon_denied` has the reason"
    )
