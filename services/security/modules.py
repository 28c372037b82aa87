"""The name of a configured module, and its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raylay.services.errors import ConfigurationError

HIDDEN = "***"
_SECRET = re.compile(
    r"password|passphrase|secret|token|credential|apikey|httpheader", re.IGNORECASE
)
"""Words in the name of an option whose value is secret; a header may be `Authorization`."""
_NAMES_IT = ("File", "FileName", "EnvironmentVariable")
"""Endings of the name of an option that only names the place of a secret."""
_USER_OF_URI = re.compile(r"(?<=://)[^/@]*@")
LETS_EVERYBODY_IN = (
    "amps-default-authentication-module",
    "amps-implicit-authentication-module",
)
"""Authentication modules that admit everybody: a transport with one is as open as without."""
FILE_OPTIONS = frozenset(("File", "SecretFile", "PublicKeyFile", "PasswordFileName"))
"""Options of the built-in modules that name a file."""
ASKS_NOTHING = (*LETS_EVERYBODY_IN, "certificates")
"""Authentication modules that need no password or token."""


@dataclass(frozen=True, slots=True)
class ModuleConfig:
    """A module and its options.

    Attributes:
        module: name of the module: built in, or from an installed package.
        options: options as written. A secret should be given by a file or an environment variable
            (`PasswordFileName`, …): values written here are stored in the data directory.
    """

    module: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"ModuleConfig({self.module!r}, {self.shown()!r})"

    def shown(self) -> dict[str, str]:
        """Returns the options in a form that may be shown: secrets are `***`."""
        return {name: shown_option(name, value) for name, value in self.options.items()}

    def placed(self, place: Callable[[str], str]) -> ModuleConfig:
        """Returns the same with each file where `place` says that it is."""
        options = {
            name: place(value) if name in FILE_OPTIONS else value
            for name, value in self.options.items()
        }
        return ModuleConfig(self.module, options)

    def check_options(self, known: Iterable[str], where: str, needs: Iterable[str] = ()) -> None:
        """Raises ConfigurationError for an option that the module does not know, or one that is
        required and missing."""
        known, needs = sorted(known), tuple(needs)
        for name in self.options:
            if name not in known:
                there_are = ", ".join(known) or "none"
                raise ConfigurationError(
                    f"{where}: module {self.module} has no option {name!r}: there are {there_are}"
                )
        for name in needs:
            if not self.options.get(name):
                raise ConfigurationError(f"{where}: module {self.module} needs the option {name!r}")

    def truth(self, name: str, default: bool, where: str) -> bool:
        """Returns an option that is true or false.

        Raises:
            ConfigurationError: it is something else.
        """
        text = self.options.get(name, "").strip().lower()
        if not text:
            return default
        if text in ("true", "enabled", "1", "yes"):
            return True
        if text in ("false", "disabled", "0", "no"):
            return False
        raise ConfigurationError(f"{where}: {name} is {text!r}: give true or false")


def shown_option(name: str, value: str) -> str:
    """Returns an option's value in a form that people may see: `***` in place of a secret, and of
    user and password in an address."""
    if _SECRET.search(name) and not name.endswith(_NAMES_IT):
        return HIDDEN
    return _USER_OF_URI.sub(f"{HIDDEN}@", value)


def without_secrets(values: Any) -> Any:
    """Returns a configuration of lists, maps and texts, with the options of its modules in a form
    that people may see."""
    if isinstance(values, list):
        return [without_secrets(value) for value in values]
    if not isinstance(values, dict):
        return values
    made = {name: without_secrets(each) for name, each in values.items()}
    options = made.get("options")
    if "module" in made and isinstance(options, dict):
        made["options"] = {name: shown_option(name, each) for name, each in options.items()}
    return made
