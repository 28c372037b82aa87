"""Named contexts of the shell: where the commands connect to, as whom, and with which TLS files.

They are one JSON file of the user (`contexts_file`). No password is in it, only the path of a file
that has one. A context counts as a whole or not at all: when a command is told on the command line
where to connect to, it does not send the user of a context there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from raylay.services.errors import ConfigurationError

CONTEXT_VARIABLE = "RAYLAY_CONTEXT"
FABRIC_VARIABLE = "RAYLAY_FABRIC"
SERVER_VARIABLE = "RAYLAY_SERVER"
HTTP_VARIABLE = "RAYLAY_HTTP"
GROUP_VARIABLE = "RAYLAY_GROUP"
PASSWORD_VARIABLE = "RAYLAY_PASSWORD"
_PLACE_VARIABLES = (FABRIC_VARIABLE, SERVER_VARIABLE, HTTP_VARIABLE)
_PLACE_OPTIONS = ("--fabric", "--server", "--http")
_WAYS = {"fabric": "a fabric of this host", "server": "servers", "http": "interfaces"}
_LISTS = ("server", "http")
FILE_BYTES_MAX = 1 << 20
NAME_MAX = 64


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The place that commands connect to, and the user that they log on as.

    Args:
        server: addresses of instances, `host:port`.
        http: addresses of administrator's interfaces.
        fabric: name of a fabric of this host, in place of addresses.
        group: the region of the instances to use.
        user: the user to log on as.
        password_file: path of the file with the password.
        ca_file: PEM file of the authority of the servers' certificates.
        certificate: PEM file of a client certificate.
        private_key: PEM file of its key.
    """

    server: tuple[str, ...] = ()
    http: tuple[str, ...] = ()
    fabric: str = ""
    group: str = ""
    user: str = ""
    password_file: str = ""
    ca_file: str = ""
    certificate: str = ""
    private_key: str = ""

    def __post_init__(self) -> None:
        if self.fabric and (self.server or self.http):
            raise ConfigurationError(
                "a context names a fabric of this host or addresses: give --fabric, or --server "
                "and --http"
            )
        if not (self.fabric or self.server or self.http):
            raise ConfigurationError(
                "a context says where to connect to: give --server, --http or --fabric"
            )
        if bool(self.certificate) != bool(self.private_key):
            raise ConfigurationError("give --certificate and --private-key together")
        if self.password_file and not self.user:
            raise ConfigurationError("--password-file needs --user, whose password it has")

    @classmethod
    def from_json(cls, name: str, found: Any) -> ConnectionContext:
        """Returns a context of the file.

        Raises:
            ConfigurationError: it is none.
        """
        known = {each.name for each in fields(cls)}
        if not isinstance(found, dict) or not found.keys() <= known:
            raise ConfigurationError(f"context {name} has unknown settings: add it again")
        for key, value in found.items():
            texts = value if key in _LISTS and isinstance(value, list) else [value]
            if isinstance(value, list) != (key in _LISTS) or not all(
                isinstance(each, str) for each in texts
            ):
                raise ConfigurationError(f"{key} of context {name} is not valid: add it again")
        return cls(**found | {key: tuple(found.get(key, ())) for key in _LISTS})

    def as_json(self) -> dict[str, Any]:
        """Returns what the file has of this context: the settings that are given."""
        return {key: value for key, value in asdict(self).items() if value}

    def variables(self) -> dict[str, str]:
        """Returns the environment that stands for this context."""
        joined = asdict(self) | {"server": " ".join(self.server), "http": " ".join(self.http)}
        return {f"RAYLAY_{key.upper()}": value for key, value in joined.items() if value}


VARIABLES = (
    *(f"RAYLAY_{each.name.upper()}" for each in fields(ConnectionContext)),
    PASSWORD_VARIABLE,
)
"""Environment variables that stand for the settings of a context, and the password."""


@dataclass(slots=True)
class Contexts:
    """The contexts of a user, and the name of the one that counts where none is named."""

    named: dict[str, ConnectionContext] = field(default_factory=dict)
    current: str = ""

    def find(self, name: str) -> ConnectionContext:
        """Returns the context of this name.

        Raises:
            ConfigurationError: there is none; the error lists those that there are.
        """
        found = self.named.get(name)
        if found is None:
            there = ", ".join(sorted(self.named)) or "there is none yet: raylay context add"
            raise ConfigurationError(f"there is no context {name}; there are: {there}")
        return found


