"""The name of a configuration's module, and its options."""

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
"""Words in the name of an option whose value is shown nowhere; a header may be `Authorization`."""
_NAMES_IT = ("File", "FileName", "EnvironmentVariable")
"""Endings of the name of an option that says where a secret is."""
_USER_OF_URI = re.compile(r"(?<=://)[^/@]*@")
LETS_EVERYBODY_IN = (
    "amps-default-authentication-module",
    "amps-implicit-authentication-module",
)
"""Authentication modules that let in whoever comes: a transport with one is as open as without."""
FILE_OPTIONS = frozenset(("File", "SecretFile", "PublicKeyFile", "PasswordFileName"))
"""Options of the modules that are built in which name a file."""
ASKS_NOTHING = (*LETS_EVERYBODY_IN, "certificates")
"""Authentication modules that want no password or token."""


@dataclass(frozen=True, slots=True)
class ModuleConfig:
    """A module and what it is told.

    Attributes:
        module: its name: built in, or of an installed package.
        options: as they were written. A secret is better named by a file or a variable of the
            environment (`PasswordFileName`, …): what is written here lies in the data directory.
    """

    module: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"ModuleConfig({self.module!r}, {self.shown()!r})"

    def shown(self) -> dict[str, str]:
        """The options, as people may see them."""
        return {name: shown_option(name, value) for name, value in self.options.items()}

    def placed(self, place: Callable[[str], str]) -> ModuleConfig:
        """Returns the same with each file where `place` says that it is."""
        options = {
            name: place(value) if name in FILE_OPTIONS else value
            for name, value in self.options.items()
        }
        return ModuleConfig(self.module, options)

    def check_options(self, known: Iterable[str], where: str, needs: Iterable[str] = ()) -> None:
        """Raises ConfigurationError where there is an option that the module does not know, or
        one is missing that it needs."""
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
        """An option that is true or false.

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
    """An option of a module as people may see it: `***` in the place of a secret, and of user and
    password in an address."""
    if _SECRET.search(name) and not name.endswith(_NAMES_IT):
        return HIDDEN
    return _USER_OF_URI.sub(f"{HIDDEN}@", value)


def without_secrets(values: Any) -> Any:
    """A configuration as lists, maps and texts, with the options of its modules as people may see
    them."""
    if isinstance(values, list):
        return [without_secrets(each) for each in values]
    if not isinstance(values, dict):
        return values
    made = {name: without_secrets(each) for name, each in values.items()}
    options = made.get("options")
    if "module" in made and isinstance(options, dict):
        made["options"] = {name: shown_option(name, each) for name, each in options.items()}
    return made
