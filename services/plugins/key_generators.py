"""Key generators of SOW topics whose keys are neither fields nor the publisher.

A package brings one by an entry point of the group `raylay.key_generators`:

    [project.entry-points."raylay.key_generators"]
    by_day = "my_package.keys:by_day"

The Python function is called once, with the options of the configuration (a dict of texts), and
gives a function of a topic's name and a message that gives the key: 1 to 255 letters, digits and
`+`, `/`, `-`, `_`, `=`, as bytes or str. The message is a dict of its fields, or its bytes where
the message type has none. What it raises refuses the message (reason `bad_key`).

Every instance that has the topic makes the keys anew, so the same message must always get the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from raylay.services.errors import ConfigurationError, SowKeyError
from raylay.services.messages.types.trees import Tree

GROUP = "raylay.key_generators"
KeyGenerator = Callable[[str, Tree | bytes], bytes]
"""Makes a key from a topic's name and a message; raises SowKeyError."""
SHOWN_CHARACTERS_MAX = 200


def key_generator(name: str, options: Mapping[str, str]) -> KeyGenerator:
    """Returns an installed key generator, with these options.

    Raises:
        ConfigurationError: there is none of this name, or it does not work with them.
    """
    found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        known = ", ".join(sorted({entry.name for entry in entry_points(group=GROUP)})) or "none"
        raise ConfigurationError(
            f"no key generator is called {name!r}: install a package with an entry point of that "
            f"name in {GROUP} on every host; there are {known}"
        )
    where = f"the key generator {name} of the installed {found[0].value}"
    try:
        factory = found[0].load()
    except Exception as error:
        raise ConfigurationError(
            f"{where} cannot be loaded ({_said(error)}): mend or uninstall it"
        ) from error
    try:
        made = factory(dict(options))
    except Exception as error:
        raise ConfigurationError(
            f"{where} does not take its options {dict(options)} ({_said(error)}): correct them"
        ) from error
    if not callable(made):
        raise ConfigurationError(f"{where} gives no function: let it give one of topic and message")
    return _guarded(made, name)


def _guarded(call: Callable[..., Any], name: str) -> KeyGenerator:
    # Imported late: checking a configuration needs no checksums.
    from raylay.services.sow.keys import given_key

    def key_of(topic: str, message: Tree | bytes) -> bytes:
        try:
            key = call(topic, message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit would end the instance.
            raise SowKeyError(
                f"topic {topic}: the key generator {name} refuses this message: {_said(error)}"
            ) from error
        if isinstance(key, str):
            key = key.encode("utf-8", "surrogateescape")
        if not isinstance(key, bytes) or not key:
            what = "an empty one" if isinstance(key, bytes) else f"a value of {type(key).__name__}"
            raise SowKeyError(f"topic {topic}: the key generator {name} gave no key, but {what}")
        return given_key(key, topic)

    return key_of


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:SHOWN_CHARACTERS_MAX]