def contexts_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the path of the user's contexts: `raylay/contexts.json` in the directory of
    configuration (`XDG_CONFIG_HOME`, by default `~/.config`)."""
    home = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "raylay" / "contexts.json"


def load(file: Path | None = None) -> Contexts:
    """Returns the contexts of a file; none, if there is no file.

    Raises:
        ConfigurationError: the file cannot be read, or is no file of contexts.
    """
    file = file or contexts_file()
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None
    try:
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"it has more than {FILE_BYTES_MAX:,} bytes")
        found = json.loads(data)
        named = {
            str(name): ConnectionContext.from_json(name, each)
            for name, each in found["contexts"].items()
        }
        return Contexts(named, str(found.get("current", "")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"{file} is no file of contexts ({error}): mend it, or remove it and add them again"
        ) from None


def save(contexts: Contexts, file: Path | None = None) -> None:
    """Writes the contexts. The file is complete at each moment, and only its user can read it.

    Raises:
        FabricError: the file cannot be written.
    """
    # Late: `raylay --help` and each command read contexts, and few write them.
    from raylay.services.fabric.files import write_private_text

    file = file or contexts_file()
    text = json.dumps(
        {
            "current": contexts.current,
            "contexts": {name: each.as_json() for name, each in sorted(contexts.named.items())},
        },
        indent=2,
    )
    write_private_text(file, text + "\n")


def options_of(arguments: Sequence[str]) -> dict[str, str]:
    """Returns the long options of a command line, and `--fabric` for `-f`, each with the text that
    is its value if it takes one."""
    found: dict[str, str] = {}
    for argument, behind in pairwise([*arguments, ""]):
        if argument == "--":
            break
        if argument.startswith("--"):
            option, is_joined, value = argument.partition("=")
            found[option] = value if is_joined else behind
        elif argument.startswith("-f"):
            found["--fabric"] = argument[2:] or behind
    return found


def names_place(options: Mapping[str, str]) -> bool:
    """Returns whether options say where to connect to."""
    return not options.keys().isdisjoint(_PLACE_OPTIONS)


def name_meant(arguments: Sequence[str], environment: Mapping[str, str], current: str) -> str:
    """Returns the name of the context that counts for a command; empty: none does.

    `--context` counts before all, then a place on the command line, for which there is no context,
    then `RAYLAY_CONTEXT`, then a place in the environment, then the current context.

    Args:
        arguments: arguments of the command, as typed.
        environment: the environment variables.
        current: name of the current context.
    """
    typed = options_of(arguments)
    if "--context" in typed:
        return typed["--context"]
    if names_place(typed):
        return ""
    named = environment.get(CONTEXT_VARIABLE)
    if named:
        return named
    if any(environment.get(variable) for variable in _PLACE_VARIABLES):
        return ""
    return current


def enter(
    arguments: Sequence[str],
    command: str,
    places: Collection[str],
    environment: MutableMapping[str, str],
) -> None:
    """Puts the context that is meant into the environment, in place of what the environment says.

    Args:
        arguments: arguments of the command, as typed.
        command: name of the command, for the error.
        places: those of `fabric`, `server` and `http` that the command has options for.
        environment: the environment, which is changed.

    Raises:
        ConfigurationError: there is no such context, or it does not say where such a command
            connects to.
    """
    contexts = load()
    name = name_meant(arguments, environment, contexts.current)
    if not name:
        return
    found = contexts.find(name)
    if not names_place(options_of(arguments)) and not any(
        getattr(found, place) for place in places
    ):
        wanted = " or ".join(_WAYS[place] for place in sorted(places))
        options = " or ".join(f"--{place}" for place in sorted(places))
        raise ConfigurationError(
            f"context {name} does not say where `{command}` connects to, which takes {wanted}: "
            f"give {options}"
        )
    for variable in VARIABLES:
        environment.pop(variable, None)
    environment.update(found.variables())
