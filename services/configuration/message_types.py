"""Message types that a configuration defines: what checks them."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.plugins.message_types import installed_types

DESCRIPTORS_BYTES_MAX = 16 * 1024 * 1024


def check_types(definitions: Iterable[TypeDefinition]) -> None:
    """Checks the message types of a configuration.

    Raises:
        ConfigurationError: one cannot be used; with its name.
    """
    definitions = list(definitions)
    if not definitions:
        return
    try:
        installed_types(definitions)
    except ConfigurationError:
        raise
    except RaylayError as error:
        raise ConfigurationError(str(error)) from None


def with_descriptors(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the options with the content of the file that `descriptors` names, as text.

    Raises:
        ConfigurationError: it cannot be read.
    """
    named = options.get("descriptors")
    if not isinstance(named, str):
        return options
    path = folder / named
    try:
        if path.stat().st_size > DESCRIPTORS_BYTES_MAX:
            raise ConfigurationError(f"{path} has more than {DESCRIPTORS_BYTES_MAX:,} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"descriptors {path}: {error.strerror}") from None
    return {**options, "descriptors": base64.b64encode(content).decode()}
